"""Rules that are missing or broken leave the job unharmed, with one warning."""

import os
from pathlib import Path

import pytest
from nccl_caller import LL, RING, SUCCESS, WARN, Tuner, chosen, legal

CONTRACTS = Path(__file__).parents[1] / "contracts" / "rules"
BAD = [
    line.split("\t")
    for line in (CONTRACTS / "bad.tsv").read_text().splitlines()
    if line and not line.startswith("#")
]
GOOD = [
    line.split("\t")[0]
    for line in (CONTRACTS / "good.tsv").read_text().splitlines()
    if line and not line.startswith("#")
]


def unharmed(plugin, communicator, *words):
    """NCCL is left alone by each version, with one warning a process."""
    for version in (4, 5, 6):
        tuner = Tuner(plugin, version=version, communicator=communicator)
        assert tuner.result == SUCCESS
        for function in range(6):
            assert tuner.ask(function, bytes=1024) == (legal(), 0)
        assert tuner.chunk(4096) == 4096
        assert tuner.finalize() == SUCCESS
    assert len(plugin.said) == 1
    level, text = plugin.said[0]
    assert level == WARN
    for word in ("NCCL chooses by itself", *words):
        assert word in text


@pytest.mark.parametrize(("file", "line", "words"), BAD, ids=[row[0] for row in BAD])
def test_every_bad_file(plugin, rules, communicator, file, line, words):
    path = rules((CONTRACTS / file).read_bytes(), "bad.csv")
    unharmed(plugin, communicator, f"{path}:{line}", *(word for word in words.split("|") if word))


@pytest.mark.parametrize("file", GOOD)
def test_every_good_file_is_taken_without_a_warning(plugin, rules, communicator, file):
    rules((CONTRACTS / file).read_bytes())
    tuner = Tuner(plugin, communicator=communicator)
    assert tuner.result == SUCCESS
    tuner.ask()
    assert plugin.warnings() == []


def test_a_missing_file(plugin, communicator, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCL_RULES", str(tmp_path / "nowhere.csv"))
    plugin.reload()
    unharmed(plugin, communicator, "nowhere.csv", "does not exist")


def test_a_directory_in_place_of_a_file(plugin, communicator, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCL_RULES", str(tmp_path))
    plugin.reload()
    unharmed(plugin, communicator, str(tmp_path), "is a directory")


def test_a_pipe_does_not_block(plugin, communicator, monkeypatch, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("ACCL_RULES", str(tmp_path / "pipe"))
    plugin.reload()
    unharmed(plugin, communicator, "is a pipe")


def test_a_wrong_value_elsewhere_in_the_environment(plugin, rules, communicator, monkeypatch):
    rules("allreduce,0,-1,ring,ll,-1,-1,-1,-1,-1\n")
    monkeypatch.setenv("ACCL_LOG", "loud")
    plugin.reload()
    unharmed(plugin, communicator, "ACCL_LOG", "'loud'")


def test_a_file_that_is_mended_later_is_not_taken(plugin, rules, communicator):
    """What was read holds for the process: ranks must not come to differ over time."""
    path = rules("nonsense\n")
    Tuner(plugin, communicator=communicator)
    path.write_text("allreduce,0,-1,ring,ll,-1,-1,-1,-1,-1\n")
    tuner = Tuner(plugin, communicator=communicator)
    assert tuner.ask() == (legal(), 0)
    assert len(plugin.warnings()) == 1


@pytest.mark.parametrize("debug", [None, "VERSION", "WARN", "info", "TRACE"])
def test_the_warning_is_seen_once_whatever_nccl_shows(
    plugin, rules, communicator, monkeypatch, capfd, debug
):
    """NCCL's logger drops warnings unless NCCL_DEBUG asks for them; then stderr has it."""
    if debug:
        monkeypatch.setenv("NCCL_DEBUG", debug)
    rules("nonsense\n")
    Tuner(plugin, communicator=communicator)
    shown = debug in ("WARN", "info", "TRACE")
    assert len(plugin.warnings()) == 1
    assert capfd.readouterr().err.count("NCCL chooses by itself") == (0 if shown else 1)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_without_a_logger_stderr_serves(plugin, rules, communicator, capfd, version):
    rules("nonsense\n")
    tuner = Tuner(plugin, version=version, communicator=communicator, logger=None)
    assert tuner.result == SUCCESS
    assert tuner.ask() == (legal(), 0)
    assert plugin.said == []
    assert capfd.readouterr().err.count("NCCL chooses by itself") == 1


def test_a_percent_sign_is_no_format(plugin, rules, communicator):
    rules("allreduce,0,-1,%s%n%d,ll,-1,-1,-1,-1,-1\n")
    Tuner(plugin, communicator=communicator)
    assert "%s%n%d" in plugin.warnings()[0]


def test_ten_thousand_rules(plugin, rules, communicator):
    rows = [f"allreduce,{i * 2},{i * 2},ring,ll,-1,-1,-1,-1,-1" for i in range(9_999)]
    rules("\n".join(rows) + "\n")
    tuner = Tuner(plugin, communicator=communicator)
    assert chosen(tuner.ask(bytes=2 * 9_998)[0]) == (RING, LL)
    assert plugin.last().line == 9_999
