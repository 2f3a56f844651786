"""accl-tune as a user types it: arguments, files, exit statuses, and short sweeps for real."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accl_py.rules import Rules
from accl_tune import cli

CONTRACTS = Path(__file__).resolve().parents[1] / "contracts" / "rules"
SMALL = ("--collectives", "all_reduce", "-b", "64K", "-e", "256K", "-f", "4", "--seed", "3")


def contract(name):
    with (CONTRACTS / name).open(encoding="utf-8", newline="") as file:
        return [
            row
            for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if row and not row[0].startswith("#")
        ]


def run(capsys, *words):
    try:
        code = cli.main([str(word) for word in words])
    except SystemExit as ended:  # argparse
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out + printed.err


@pytest.mark.parametrize("row", contract("good.tsv"), ids=lambda row: row[0])
def test_check_takes_good_files(capsys, row):
    code, text = run(capsys, "check", CONTRACTS / row[0])
    assert code == 0
    assert row[3] in text  # the digest


@pytest.mark.parametrize("row", contract("bad.tsv"), ids=lambda row: row[0])
def test_check_refuses_bad_files(capsys, row):
    code, text = run(capsys, "check", CONTRACTS / row[0])
    assert code == 1
    for words in row[2].split("|"):
        assert words in text
    if row[1] != "0":
        assert f":{row[1]}" in text


def test_check_goes_on_after_a_bad_file(capsys, tmp_path):
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("allreduce,0,-1,ring,-1,-1,-1,-1,-1,-1,cpu\n")
    bad.write_text("allreduce,0,-1,rnig,-1,-1,-1,-1,-1,-1,cpu\n")
    code, text = run(capsys, "check", bad, good, tmp_path / "none.csv")
    assert code == 1
    assert "'rnig'" in text
    assert "good.csv: valid, 1 rule" in text
    assert "none.csv" in text


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.csv"
    path.write_text(
        "allreduce,0,1023,direct,inline,-1,-1,2,-1,-1,cpu\nallreduce,1024,-1,ring,bulk,-1,-1,2,-1,-1,cpu,262144\n"
    )
    return path


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (
            ["all_reduce", "--bytes", "64K", "--ranks", "2"],
            ["rules.csv:2", "algorithm ring", "chunks of 256K", "default"],
        ),
        (["allreduce", "--bytes", "8", "--ranks", "2"], ["rules.csv:1", "algorithm direct"]),
        (["all_reduce", "--bytes", "8", "--ranks", "3"], ["no rule", "default"]),
        (["broadcast", "--bytes", "1M", "--ranks", "2"], ["no rule", "direct"]),
    ],
)
def test_explain(capsys, rules, words, texts):
    code, text = run(capsys, "explain", rules, *words)
    assert code == 0
    for expected in texts:
        assert expected in text


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["explain", "{rules}", "all_reduce", "--bytes", "lots", "--ranks", "2"], 2, "lots"),
        (["explain", "{rules}", "teleport", "--bytes", "8", "--ranks", "2"], 2, "teleport"),
        (["explain", "{rules}", "all_reduce", "--bytes", "8", "--ranks", "0"], 2, "0"),
        (["explain", "none.csv", "all_reduce", "--bytes", "8", "--ranks", "2"], 1, "none.csv"),
        (["sweep", "-o", "{out}", "--ranks", "0"], 2, "0"),
        (["sweep", "-o", "{out}", "--ranks", "99999"], 2, "99999 local ranks need about"),
        (["sweep", "-o", "{out}", "-b", "1M", "-e", "8"], 2, "1M"),
        (["sweep", "-o", "{out}", "--collectives", "all_reduce", "teleport"], 2, "teleport"),
        (["sweep", "-o", "{out}", "--dtype", "quad"], 2, "quad"),
        (["sweep", "-o", "{out}", "--budget", "-1"], 2, "-1"),
        (["sweep", "-o", "{out}", "--resume"], 4, "resume"),
        (["sweep", "-o", "/nowhere/rules.csv"], 2, "/nowhere"),
        (["plot", "none.json", "-o", "x.png"], 4, "none.json"),
        (["plot", "{rules}", "-o", "x.png"], 4, "rules.csv"),
        (["dance"], 2, "dance"),
    ],
)
def test_wrong_arguments_are_sentences(capsys, rules, tmp_path, words, code, text):
    words = [w.format(rules=rules, out=tmp_path / "out.csv") for w in words]
    got, printed = run(capsys, *words)
    assert text in printed
    assert got == code, printed
    assert not (tmp_path / "out.csv").exists()


def sweep(*words, check=True, timeout=120):
    result = subprocess.run(
        [sys.executable, "-m", "accl_tune", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A short sweep for real: its rules file and how long it took."""
    path = tmp_path_factory.mktemp("swept") / "rules.csv"
    begin = time.monotonic()
    sweep("sweep", "--ranks", 2, *SMALL, "--budget", 8, "-o", path)
    return path, time.monotonic() - begin


def test_a_sweep_writes_rules_and_evidence(swept, capsys):
    path, seconds = swept
    rules = Rules.load(str(path))
    assert any(row.collective == "all_reduce" for row in rules.rows)
    provenance = dict(rules.provenance)
    assert provenance["ranks"] == "2"
    assert {"written_by", "date", "machine", "evidence"} <= provenance.keys()
    evidence = json.loads(path.with_suffix(".evidence.json").read_text())
    text = json.dumps(evidence)
    for word in ("two_shot", "ring", "halving_doubling", "direct"):
        assert word in text
    assert seconds < 20
    assert run(capsys, "check", path)[0] == 0
    code, explained = run(capsys, "explain", path, "all_reduce", "--bytes", "256K", "--ranks", "2")
    assert code == 0
    assert "evidence" in explained


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_opens(swept, tmp_path, capsys, suffix):
    path, _ = swept
    picture = tmp_path / f"tune.{suffix}"
    assert run(capsys, "plot", path.with_suffix(".evidence.json"), "-o", picture)[0] == 0
    head = picture.read_bytes()[:400]
    assert head.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in head or b"<?xml" in head
    assert picture.stat().st_size > 5000


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
