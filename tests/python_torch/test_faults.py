"""Ranks that disagree, die, or stay away: a named error on every survivor, soon; and a new group
works after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, refused

SCRIPTS = Path(__file__).parent.parent / "multiprocess"


def disagree(size: int, call: Callable[[dist.ProcessGroup], object], *words: str) -> None:
    """Runs a call that the ranks make differently in a group of its own: every rank must get the
    same error.
    """
    group = dist.new_group(list(range(size)))
    start = time.monotonic()
    refused(lambda: call(group), *words, error=dist.DistBackendError)
    assert time.monotonic() - start < 5, "found only by the timeout"
    dist.barrier()
    dist.destroy_process_group(group)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size


def check_other_count(rank: int, size: int) -> None:
    disagree(
        size,
        lambda group: dist.all_reduce(torch.ones(4 + 4 * min(rank, 1)), group=group),
        "4 float32",
        "8 float32",
    )


def check_other_dtype(rank: int, size: int) -> None:
    x = torch.ones(4, dtype=torch.float32 if rank else torch.int32)
    disagree(size, lambda group: dist.all_reduce(x, group=group), "int32", "float32")


def check_other_operation(rank: int, size: int) -> None:
    op = dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM
    disagree(size, lambda group: dist.all_reduce(torch.ones(4), op, group=group), "sum", "max")


def check_other_root(rank: int, size: int) -> None:
    """Two roots send and nobody receives: found by the next call at the latest."""

    def call(group: dist.ProcessGroup) -> None:
        dist.broadcast(torch.ones(4), min(rank, 1), group=group)
        dist.barrier(group=group)

    disagree(size, call, "disagree", "root 0", "root 1")


def check_other_collective(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup) -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(4), group=group)
        else:
            dist.barrier(group=group)

    disagree(size, call, "all_reduce", "barrier")


def check_longer_message(rank: int, size: int) -> None:
    """A message longer than the receive is an error of the group, not a write past the end."""
    group = dist.new_group(list(range(size)))
    if rank == 0:
        work = dist.isend(torch.ones(8), 1, group=group)
        del work
    elif rank == 1:
        guard = torch.zeros(8)
        refused(
            lambda: dist.recv(guard[:4], 0, group=group), "32", "16", error=dist.DistBackendError
        )
        assert guard.sum() == 0
    dist.barrier()
    dist.destroy_process_group(group)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_disagreement(ranks: Ranks, check: Callable[..., None]) -> None:
    ranks.run(check)


def check_killed(rank: int, size: int, folder: str) -> str:
    if rank == size - 1:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    start = time.monotonic()
    said = refused(
        lambda: dist.all_reduce(torch.ones(1 << 20)),
        f"Rank {size - 1}",
        error=dist.DistBackendError,
    )
    assert time.monotonic() - start < 2, "a dead peer is to be seen within two seconds"
    start = time.monotonic()
    refused(
        lambda: dist.send(torch.ones(1), (rank + 1) % size), "ended", error=dist.DistBackendError
    )
    dist.destroy_process_group()
    assert time.monotonic() - start < 2, "destroy hangs after a fault"
    # A new group of the survivors, in the same processes.
    store = dist.FileStore(folder + "/survivors", size - 1)
    dist.init_process_group(
        "accl", store=store, rank=rank, world_size=size - 1, timeout=timedelta(seconds=10)
    )
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size - 1
    return said


def test_killed_rank(ranks3: Ranks, tmp_path: Path) -> None:
    """The last of three ranks dies by SIGKILL; the others say so, and work on without it."""
    answers = ranks3.answers(check_killed, str(tmp_path))
    ranks3.stop()
    assert answers[2] == (False, "the process died")
    for rank in (0, 1):
        good, said = answers[rank]
        assert good, said


def script(
    name: str, *arguments: str, ranks: int = 2, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs a script of tests/multiprocess under torchrun."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]
    return subprocess.run(
        [*command, str(SCRIPTS / name), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_absent_rank() -> None:
    """A rank that never comes: init ends with a sentence that names it."""
    done = script("torch_absent.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Rank 1 of 2 did not join" in done.stdout and "Timed out" in done.stdout, done.stdout


def test_exit_without_destroy() -> None:
    done = script("torch_exit.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2") == 2 and "Traceback" not in done.stderr


def test_wrong_environment(tmp_path: Path) -> None:
    """A rules file that cannot be read ends every rank's init with its name, at once."""
    os.environ["ACCL_RULES"] = str(tmp_path / "missing.csv")
    try:
        start = time.monotonic()
        done = script("torch_exit.py")
    finally:
        del os.environ["ACCL_RULES"]
    assert done.returncode != 0 and "missing.csv" in done.stderr, done.stderr
    assert time.monotonic() - start < 30
