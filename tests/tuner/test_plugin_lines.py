"""accl-tune plugin: what a shell makes of its lines, what it warns of, what it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import accl_py
import pytest
from accl_py import Rules
from accl_tune.cli import main
from accl_tune.rules import plugin as plugin_lines

PLUGIN = Path(accl_py.__file__).parent / "lib" / "libaccl-nccl-tuner.so"
FOR_NCCL = "allreduce,0,65536,ring,ll,-1,-1,-1,-1,-1\n"
FOR_THE_CPU = "allreduce,0,-1,ring,bulk,-1,-1,-1,-1,-1,cpu\n"
NAMES = ("NCCL_TUNER_PLUGIN", "ACCL_RULES", "ACCL_RULES_DIGEST")


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def evaluated(lines: str, quoted: bool = True) -> dict[str, str]:
    """Our variables in a shell that was given the lines by eval, and a witness of its silence."""
    eval_it = 'eval "$LINES"' if quoted else "eval $LINES"
    env = {"PATH": os.environ["PATH"], "LINES": lines}
    said = subprocess.run(
        ["sh", "-euc", f"{eval_it}; env -0"], env=env, capture_output=True, text=True, check=True
    )
    assert said.stderr == ""
    pairs = dict(item.split("=", 1) for item in said.stdout.split("\0") if "=" in item)
    assert "export" not in pairs
    return {name: pairs[name] for name in NAMES if name in pairs}


@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize(
    "name",
    ["rules.csv", "with space.csv", "it's $HOME.csv", "a;touch x.csv", "tab\tb.csv", "é.csv"],
)
def test_a_shell_gets_plugin_rules_and_digest(name, quoted, tmp_path, capsys):
    Path(name).write_text(FOR_NCCL + FOR_THE_CPU)
    assert main(["plugin", name]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    seen = evaluated(said.out, quoted=quoted or any(c in name for c in " \t"))
    assert seen == {
        "NCCL_TUNER_PLUGIN": str(PLUGIN),
        "ACCL_RULES": str(tmp_path / name),
        "ACCL_RULES_DIGEST": Rules.load(name).digest(),
    }
    assert PLUGIN.is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_line_break_in_a_name_ends_no_comment(tmp_path, capsys):
    name = "a\ntouch x\n.csv"
    Path(name).write_text(FOR_NCCL)
    assert main(["plugin", name]) == 0
    assert evaluated(capsys.readouterr().out)["ACCL_RULES"] == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_no_statement_is_a_comment(capsys):
    Path("rules.csv").write_text(FOR_NCCL)
    assert main(["plugin", "rules.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    exports, comments = lines[:3], lines[3:]
    assert [line.split("=")[0] for line in exports] == [f"export {name}" for name in NAMES]
    assert comments
    assert all(line.startswith("# ") for line in comments)
    assert " 1 rule " in comments[0]


def test_rules_for_others_alone_are_noted(capsys):
    Path("rules.csv").write_text(FOR_THE_CPU)
    assert main(["plugin", "rules.csv"]) == 0
    said = capsys.readouterr()
    assert said.err == (
        "accl-tune: No rule in 'rules.csv' is for nccl, so NCCL chooses by itself everywhere.\n"
    )
    assert evaluated(said.out).keys() == set(NAMES)


def test_another_tuner_that_makes_room_is_noted(capsys, monkeypatch):
    Path("rules.csv").write_text(FOR_NCCL)
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "ofi")
    assert main(["plugin", "rules.csv"]) == 0
    assert "NCCL_TUNER_PLUGIN was 'ofi'" in capsys.readouterr().err
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", str(PLUGIN))
    assert main(["plugin", "rules.csv"]) == 0
    assert capsys.readouterr().err == ""


def test_without_a_file_the_environment_names_it(tmp_path, capsys, monkeypatch):
    Path("rules.csv").write_text(FOR_NCCL)
    monkeypatch.setenv("ACCL_RULES", "rules.csv")
    assert main(["plugin"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert evaluated(said.out)["ACCL_RULES"] == str(tmp_path / "rules.csv")


def test_without_rules_there_is_the_plugin_alone(capsys):
    assert main(["plugin"]) == 0
    said = capsys.readouterr()
    assert "no rules yet" in said.err
    assert evaluated(said.out) == {"NCCL_TUNER_PLUGIN": str(PLUGIN)}


@pytest.mark.parametrize(
    "text, words",
    [
        ("allreduce,0,8,warp,ll,-1,-1,-1,-1,-1\n", ["rules.csv:1:", "'warp'", "tree"]),
        ("allreduce,0\n", ["rules.csv:1:"]),
        (None, ["'rules.csv' does not exist"]),
    ],
)
def test_wrong_rules_are_status_1_and_nothing_to_evaluate(text, words, capsys):
    if text is not None:
        Path("rules.csv").write_text(text)
    assert main(["plugin", "rules.csv"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("accl-tune: ")
    for word in words:
        assert word in said.err


def test_a_file_that_does_not_stay_is_refused(tmp_path, capsys):
    reader, writer = os.pipe()
    os.write(writer, FOR_NCCL.encode())
    os.close(writer)
    assert main(["plugin", f"/dev/fd/{reader}"]) == 1
    os.close(reader)
    said = capsys.readouterr()
    assert said.out == ""
    assert "regular file" in said.err


def test_a_missing_plugin_is_status_2(capsys, monkeypatch):
    Path("rules.csv").write_text(FOR_NCCL)
    monkeypatch.setattr(plugin_lines, "_FILE", "libabsent.so")
    assert main(["plugin", "rules.csv"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "libabsent.so' is missing; install accl-n again" in said.err
