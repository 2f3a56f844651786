"""accl-perf for real, read the way scripts read nccl-tests."""

import json
import os
import re
import subprocess
import sys

import pytest
from accl_py.perf.sizes import COLLECTIVES

PERF = [sys.executable, "-m", "accl_py.perf.cli"]


def run(*words, command=PERF, code=0, **environment):
    result = subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def rows(text):
    return [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective(collective):
    ranks = "4" if collective == "hypercube" else "3"
    text = run(
        collective, "-b", "12", "-e", "60K", "-f", "16", "-n", "3", "--ranks", ranks, "-r", "1"
    )
    got = rows(text)
    assert len(got) == 4
    for row in got:
        assert len(row) == 13
        assert row[8] == "0"
        assert row[12] in ("0", "N/A")
    assert "# Out of bounds values : 0 OK" in text
    assert "# Avg bus bandwidth" in text


def test_one_rank_all_operations_and_dtypes():
    assert (
        len(
            rows(
                run(
                    "all_reduce",
                    "-b",
                    "64",
                    "-e",
                    "64",
                    "-o",
                    "all",
                    "-d",
                    "all",
                    "-n",
                    "1",
                    "--ranks",
                    "1",
                )
            )
        )
        == 72
    )


def test_json_has_no_secrets(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    run("all_reduce", "-b", "8", "-e", "8", "-J", str(path), A_SECRET="hunter2", ACCL_LOG="error")
    assert path.read_text() == "old"
    text = (tmp_path / "out.json.0").read_text()
    assert "hunter2" not in text
    document = json.loads(text)
    assert document["results"][0]["size"] == 8
    assert "ACCL_LOG=error" in document["env"]


def test_per_iteration_columns_cycles_and_blocking(tmp_path):
    text = run(
        "all_reduce", "-b", "1K", "-e", "1K", "-I", "-N", "2", "-m", "2", "-J", str(tmp_path / "o")
    )
    got = rows(text)
    assert [len(row) for row in got] == [21, 21]
    least, most = float(got[0][9]), float(got[0][10])
    assert 0 < least <= float(got[0][5]) <= most
    assert (
        len(
            json.loads((tmp_path / "o").read_text())["results"][0]["out_of_place_per_iter"][
                "times_us"
            ]
        )
        == 20
    )
    assert len(rows(run("broadcast", "-b", "1K", "-e", "1K", "-z", "1", "-c", "0"))[0]) == 13


def test_what_does_not_fit_is_said_at_once():
    result = subprocess.run(
        [*PERF, "all_reduce", "-b", "8", "-e", "999G", "-f", "2"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert "use a smaller -e" in result.stderr


def test_a_forced_choice_that_does_not_exist_is_a_sentence():
    result = subprocess.run(
        [*PERF, "all_reduce", "-b", "8", "-e", "8", "--algorithm", "warp"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert "Algorithm 'warp' is unknown for all_reduce; expected one of" in result.stderr


def test_against_another_backend():
    got = rows(run("all_reduce", "-b", "1K", "-e", "1K", "-n", "5", "--against", "gloo"))
    assert len(got[0]) == 16
    assert float(got[0][15]) > 0


def test_under_mpirun():
    mpirun = os.path.join(os.path.dirname(sys.executable), "mpirun")
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", *PERF]
    assert len(rows(run("broadcast", "-b", "8", "-e", "8", command=command))) == 1


def test_under_torchrun():
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "accl_py.perf.cli",
    ]
    assert len(rows(run("all_gather", "-b", "1K", "-e", "1K", command=command))) == 1
