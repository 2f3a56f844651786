"""accl-perf on GPUs: with a GPU for each rank, or shared ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accl_py.perf.cuda import device_count
from accl_py.perf.sizes import COLLECTIVES

PERF = [sys.executable, "-m", "accl_py.perf.cli"]
SHARED = ["--ranks", "2", "--share-gpu"]


def run(*words: str, start: tuple[str, ...] = (), seconds: float = 120) -> str:
    command = [*start, *PERF, *words, "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]


def right(text: str, count: int) -> None:
    got = rows(text)
    assert len(got) == count
    for row in got:
        assert row[8] == "0" and row[12] in ("0", "N/A")
        assert float(row[5]) > 0
    assert "# Out of bounds values : 0 OK" in text
    assert re.search(r"device  0 \[[0-9a-fA-F]+:[0-9a-fA-F:.]+\] \S+", text)
    assert re.search(r"nccl-library=2\d{4}\b", text)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_on_one_rank(collective: str) -> None:
    right(run(collective, "-b", "8", "-e", "64K", "-f", "16", "-n", "5", "--ranks", "1"), 4)


def test_large_sizes_take_longer_on_the_gpu() -> None:
    small, large = rows(run("all_gather", "-b", "1M", "-e", "256M", "-f", "256", "--ranks", "1"))
    assert float(large[5]) > float(small[5])


@pytest.mark.parametrize("more", [("-G", "3"), ("-C", "1"), ("-z", "1"), ("-m", "4")], ids="".join)
@pytest.mark.parametrize("collective", ["all_reduce", "sendrecv"])
def test_other_ways_to_time(collective: str, more: tuple[str, str]) -> None:
    right(run(collective, "-b", "1K", "-e", "4K", "-f", "4", "--ranks", "1", *more), 2)


def test_ranks_that_share_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ("-b", "8", "-e", "1M", "-f", "8", "-n", "5", "-J", str(path))
    text = run("all_reduce", *words, *SHARED)
    right(text, 6)
    assert "LOOPBACK SOCKETS" in text
    assert json.loads(path.read_text())["config"]["nranks"] == 2
    right(run("alltoall", "-b", "4K", "-e", "4K", "-G", "2", *SHARED), 1)


def test_too_few_gpus_are_told_at_once() -> None:
    ranks = device_count() + 1
    command = [*PERF, "all_reduce", "--device", "cuda", "--ranks", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--share-gpu to let ranks share them" in done.stderr


def test_groups_at_once() -> None:
    text = run("all_reduce", "-b", "4K", "-e", "4K", "--split", "MOD 2", *SHARED)
    right(text, 1)
    assert re.findall(r"Rank +(\d) Group +(\d)", text) == [("0", "0"), ("1", "1")]


def test_under_mpirun() -> None:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    assert found, "there is no mpirun: install Open MPI"
    start = (found, "--allow-run-as-root", "--oversubscribe", "-n", "2")
    right(run("broadcast", "-b", "8", "-e", "8", "--share-gpu", start=start), 1)


def test_under_torchrun() -> None:
    launcher = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--no-python",
    )
    right(run("reduce_scatter", "-b", "1K", "-e", "1K", "--share-gpu", start=launcher), 1)
