"""accl_py.Communicator with CuPy arrays and torch CUDA tensors, on one rank and on two."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import accl_py_programs as programs
import pytest
from pool import Pool

HERE = Path(__file__).parent
SIZES = [1, 2]
KINDS = ["cupy", "torch"]


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_every_collective(ranks_pool: Pool, kind: str, async_op: bool, tmp_path: Path) -> None:
    ranks_pool.run(
        programs.collectives, limit=120, kind=kind, folder=str(tmp_path), async_op=async_op
    )


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "program",
    [
        programs.messages,
        programs.streams,
        programs.works,
        programs.both_halves,
        programs.splits,
        programs.refusals,
        programs.repeated,
    ],
    ids=lambda program: program.__name__,
)
def test_programs(ranks_pool: Pool, program, kind: str, tmp_path: Path) -> None:
    ranks_pool.run(program, kind=kind, folder=str(tmp_path))


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize(
    "program",
    [programs.memory_freed_early, programs.graph],
    ids=lambda program: program.__name__,
)
def test_torch_alone(ranks_pool: Pool, program, tmp_path: Path) -> None:
    ranks_pool.run(program, kind="torch", folder=str(tmp_path))


ALONE = """
import sys
import accl_py, cupy
with accl_py.init() as c:
    x = c.all_reduce(cupy.asarray([1.0, 2.0]))
    assert x.get().tolist() == [1.0, 2.0] and c.statistics()["device"]["nccl_calls"] == 1
print("torch" in sys.modules)
"""


def output_of(*command: str) -> str:
    """What a program of its own prints; fails with all that it says where it fails."""
    done = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_rank_without_torch_or_a_launcher() -> None:
    assert output_of(sys.executable, "-c", ALONE) == "False\n"


def test_mpi_without_torch() -> None:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    assert found, "there is no mpirun: install Open MPI"
    start = [found, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    if "PYTHONPATH" in os.environ:
        start += ["-x", "PYTHONPATH"]
    told = sorted(output_of(*start, sys.executable, "mpi_cupy.py").splitlines())
    assert told == [f"rank {rank} of 2: torch False" for rank in range(2)]
