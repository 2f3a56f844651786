"""Short sweeps for real: two ranks on this machine, stopped in every way there is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import accl_py
import accl_tune
import pytest
from accl_py import Communicator, HashStore, Rules
from accl_tune.cli import main
from accl_tune.evidence import evidence_path, journal_path, load
from accl_tune.measure.bench import Bench
from accl_tune.measure.lead import DEFAULT, ChoiceFailed, Lead
from accl_tune.model import Cell, Choice

pytestmark = pytest.mark.mp

SMALL = ["--collectives", "all_reduce", "gather", "-b", "1K", "-e", "64K", "-f", "8"]
HOMES = [str(Path(str(package.__file__)).parents[1]) for package in (accl_tune, accl_py)]
LAUNCHED = ("OMPI_", "PMI", "PRTE", "SLURM_", "TORCHELASTIC", "MASTER_")


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHED)}
    homes = os.pathsep.join(HOMES)
    # A killed lead cannot clear its folder away; it goes with the tests' own.
    folder = os.environ["ACCL_TRACE_DIR"]
    return {**kept, "PYTHONPATH": homes, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "accl_tune", *map(str, words)]


def run(words: list[str], seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=seconds)


@contextmanager
def started(rules: Path, lines: int = 12) -> Iterator[subprocess.Popen[str]]:
    """A sweep that is under way: its journal has so many lines more than at the start."""
    journal = journal_path(rules)
    before = count(journal)
    process = subprocess.Popen(
        command("sweep", *SMALL, "--repeats", 200, "--budget", 60, "-o", rules),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 40
        while count(journal) < before + lines:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "the journal does not grow"
            time.sleep(0.02)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and stderr."""
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def entries(path: Path) -> list[dict]:
    """The whole lines of a journal."""
    return [
        json.loads(line) for line in path.read_text().splitlines(keepends=True) if line[-1:] == "\n"
    ]


def pairs_of(cells: list[dict]) -> dict[tuple, list]:
    return {
        (*cell["cell"], *trial["choice"]): trial["screening"]
        for cell in cells
        for trial in cell["candidates"]
    }


def resumed(rules: Path, kept: list[dict]) -> None:
    """Goes on with a sweep, and holds what it ends with against what was kept of it."""
    budget = 3 + max(entry.get("elapsed", 0) for entry in kept)
    done = run(command("sweep", *SMALL, "--repeats", 200, "--budget", budget, "-o", rules))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resuming '{journal_path(rules)}'" in done.stderr
    data = json.loads(evidence_path(rules).read_text())
    assert [session["resumed"] for session in data["sessions"]] == [False, True]
    found = pairs_of(data["cells"])
    screened: dict[tuple, list] = {}
    for entry in kept:
        if entry["kind"] == "screening":
            for words, pairs in entry["pairs"]:
                screened.setdefault((*entry["cell"], *words), []).extend(pairs)
    for key, pairs in screened.items():
        assert found[key][: len(pairs)] == pairs  # nothing lost, nothing measured again
    assert not journal_path(rules).exists()
    assert len(Rules.load(str(rules))) > 0


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, float, subprocess.CompletedProcess[str]]:
    """A sweep of four seconds: its rules file, how long it took, what it said."""
    rules = tmp_path_factory.mktemp("swept") / "rules.csv"
    begun = time.monotonic()
    done = run(command("sweep", *SMALL, "--budget", 4, "-o", rules))
    return rules, time.monotonic() - begun, done


def test_a_sweep_writes_rules_and_evidence(swept):
    path, _, done = swept
    assert done.returncode == 0, done.stdout + done.stderr
    rules = Rules.load(str(path))
    said = dict(rules.provenance)
    assert (said["ranks"], said["nodes"]) == ("2", "1")
    assert said["measured"] == "all_reduce, gather; 1K to 64K; float32"
    assert {"written_by", "date", "machine", "engine", "load", "evidence"} <= said.keys()
    evidence = load(evidence_path(path))
    assert set(evidence.records) == {
        Cell(name, size)
        for name in ("all_reduce", "gather")
        for size in (1 << 10, 1 << 13, 1 << 16)
    }
    record = evidence.records[Cell("all_reduce", 1 << 16)]
    rival = {choice.algorithm for trial in record.trials for choice in trial.candidate.choices}
    known = rival | {record.default.algorithm} | {one.algorithm for one in record.default_aliases}
    assert known == {"direct", "ring", "two_shot", "halving_doubling"}
    assert not any(trial.wrong for one in evidence.records.values() for trial in one.trials)
    assert all(
        pair.default_us > 0 and pair.candidate_us > 0
        for one in evidence.records.values()
        for trial in one.trials
        for pair in trial.screening
    )
    tuned = [row for row in rules.rows if row.ranks == 2]
    assert len(tuned) == len(evidence.intervals)


def test_the_budget_is_kept_roughly(swept):
    path, seconds, _ = swept
    assert load(evidence_path(path)).spent <= 4.5
    assert seconds < 4 + 5  # Python's own start and end, on a busy machine


def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path):
    rules = tmp_path / "rules.csv"
    with started(rules) as process:
        process.send_signal(signal.SIGINT)
        status, said = ended(process)
    assert status == 130
    assert "Interrupted after" in said
    assert f"'{journal_path(rules)}'; the same command goes on from there" in said
    assert not rules.exists()
    kept = entries(journal_path(rules))
    other = run(command("sweep", *SMALL, "--repeats", 200, "--seed", 9, "-o", rules))
    assert other.returncode == 4
    assert "seed was 1 and is 9" in other.stderr
    resumed(rules, kept)


def test_a_killed_lead_takes_its_ranks_along_and_loses_nothing(tmp_path):
    rules = tmp_path / "rules.csv"
    with started(rules) as process:
        (rank,) = children(process.pid)
        process.kill()
        assert ended(process)[0] == -signal.SIGKILL
        kept = entries(journal_path(rules))
        end = time.monotonic() + 5
        while Path(f"/proc/{rank}").exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert not Path(f"/proc/{rank}").exists()
    resumed(rules, kept)


def test_a_killed_rank_is_told_and_nothing_is_lost(tmp_path):
    rules = tmp_path / "rules.csv"
    with started(rules) as process:
        (rank,) = children(process.pid)
        os.kill(rank, signal.SIGKILL)
        status, said = ended(process)
    assert status == 3
    (line,) = [line for line in said.splitlines() if "Rank 1" in line]
    assert "accl-tune: Rank 1 was killed by signal 9 while it measured." in line
    assert f"What was measured is in '{journal_path(rules)}'" in line
    assert "the same command goes on from there" in line
    resumed(rules, entries(journal_path(rules)))


def test_a_request_to_the_whole_group_ends_it_in_good_order(tmp_path):
    """As service managers and `timeout` do it."""
    rules = tmp_path / "rules.csv"
    with started(rules) as process:
        os.killpg(process.pid, signal.SIGTERM)
        status, said = ended(process)
    assert status == 130
    assert "the same command goes on from there" in said


# ---- under launchers ----


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_under_a_launcher(tmp_path, launcher):
    rules = tmp_path / "rules.csv"
    words = ["-m", "accl_tune", "sweep", *SMALL, "--budget", "6", "-o", str(rules)]
    if launcher == "mpirun":
        pytest.importorskip("mpi4py")
        mpirun = Path(sys.executable).with_name("mpirun")
        if not mpirun.exists():
            pytest.skip("mpirun is not installed beside this Python")
        how = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    else:
        pytest.importorskip("torch")
        how = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        how += ["--nproc-per-node", "2"]
    done = run([*how, *words], seconds=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"rules     {rules}") == 1  # rank 0 alone speaks
    assert dict(Rules.load(str(rules)).provenance)["ranks"] == "2"
    assert load(evidence_path(rules)).records


# ---- wrong data, calls that fail ----


class Flawed:
    """A call that is ten times as fast, and leaves one wrong element."""

    def __init__(self, call, buffers) -> None:
        self._call, self._buffers = call, buffers

    def run(self):
        report = self._call.run()
        self._buffers.out[-1] += 1
        return report

    def time(self, iterations):
        return self._call.time(iterations) / 10


@pytest.mark.parametrize("where", ["out", "x"])
def test_a_candidate_with_wrong_data_is_rejected_recorded_and_never_chosen(
    tmp_path, monkeypatch, capsys, where
):
    rules = tmp_path / "rules.csv"
    honest = Bench.prepare

    class SpoilsInput(Flawed):
        def run(self):
            report = self._call.run()
            self._buffers.x[0] += 1
            return report

    flawed = {"out": Flawed, "x": SpoilsInput}[where]

    def prepare(bench, job, buffers, choice):
        call = honest(bench, job, buffers, choice)
        return flawed(call, buffers) if len(choice) > 1 and choice[0] == "ring" else call

    monkeypatch.setattr(Bench, "prepare", prepare)  # on rank 0; the other rank is honest
    sizes = ["-b", "32K", "-e", "128K", "-f", "4", "--budget", "3"]
    assert main(["sweep", "--collectives", "all_reduce", *sizes, "-o", str(rules)]) == 0
    assert "candidates were rejected" in capsys.readouterr().out
    evidence = load(evidence_path(rules))
    seen = 0
    for record in evidence.ordered():
        for trial in record.trials:
            if trial.candidate.choice.algorithm == "ring":
                seen += 1
                assert trial.wrong
                assert "wrong element" in trial.out
                assert trial.screening == trial.confirming == []
            else:
                assert not trial.wrong
    assert seen > 0
    assert all(one.choice.algorithm != "ring" for one in evidence.intervals)
    assert all(row.algorithm != "ring" for row in Rules.load(str(rules)).rows)
    size = str(evidence.ordered()[-1].cell.bytes)
    assert main(["explain", str(rules), "all_reduce", "--bytes", size, "--ranks", "2"]) == 0
    assert "rejected ring/" in capsys.readouterr().out


class Deserter:
    """A call in which this rank does not take part."""

    def run(self):
        return {}

    def time(self, iterations):
        return 0.0


class Deserting(Bench):
    def prepare(self, job, buffers, choice):
        if len(choice) > 1 and choice[0] == "ring":
            return Deserter()
        return super().prepare(job, buffers, choice)


@contextmanager
def led(second: type[Bench], timeout: float) -> Iterator[Lead]:
    """Two ranks as threads; the second rank's bench is of the given kind."""
    store = HashStore()

    def connect(rank: int):
        return lambda name, rules: Communicator.from_store(
            store, rank, 2, name=name, rules=rules, timeout=20
        )

    def serve() -> None:
        bench = second(connect(1))
        bench.serve()
        bench.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    lead = Lead(Bench(connect(0)), "float32", timeout=timeout)
    try:
        yield lead
    finally:
        lead.stop()
        thread.join(20)
    assert not thread.is_alive()


def test_a_candidate_that_hangs_is_a_complaint_and_the_ranks_go_on():
    cell = Cell("all_reduce", 1 << 14)
    ring, direct = Choice("ring", "bulk"), Choice("direct", "bulk")
    with led(Deserting, timeout=0.5) as lead:
        complaints = lead.check(cell, [DEFAULT, direct, ring])
        assert complaints[:2] == ["", ""]
        assert complaints[2].startswith("the call failed: ")
        with pytest.raises(ChoiceFailed) as failed:
            lead.pairs(cell, [(ring, True)], 3)
        assert failed.value.side == ring
        (pair,) = lead.pairs(cell, [(direct, False)], 3)
        assert pair.default_us > 0
        assert not pair.default_first


def test_a_choice_that_the_engine_refuses_is_a_complaint():
    with led(Bench, timeout=10) as lead:
        cell = Cell("gather", 1 << 12)
        complaints = lead.check(cell, [DEFAULT, Choice("ring", "bulk"), Choice("direct", "bulk")])
    assert complaints[0] == complaints[2] == ""
    assert complaints[1].startswith("the engine refuses it: ")
    assert "'ring'" in complaints[1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint16", "complex64"])
def test_every_candidate_of_every_collective_is_right(dtype):
    from accl_tune.measure.data import legal_bytes
    from accl_tune.words import COLLECTIVES

    with led(Bench, timeout=10) as lead:
        for name in COLLECTIVES:
            for size in (8, 3000, 70_000):
                cell = Cell(name, legal_bytes(name, size, 2, lead.element_bytes))
                field = lead.field(cell)
                choices = [candidate.choice for candidate in field.candidates]
                assert lead.check(cell, [DEFAULT, *choices]) == [""] * (1 + len(choices))
