"""init() from the environments that launchers make, and import with packages missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUM = """
import numpy as np, accl_py, os
with accl_py.init(timeout=30) as c:
    total = c.all_reduce(np.full(3, c.rank + 1.0))[0]
    os.write(1, f"{c.rank} of {c.size}: {total:g}\\n".encode())
"""
LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_",
    "OMPI_",
    "PMI",
    "SLURM_",
    "TORCHELASTIC",
)


def clean_environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**kept, **more}


def run(*command: str, seconds: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-c", code, **environment)


def output_of(answer: subprocess.CompletedProcess[str]) -> str:
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_bare() -> None:
    assert output_of(python(SUM)) == "0 of 1: 1\n"
    assert output_of(python(SUM, MASTER_ADDR="127.0.0.1")) == "0 of 1: 1\n"
    assert output_of(python(SUM, OMPI_COMM_WORLD_SIZE="1")) == "0 of 1: 1\n"
    # A shell of sbatch or salloc: one process, though the job has several tasks.
    assert output_of(python(SUM, SLURM_NTASKS="4", SLURM_PROCID="0")) == "0 of 1: 1\n"


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "RANK is not set"),
        (
            {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "RANK is 'x'; expected an integer",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "?"},
            "MASTER_PORT is '?'; expected an integer",
        ),
        (
            {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "RANK is 2; expected 0 to 1 for WORLD_SIZE 2",
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "rank 1; expected 0 to 0",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "many"}, "OMPI_COMM_WORLD_SIZE is 'many'; expected an integer"),
        ({"ACCL_LOG": "loud"}, "ACCL_LOG is 'loud'"),
        ({"ACCL_RULES": "/nowhere/rules.csv"}, "/nowhere/rules.csv"),
    ],
)
def test_half_set(environment: dict[str, str], words: str) -> None:
    code = (
        "import accl_py\n"
        "try:\n    accl_py.init(timeout=5)\n"
        "except accl_py.errors.InvalidArgument as e:\n    print(e)\n"
    )
    told = output_of(python(code, **environment))
    assert words in told, told


def test_a_launchers_store_that_is_not_there() -> None:
    pytest.importorskip("torch")
    where = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    told = python("import accl_py; accl_py.init(timeout=1)", **where).stderr.splitlines()
    words = "StoreError: Rank 1 could not reach the store of the launcher at 127.0.0.1:1 (MASTER_"
    assert words in told[-1]
    told = python("import accl_py; accl_py.init(timeout=-1)", **where).stderr.splitlines()
    assert "InvalidArgument: timeout is -1; expected seconds above 0" in told[-1]


def test_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "program.py"
    script.write_text(SUM)
    answer = run(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        str(script),
    )
    assert sorted(output_of(answer).splitlines()) == ["0 of 2: 3", "1 of 2: 3"]


def test_torchrun_environment_without_an_agent() -> None:
    pytest.importorskip("torch")
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    other = subprocess.Popen(
        [sys.executable, "-c", SUM],
        env=clean_environment(RANK="1", **where),
        stdout=subprocess.PIPE,
    )
    try:
        assert output_of(python(SUM, RANK="0", **where)) == "0 of 2: 3\n"
        assert other.communicate(timeout=20)[0] == b"1 of 2: 3\n"
    finally:
        other.kill()
        other.wait()


def mpirun() -> list[str]:
    """The start of an mpirun command; skips where there is none."""
    pytest.importorskip("mpi4py")
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("there is no mpirun")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, *as_root, "--oversubscribe", "--bind-to", "none", "-n", "2"]


def test_mpirun() -> None:
    answer = run(*mpirun(), sys.executable, "-c", SUM)
    assert sorted(output_of(answer).splitlines()) == ["0 of 2: 3", "1 of 2: 3"]


def test_from_mpi_of_a_part_of_the_world() -> None:
    code = """
import numpy as np, os
from mpi4py import MPI
from accl_py import Communicator
half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
a = Communicator.from_mpi(half, name=f"half {MPI.COMM_WORLD.rank % 2}")
with a, Communicator.from_mpi(MPI.COMM_WORLD) as b:
    os.write(1, f"{a.size} {b.size} {b.all_reduce(np.ones(2))[0]:g}\\n".encode())
"""
    assert output_of(run(*mpirun(), sys.executable, "-c", code)) == "1 2 2\n" * 2


def test_a_lasting_store_and_split_over_mpi() -> None:
    code = """
import numpy as np, os, threading
from mpi4py import MPI
import accl_py
from accl_py.mpi import MpiStore
rank = MPI.COMM_WORLD.rank
store = MpiStore(MPI.COMM_WORLD).lasting()
store.set(f"from {rank}", bytes([rank]) * 3)
answers = []
ask = threading.Thread(target=lambda: answers.append(store.get(f"from {1 - rank}")))
ask.start()
ask.join()
with accl_py.init() as c:
    own, none = c.split(rank, name="own"), c.split(rank - 1)
    text = f"{answers} {own.size} {none is None} {own.all_reduce(np.ones(1))[0]:g}"
    c.barrier()  # rank 0 serves the store until all have asked
os.write(1, f"{rank} {text}\\n".encode())
"""
    told = sorted(output_of(run(*mpirun(), sys.executable, "-c", code)).splitlines())
    assert told == [
        r"0 [b'\x01\x01\x01'] 1 True 1",
        r"1 [b'\x00\x00\x00'] 1 False 1",
    ]


def test_an_mpi_that_is_not_the_launchers() -> None:
    pytest.importorskip("mpi4py")
    told = python("import accl_py; accl_py.init()", PMI_SIZE="2")
    assert told.returncode != 0
    assert "PMI_SIZE is 2, but mpi4py sees 1 rank(s)" in told.stderr


def test_the_mpi_example() -> None:
    example = Path(__file__).parents[2] / "examples" / "mpi_numpy.py"
    told = output_of(run(*mpirun(), sys.executable, str(example)))
    assert "all results are right" in told


# ---- without torch or mpi4py ----

BLOCKED = "import sys\nfor name in {names}: sys.modules[name] = None\n"


def test_without_torch() -> None:
    answer = python(BLOCKED.format(names=("torch",)) + SUM)
    assert output_of(answer) == "0 of 1: 1\n"
    code = BLOCKED.format(names=("torch", "mpi4py")) + (
        "import threading, numpy as np, accl_py\n"
        "store = accl_py.HashStore()\n"
        "def work(rank):\n"
        "    with accl_py.Communicator.from_store(store, rank, 2) as c:\n"
        "        assert (c.all_gather(np.array([rank])) == [[0], [1]]).all()\n"
        "        print('done')\n"
        "threads = [threading.Thread(target=work, args=(r,)) for r in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    assert output_of(python(code)).count("done") == 2


def test_import_loads_neither() -> None:
    code = "import sys, accl_py; print({'torch', 'mpi4py'} & set(sys.modules))"
    assert output_of(python(code)) == "set()\n"


def test_a_missing_package_is_named() -> None:
    where = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    code = "import accl_py; accl_py.init()"
    told = python(BLOCKED.format(names=("torch",)) + code, **where).stderr
    assert "AcclError: torchrun's rendezvous needs torch, which is not installed" in told
    told = python(BLOCKED.format(names=("mpi4py",)) + code, OMPI_COMM_WORLD_SIZE="2").stderr
    assert "OMPI_COMM_WORLD_SIZE says" in told and "needs mpi4py" in told
