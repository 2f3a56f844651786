"""Sweeps of two ranks for real: interrupted, resumed, under mpirun; and the engine obeys what rules say."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accl_py.rules import Rules

SMALL = ("--collectives", "all_reduce", "-b", "64K", "-e", "256K", "-f", "4", "--seed", "3")


def sweep(*words, check=True, timeout=120):
    result = subprocess.run(
        [sys.executable, "-m", "accl_tune", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sweep_resumes(tmp_path, stop):
    path = tmp_path / "rules.csv"
    words = ["sweep", "--ranks", "2", *SMALL, "--budget", "12", "-o", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "accl_tune", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    journal = wait_for_journal(tmp_path, process)
    process.send_signal(stop)
    process.communicate(timeout=30)
    assert process.returncode in (130, -stop)
    assert not path.exists()
    measured = journal.read_bytes()
    other = sweep(
        *words[:-4], "--dtype", "float64", "--budget", "12", "-o", path, "--resume", check=False
    )
    assert other.returncode == 4
    assert "dtype" in other.stdout + other.stderr
    assert journal.read_bytes() == measured  # nothing is lost
    result = sweep(*words)
    assert (
        "resum" in (result.stdout + result.stderr).lower()
        or "goes on" in result.stdout + result.stderr
    )
    assert path.exists()
    assert not list(tmp_path.glob("*.jsonl"))


def wait_for_journal(directory, process):
    """The journal, once it holds a few samples."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for journal in directory.glob("*.jsonl"):
            if journal.read_bytes().count(b"\n") > 4:
                return journal
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("no journal appeared")


def test_a_sweep_under_mpirun(tmp_path):
    mpirun = Path(sys.executable).with_name("mpirun")
    path = tmp_path / "rules.csv"
    command = [
        mpirun,
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        sys.executable,
        "-m",
        "accl_tune",
        "sweep",
    ]
    result = subprocess.run(
        [*command, *SMALL, "--budget", "6", "-o", path], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert dict(Rules.load(str(path)).provenance)["ranks"] == "2"


OBEYS = """
import sys, numpy as np, accl_py
from accl_py import schedule
comm = accl_py.init(rules=sys.argv[1])
x = np.ones(300_001, np.float32)
work = comm.all_reduce(x, async_op=True)
work.wait()
report = work.report()
plan = schedule.plan(report["algorithm"], "all_reduce", comm.rank, comm.size, x.nbytes, 4, chunk_bytes=report["chunk_bytes"])
assert (x == comm.size).all()
assert report["traffic"] == plan.traffic(), (report, plan.traffic())
if comm.rank == 0:
    print(report["algorithm"], report["chunk_bytes"], report["traffic"]["bytes_sent"], report["traffic"]["messages_sent"])
comm.shutdown()
"""


@pytest.mark.parametrize(
    ("algorithm", "ranks", "sent"),
    [
        ("direct", 3, lambda n, size: (n - 1) * size),
        ("ring", 2, lambda n, size: 2 * (n - 1) * size // n),
        ("two_shot", 3, lambda n, size: 2 * (n - 1) * size // n),
        ("halving_doubling", 2, lambda n, size: 2 * (n - 1) * size // n),
    ],
)
def test_the_engine_obeys_the_rules(tmp_path, algorithm, ranks, sent):
    path = tmp_path / "rules.csv"
    path.write_text(f"allreduce,0,-1,{algorithm},bulk,-1,-1,{ranks},-1,-1,cpu,8192\n")
    mpirun = Path(sys.executable).with_name("mpirun")
    command = [
        mpirun,
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        str(ranks),
        sys.executable,
        "-c",
        OBEYS,
        path,
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "ACCL_LOG": "error"}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    name, chunk, bytes_sent, messages = result.stdout.split()
    assert (name, chunk) == (algorithm, "8192")
    # docs/algorithms.md's formula, up to the borders of parts, which lie on cache lines.
    assert abs(int(bytes_sent) - sent(ranks, 4 * 300_001)) <= 0.03 * sent(ranks, 4 * 300_001)
    assert int(messages) >= ranks - 1
