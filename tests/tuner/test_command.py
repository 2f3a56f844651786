"""The command: arguments, exit statuses, messages, files. Sweeps here run on a simulated machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from accl_py import Rules
from accl_tune import cli
from accl_tune.cli import main
from accl_tune.errors import MeasureError
from accl_tune.evidence import evidence_path, journal_path, load
from accl_tune.model import Cell, Choice
from simulated import Machine, normal

CONTRACTS = Path(__file__).parent.parent / "contracts" / "rules"
RING = Choice("ring", "bulk", 1 << 18)
TWO_SHOT = Choice("two_shot", "bulk")


def table(name: str) -> list[list[str]]:
    lines = (CONTRACTS / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def gains(cell: Cell) -> dict[Choice, float]:
    """Ring wins from 64K on, two_shot below 1K; nothing between."""
    return {
        RING: 1.4 if cell.bytes >= 1 << 16 else 0.7,
        TWO_SHOT: 1.2 if cell.bytes < 1 << 10 else 0.8,
    }


@pytest.fixture
def simulated(monkeypatch):
    """Puts a simulated machine in place of local ranks; returns how to choose another."""
    chosen: dict[str, Machine] = {"machine": Machine(gains, normal(0.02))}

    @contextmanager
    def lead_local(ranks, dtype):
        yield chosen["machine"]

    monkeypatch.setattr(cli, "lead_local", lead_local)
    return lambda machine: chosen.update(machine=machine)


def sweep(folder: Path, *more: str) -> int:
    return main(
        ["sweep", "--collectives", "all_reduce", "-b", "64", "-e", "1M", "-f", "4"]
        + ["-o", str(folder / "rules.csv"), *more]
    )


@pytest.fixture
def swept(tmp_path, simulated, capsys):
    """The rules file of a simulated sweep."""
    assert sweep(tmp_path) == 0
    capsys.readouterr()
    return tmp_path / "rules.csv"


# ---- arguments ----

SWEEP = ["sweep", "-o", "x.csv"]
EXPLAIN = ["explain", "rules.csv", "all_reduce", "--bytes", "64K", "--ranks", "2"]
TOO_MUCH = "For sizes of 512T 2 ranks need"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["command", "accl-tune --help"]),
        (["frob"], ["'frob'", "'sweep'", "'explain'"]),
        (["sweep"], ["-o/--output", "accl-tune sweep --help"]),
        ([*SWEEP, "--ranks", "1"], ["--ranks is 1", "at least 2"]),
        ([*SWEEP, "--ranks", "two"], ["--ranks", "'two'", "int"]),
        ([*SWEEP, "--ranks", "5000"], ["--ranks is 5000", "at most", "cores"]),
        ([*SWEEP, "-b", "8Q"], ["'8Q'", "64K"]),
        ([*SWEEP, "-b", "0"], ["-b is 0", "at least 1"]),
        ([*SWEEP, "-b", "1M", "-e", "1K"], ["-e is 1K", "-b, 1M"]),
        ([*SWEEP, "-e", "900T"], [TOO_MUCH, "this machine has", "smaller -e"]),
        ([*SWEEP, "-e", "9999999T"], ["'9999999T'", "too large"]),
        ([*SWEEP, "-f", "1"], ["-f is 1", "above 1"]),
        ([*SWEEP, "-f", "nan"], ["-f is nan", "above 1"]),
        ([*SWEEP, "-f", "inf"], ["-f is inf", "above 1"]),
        ([*SWEEP, "--collectives", "frob"], ["'frob'", "all_reduce", "scatter"]),
        ([*SWEEP, "--collectives", "barrier"], ["'barrier'", "nothing to tune"]),
        ([*SWEEP, "--collectives"], ["--collectives", "at least one"]),
        ([*SWEEP, "--dtype", "int3"], ["'int3'", "float32"]),
        ([*SWEEP, "--min-gain", "200%"], ["'200%'", "3% or 0.03"]),
        ([*SWEEP, "--min-gain", "much"], ["'much'", "3% or 0.03"]),
        ([*SWEEP, "--budget", "0"], ["--budget is 0", "above 0"]),
        ([*SWEEP, "--budget", "inf"], ["--budget is inf", "above 0"]),
        ([*SWEEP, "--repeats", "2"], ["--repeats is 2", "at least 3"]),
        ([*SWEEP, "--seed", "x"], ["--seed", "'x'"]),
        ([*SWEEP, "--resume", "--fresh"], ["--fresh", "--resume"]),
        (["sweep", "-o", "no/x.csv"], ["'no' is no directory", "'no/x.csv'"]),
        (["sweep", "-o", "."], ["'.' is a directory", "rules.csv"]),
        (["sweep", "-o", "x.json"], ["'x.json'", "'.json'", "rules.csv"]),
        (["demo", "--again", "-1"], ["--again is -1", "above 0"]),
        (["demo", "--ranks", "0"], ["--ranks is 0", "at least 2"]),
        (["demo", "--out", "rules.csv"], ["'rules.csv'", "folder"]),
        (["check"], ["rules", "accl-tune check --help"]),
        (["explain", "rules.csv"], ["collective", "--bytes", "--ranks"]),
        ([*EXPLAIN, "--ranks", "0"], ["--ranks is 0", "at least 1"]),
        ([*EXPLAIN, "--nodes", "0"], ["--nodes is 0", "at least 1"]),
        ([*EXPLAIN, "--nodes", "3"], ["--nodes is 3", "--ranks, 2"]),
        ([*EXPLAIN, "--bytes", "-1"], ["'-1' is no size", "64K"]),
        ([*EXPLAIN, "--bytes", "1.5K"], ["'1.5K'", "64K"]),
        ([*EXPLAIN, "--engine", "tpu"], ["'tpu'", "'cpu'", "'nccl'"]),
        (["explain", "rules.csv", "sum", "--bytes", "8", "--ranks", "2"], ["'sum'", "broadcast"]),
        (["plot", "rules.evidence.json"], ["-o/--output"]),
        (["plugin", "rules.csv", "other.csv"], ["other.csv"]),
    ],
)
def test_a_wrong_argument_is_status_2_and_a_sentence(
    arguments, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("rules.csv").write_text("allreduce,0,-1,ring,bulk,-1,-1,-1,-1,-1,cpu\n")
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("accl-tune: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["rules.csv"]


@pytest.mark.parametrize("command", ["sweep", "check", "explain", "plot", "plugin", "demo"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: accl-tune {command}" in capsys.readouterr().out


def test_help_lists_the_exit_statuses(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for status in ("0", "1", "2", "3", "4", "130"):
        assert f"\n  {status} " in said


# ---- check ----


@pytest.mark.parametrize("name, rows, lines, digest", table("good.tsv"))
def test_check_takes_what_the_contract_takes(name, rows, lines, digest, capsys):
    path = CONTRACTS / name
    assert main(["check", str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"{path}: valid, {rows} rule")
    assert said.out.endswith(f"digest {digest}\n")


@pytest.mark.parametrize("name, line, words", table("bad.tsv"))
def test_check_refuses_what_the_contract_refuses(name, line, words, capsys):
    path = CONTRACTS / name
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{path}:{line}:" in said.err
    for word in words.split("|"):
        assert word in said.err


def test_check_goes_on_after_a_bad_file(capsys):
    files = ["good/empty.csv", "bad/repeated.csv", "missing.csv", "good/crlf.csv"]
    assert main(["check", *(str(CONTRACTS / name) for name in files)]) == 1
    said = capsys.readouterr()
    assert said.out.count(": valid, ") == 2
    assert "bad/repeated.csv:" in said.err
    assert "missing.csv' does not exist" in said.err


def test_check_of_what_is_no_file(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 1
    assert "is a directory" in capsys.readouterr().err


# ---- sweep: files ----


def test_a_sweep_writes_rules_and_evidence(swept, capsys):
    rules = Rules.load(str(swept))
    tuned = [row for row in rules.rows if row.ranks == 2]
    assert [(row.algorithm, row.protocol, row.chunk_bytes) for row in tuned] == [
        ("two_shot", "bulk", 0),
        ("ring", "bulk", 1 << 18),
    ]
    assert all(row.nodes == 1 for row in tuned)
    small, large = tuned
    assert (small.min_bytes, large.max_bytes) == (0, 1 << 20)
    assert 256 <= small.max_bytes < 1024  # 64 and 256 gain, 1K does not
    assert 1 << 14 < large.min_bytes <= 1 << 16  # 64K gains, 16K does not
    defaults = [row.format() for row in Rules.defaults().rows if row.engine == "cpu"]
    assert [row.format() for row in rules.rows][2:] == defaults
    said = dict(rules.provenance)
    assert said["ranks"] == "2"
    assert said["nodes"] == "1"
    assert said["measured"] == "all_reduce; 64 to 1M; float32"
    assert said["evidence"] == "rules.evidence.json"
    assert said["written_by"].startswith("accl-tune ")
    assert not journal_path(swept).exists()
    assert main(["check", str(swept)]) == 0
    assert f"{len(rules)} rules ({len(rules)} for cpu)" in capsys.readouterr().out


def test_the_summary_names_rules_files_and_what_is_next(tmp_path, simulated, capsys):
    assert sweep(tmp_path, "--seed", "3") == 0
    said = capsys.readouterr()
    assert "ring/bulk/256K" in said.out
    assert "times as fast" in said.out
    assert f"rules     {tmp_path / 'rules.csv'}" in said.out
    assert f"evidence  {tmp_path / 'rules.evidence.json'}" in said.out
    assert "accl-tune explain" in said.out
    assert "100%" in said.err  # progress goes to stderr


WORDS = (str, str, int)  # a choice
PAIR = (float, float, int)
SHAPE = {
    "format": str,
    "tool": {"accl_tune": str, "accl_py": str, "library": str, "python": str, "numpy": str},
    "machine": {
        "cpu": str,
        "cores": int,
        "usable_cores": int,
        "kernel": str,
        "governor": (None, str),
    },
    "parameters": {
        "ranks": int,
        "nodes": int,
        "collectives": [str],
        "sizes": [int],
        "dtype": str,
        "min_gain": float,
        "repeats": int,
        "seed": int,
    },
    "sessions": [{"started": str, "resumed": bool}],
    "spent_seconds": float,
    "foreign_cores": (None, float),
    "pair": [str],
    "cells": [
        {
            "cell": [(str, int)],
            "default": [(str, int)],
            "default_aliases": [[(str, int)]],
            "iterations": int,
            "unmeasured": str,
            "candidates": [
                {
                    "choice": [(str, int)],
                    "aliases": [[(str, int)]],
                    "out": str,
                    "wrong": bool,
                    "screening": [[(float, int)]],
                    "confirming": [[(float, int)]],
                }
            ],
            "finalist": (None, list),
            "verdict": (
                None,
                {
                    "level": str,
                    "why": str,
                    "pairs": int,
                    "gain": float,
                    "low": float,
                    "high": float,
                    "p": float,
                    "adjusted_p": float,
                },
            ),
        }
    ],
    "rules": [
        {
            "collective": str,
            "choice": [(str, int)],
            "min_bytes": int,
            "max_bytes": int,
            "cells": [int],
        }
    ],
    "remeasured": [dict],
}


def misfits(value, shape, where="evidence"):
    """What in a JSON value does not have its shape; keys that are too many count too."""
    if isinstance(shape, tuple):
        if not any(not list(misfits(value, one, where)) for one in shape):
            yield f"{where}: {value!r} is none of {shape}"
    elif shape is None:
        if value is not None:
            yield f"{where}: {value!r} is not null"
    elif isinstance(shape, dict):
        if not isinstance(value, dict) or set(value) != set(shape):
            yield f"{where}: {value!r} does not have the keys {sorted(shape)}"
            return
        for key, part in shape.items():
            yield from misfits(value[key], part, f"{where}.{key}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for index, one in enumerate(value):
            yield from misfits(one, shape[0], f"{where}[{index}]")
    elif type(value) is not shape:
        yield f"{where}: {value!r} is no {shape.__name__}"


def test_the_evidence_has_its_form_and_every_sample(swept):
    data = json.loads(evidence_path(swept).read_text())
    assert list(misfits(data, SHAPE)) == []
    assert data["format"] == "accl-tune evidence 1"
    assert data["pair"] == ["default_us", "candidate_us", "default_first"]
    assert [cell["cell"][1] for cell in data["cells"]] == data["parameters"]["sizes"]
    for cell in data["cells"]:
        assert all(trial["screening"] for trial in cell["candidates"])
        if cell["verdict"]["level"] == "strong":
            (finalist,) = [t for t in cell["candidates"] if t["choice"] == cell["finalist"]]
            assert len(finalist["confirming"]) == cell["verdict"]["pairs"] >= 16
    assert load(evidence_path(swept)).to_json() == data


def test_verdicts_follow_from_the_samples_in_the_file(swept):
    """Whoever has the evidence can decide anew, and comes to the same rules."""
    from accl_tune.decide.verdicts import Proof
    from accl_tune.measure.sweep import conclude

    evidence = load(evidence_path(swept))
    before = [(one.choice, one.min_bytes, one.max_bytes) for one in evidence.intervals]
    conclude(evidence, Proof())
    assert [(one.choice, one.min_bytes, one.max_bytes) for one in evidence.intervals] == before


# ---- sweep: interrupted, resumed ----


class Impatient(Machine):
    """Sends this process a signal after so many pairs."""

    def pairs(self, cell, order, iterations):
        result = super().pairs(cell, order, iterations)
        self.left = getattr(self, "left", 40) - len(order)
        if self.left <= 0:
            self.left = 1 << 60
            os.kill(os.getpid(), signal.SIGINT)
        return result


@pytest.fixture
def interrupted(tmp_path, simulated, capsys):
    """The journal of a sweep that was interrupted."""
    simulated(Impatient(gains, normal(0.02)))
    assert sweep(tmp_path) == 130
    said = capsys.readouterr().err
    journal = journal_path(tmp_path / "rules.csv")
    assert "Interrupted after" in said
    assert f"'{journal}'; the same command goes on from there" in said
    assert not (tmp_path / "rules.csv").exists()
    simulated(Machine(gains, normal(0.02), seed=2))
    return journal


def screened(path: Path) -> dict[tuple, list]:
    """The screening pairs of each candidate in a journal."""
    result: dict[tuple, list] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "screening":
            for words, pairs in entry["pairs"]:
                result.setdefault((*entry["cell"], *words), []).extend(pairs)
    return result


def test_an_interrupted_sweep_goes_on_where_it_stopped(interrupted, tmp_path, capsys):
    kept = screened(interrupted)
    assert sum(map(len, kept.values())) >= 40
    assert sweep(tmp_path) == 0
    assert f"resuming '{interrupted}'" in capsys.readouterr().err
    data = json.loads(evidence_path(tmp_path / "rules.csv").read_text())
    assert [session["resumed"] for session in data["sessions"]] == [False, True]
    found = {
        (*cell["cell"], *trial["choice"]): trial["screening"]
        for cell in data["cells"]
        for trial in cell["candidates"]
    }
    for key, pairs in kept.items():
        assert found[key][: len(pairs)] == pairs  # nothing lost, nothing measured again
    assert not interrupted.exists()
    assert Rules.load(str(tmp_path / "rules.csv"))


def test_another_budget_may_go_on(interrupted, tmp_path, capsys):
    assert sweep(tmp_path, "--budget", "500", "--resume") == 0
    assert "resuming" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more, words",
    [
        (["--min-gain", "5%"], "min_gain was 0.03 and is 0.05"),
        (["--seed", "2"], "seed was 1 and is 2"),
        (["-e", "4M"], "sizes was [64, 256"),
        (["--collectives", "reduce"], "collectives was ['all_reduce'] and is ['reduce']"),
        (["--dtype", "int8"], "dtype was float32 and is int8"),
    ],
)
def test_other_parameters_cannot_go_on(interrupted, tmp_path, capsys, more, words):
    before = interrupted.read_bytes()
    assert sweep(tmp_path, *more) == 4
    said = capsys.readouterr().err
    assert "cannot go on here" in said
    assert words in said
    assert "--fresh" in said
    assert interrupted.read_bytes() == before


def test_another_machine_cannot_go_on(interrupted, tmp_path, capsys, monkeypatch):
    here = cli.machine()
    monkeypatch.setattr(cli, "machine", lambda: {**here, "cpu": "another processor"})
    assert sweep(tmp_path) == 4
    said = capsys.readouterr().err
    assert f"cpu was {here['cpu']} and is another processor" in said
    assert "--fresh" in said


def test_another_build_cannot_go_on(interrupted, tmp_path, capsys, monkeypatch):
    here = cli.versions()
    monkeypatch.setattr(cli, "versions", lambda: {**here, "library": "0123456789ab"})
    assert sweep(tmp_path) == 4
    assert f"library was {here['library']} and is 0123456789ab" in capsys.readouterr().err


def test_fresh_starts_anew(interrupted, tmp_path, capsys):
    assert sweep(tmp_path, "--fresh", "--min-gain", "5%") == 0
    assert "resuming" not in capsys.readouterr().err
    data = json.loads(evidence_path(tmp_path / "rules.csv").read_text())
    assert len(data["sessions"]) == 1


def test_resume_without_a_journal(tmp_path, simulated, capsys):
    assert sweep(tmp_path, "--resume") == 4
    said = capsys.readouterr().err
    assert "nothing to resume" in said
    assert "rules.evidence.jsonl' does not exist" in said


def test_a_line_that_was_cut_short_is_dropped(interrupted, tmp_path, capsys):
    text = interrupted.read_text()
    interrupted.write_text(text + '{"kind":"screening","cell":["all_re')
    assert sweep(tmp_path) == 0
    assert "resuming" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda text: "", "is empty; start anew with --fresh"),
        (lambda text: "{}\n" + text, ".jsonl:1: 'kind' is missing; damaged"),
        (lambda text: text.replace("\n", "\n{oops}\n", 1), ".jsonl:2: "),
        (lambda text: text + '{"kind":"dance"}\n', "an entry of kind 'dance' is unknown"),
        (lambda text: text.replace("evidence 1", "evidence 9", 1), "format 'accl-tune evidence 1'"),
    ],
)
def test_a_damaged_journal_is_refused(interrupted, tmp_path, capsys, damage, words):
    interrupted.write_text(damage(interrupted.read_text()))
    assert sweep(tmp_path) == 4
    said = capsys.readouterr().err
    assert words in said
    assert "--fresh" in said
    assert said.count("\n") == 1


def test_files_that_cannot_be_written(tmp_path, simulated, capsys):
    evidence_path(tmp_path / "rules.csv").mkdir()
    assert sweep(tmp_path) == 4
    assert "rules.evidence.json' could not be written: Is a directory" in capsys.readouterr().err
    assert journal_path(tmp_path / "rules.csv").exists()  # what was measured is not lost
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_ranks_that_fail_are_status_3(tmp_path, monkeypatch, capsys):
    class Dead(Machine):
        def pairs(self, cell, order, iterations):
            raise MeasureError("Rank 1 was killed by signal 9 while it measured.")

    @contextmanager
    def lead_local(ranks, dtype):
        yield Dead(gains, normal(0.02))

    monkeypatch.setattr(cli, "lead_local", lead_local)
    assert sweep(tmp_path) == 3
    said = capsys.readouterr().err
    assert "Rank 1 was killed by signal 9 while it measured. What was measured is in" in said
    assert "the same command goes on from there." in said


def test_a_default_that_errs_ends_the_sweep(tmp_path, simulated, capsys):
    class Errs(Machine):
        def check(self, cell, sides):
            return ["7 wrong elements" if side is None else "" for side in sides]

    simulated(Errs(gains, normal(0.02)))
    assert sweep(tmp_path) == 3
    said = capsys.readouterr().err
    assert "the default itself, direct/bulk, is wrong: 7 wrong elements" in said
    assert not (tmp_path / "rules.csv").exists()


def test_the_launchers_number_of_ranks_counts(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert sweep(tmp_path, "--ranks", "3") == 2
    assert "--ranks is 3, but the launcher started 4; leave it out" in capsys.readouterr().err
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "starts its own ranks" in capsys.readouterr().err
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "first")
    assert sweep(tmp_path) == 2
    assert "OMPI_COMM_WORLD_RANK is 'first'" in capsys.readouterr().err


# ---- explain ----


def explained(capsys, *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_explain_shows_rule_reason_default_and_evidence(swept, capsys):
    said = explained(capsys, str(swept), "all_reduce", "--bytes", "256K", "--ranks", "2")
    line = next(
        number
        for number, row in enumerate(swept.read_text().splitlines(), 1)
        if row.startswith("allreduce") and ",ring," in row
    )
    assert said.startswith("all_reduce of 256K on 2 ranks, 1 node, engine cpu\n")
    assert f"{swept}:{line}: allreduce," in said
    assert "chooses algorithm ring, protocol bulk, chunks of 256K" in said
    assert "since it is the first for all_reduce on cpu" in said
    assert "1 earlier for all_reduce: line" in said
    assert "without the file: the default, algorithm two_shot, protocol bulk" in said
    assert "256K: ring/bulk/256K is 1." in said
    assert "times as fast as direct/bulk, 95 % interval" in said
    assert "shown; the gain is significant" in said


def test_explain_between_measured_sizes_shows_both(swept, capsys):
    said = explained(capsys, str(swept), "all_reduce", "--bytes", "8K", "--ranks", "2")
    assert "which is what the built-in defaults choose too" in said
    assert "    4K: default; no candidate looked better than the default" in said
    assert "    16K: default; no candidate looked better than the default" in said


def test_explain_reads_both_spellings_and_units(swept, capsys):
    told = {
        explained(capsys, str(swept), name, "--bytes", size, "--ranks", "2")
        for name in ("all_reduce", "allreduce", "AllReduce", "all-reduce")
        for size in ("1M", "1024K", "1048576", "1m", "1MiB")
    }
    assert len(told) == 1
    far = explained(capsys, str(swept), "all_reduce", "--bytes", "2G", "--ranks", "2")
    assert far.startswith("all_reduce of 2G on 2 ranks")
    assert "without the file" not in far  # beyond what was measured: the defaults


def test_explain_of_another_shape_says_that_the_evidence_does_not_reach(swept, capsys):
    said = explained(
        capsys, str(swept), "all_reduce", "--bytes", "1M", "--ranks", "4", "--nodes", "2"
    )
    assert "on 4 ranks, 2 nodes, engine cpu" in said
    assert "is for 2 ranks, 1 node" in said
    assert "measured on 2 ranks and 1 node, and says nothing of this call" in said
    said = explained(capsys, str(swept), "gather", "--bytes", "1M", "--ranks", "2")
    assert "evidence: gather was not measured" in said


def test_explain_without_evidence(tmp_path, capsys):
    path = tmp_path / "rules.csv"
    path.write_text(
        "# by hand\nallreduce,1024,4096,ring,bulk,-1,1,2,-1,-1,cpu,65536\n"
        "allreduce,8192,-1,-1,-1,-1,-1,-1,-1,-1,cpu\n"
        "allreduce,0,-1,tree,ll,2,-1,-1,-1,-1\n"
    )
    said = explained(capsys, str(path), "all_reduce", "--bytes", "2K", "--ranks", "2")
    assert "chooses algorithm ring, protocol bulk, chunks of 64K" in said
    assert "without the file: the default, algorithm direct, protocol inline" in said
    assert "evidence:" not in said
    said = explained(capsys, str(path), "all_reduce", "--bytes", "8", "--ranks", "2")
    assert f"no rule of {path} matches" in said
    assert "line 2 is for sizes 1024 to 4096" in said
    assert "line 3 is for sizes 8192 to any" in said
    assert "so: the engine's own choice, algorithm two_shot, protocol inline" in said
    said = explained(capsys, str(path), "all_reduce", "--bytes", "9K", "--ranks", "2")
    assert "chooses nothing: the engine's own choice" in said
    nccl = ["--ranks", "8", "--engine", "nccl"]
    said = explained(capsys, str(path), "all_reduce", "--bytes", "8", *nccl)
    assert "chooses algorithm tree, protocol ll, 2 channels" in said
    assert "otherwise: nccl's own choice" in said
    said = explained(capsys, str(path), "broadcast", "--bytes", "8", "--ranks", "2")
    assert "the file has none for broadcast on engine cpu; it has rules for all" in said


def test_explain_of_uneven_sizes(tmp_path, capsys):
    path = tmp_path / "rules.csv"
    path.write_text(
        "alltoall,0,4096,direct,inline,-1,-1,-1,-1,-1,cpu\n"
        "alltoall,0,-1,pairwise,bulk,-1,-1,-1,-1,-1,cpu\n"
    )
    query = ["all_to_all", "--bytes", "1K", "--ranks", "3"]
    assert "chooses algorithm direct" in explained(capsys, str(path), *query)
    said = explained(capsys, str(path), *query, "--uneven")
    assert "chooses algorithm pairwise" in said
    assert "uneven sizes match rules for all sizes only" in said


def test_explain_what_the_library_says(swept):
    """The engine's own matcher is asked, and nothing of ours stands between."""
    rules = Rules.load(str(swept))
    for size in (0, 64, 1 << 10, 1 << 16, 1 << 20, 1 << 30):
        rule = rules.match("all_reduce", size, 2)
        assert rule is not None
        assert rule.min_bytes <= size


def test_explain_of_bad_files(tmp_path, swept, capsys):
    query = ["all_reduce", "--bytes", "8", "--ranks", "2"]
    assert main(["explain", str(tmp_path / "no.csv"), *query]) == 1
    assert "no.csv' does not exist" in capsys.readouterr().err
    bad = CONTRACTS / "bad" / "repeated.csv"
    assert main(["explain", str(bad), *query]) == 1
    assert f"{bad}:" in capsys.readouterr().err
    evidence_path(swept).write_text("[]")
    assert main(["explain", str(swept), *query]) == 4
    assert "rules.evidence.json' is no evidence of accl-tune" in capsys.readouterr().err


# ---- plot ----


@pytest.mark.parametrize(
    "suffix, magic", [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")]
)
def test_plot(swept, tmp_path, capsys, suffix, magic):
    picture = tmp_path / f"tune{suffix}"
    assert main(["plot", str(evidence_path(swept)), "-o", str(picture)]) == 0
    assert capsys.readouterr().out == f"wrote {picture}\n"
    content = picture.read_bytes()
    assert content.startswith(magic)
    assert len(content) > 5000
    if suffix == ".svg":
        text = content.decode()
        for word in ("all_reduce: time, us", "all_reduce: busbw, GB/s", "by a rule", "default"):
            assert f"<!-- {word} -->" in text


def test_plot_refuses(swept, tmp_path, capsys):
    evidence = str(evidence_path(swept))
    assert main(["plot", evidence, "-o", str(tmp_path / "x.gif")]) == 2
    assert "'.gif'; expected one of: .png, .svg, .pdf" in capsys.readouterr().err
    assert main(["plot", evidence, "-o", str(tmp_path / "no" / "x.png")]) == 4
    assert "could not be written: No such file" in capsys.readouterr().err
    assert main(["plot", str(tmp_path / "no.json"), "-o", str(tmp_path / "x.png")]) == 4
    assert "no.json' could not be read: No such file" in capsys.readouterr().err
    assert main(["plot", str(swept), "-o", str(tmp_path / "x.png")]) == 4
    assert "is no evidence of accl-tune" in capsys.readouterr().err
    data = json.loads(evidence_path(swept).read_text())
    (tmp_path / "none.json").write_text(json.dumps({**data, "cells": [], "rules": []}))
    assert main(["plot", str(tmp_path / "none.json"), "-o", str(tmp_path / "x.png")]) == 4
    assert "has no samples" in capsys.readouterr().err
    (tmp_path / "old.json").write_text(json.dumps({**data, "format": "accl-tune evidence 0"}))
    assert main(["plot", str(tmp_path / "old.json"), "-o", str(tmp_path / "x.png")]) == 4
    assert "this version reads 'accl-tune evidence 1'" in capsys.readouterr().err


def test_plot_without_matplotlib(swept, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert main(["plot", str(evidence_path(swept)), "-o", str(tmp_path / "x.png")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
