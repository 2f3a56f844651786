"""A check that cannot fail is none: each failing case is reported, with exit status 1."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """A small repository with the tools and nothing else."""
    for name in ("tools/check", "tools/gen_docs", "pyproject.toml", ".clang-format"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("python", "tuner", "tests", "examples", "docs", "accl", "bench"):
        (tmp_path / folder).mkdir()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def check(tree, name):
    result = subprocess.run(
        [sys.executable, tree / "tools/check", name], capture_output=True, text=True, timeout=60
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("name", "file", "good", "bad"),
    [
        ("clang-format", "accl/a.cc", "int a;\n", "int   a ;\n"),
        ("ruff", "examples/a.py", "x = 1\n", "import os\nx = 1\n"),
        ("getenv", "accl/a.cc", "int a;\n", '#include <cstdlib>\nauto a = std::getenv("A");\n'),
    ],
)
def test_a_failing_case_is_reported(tree, name, file, good, bad):
    (tree / file).write_text(good)
    code, text = check(tree, name)
    assert code == 0, text
    (tree / file).write_text(bad)
    code, text = check(tree, name)
    assert code == 1
    assert f"FAILED {name}" in text


def test_stale_docs_are_reported(tree):
    shutil.copy(ROOT / "docs/environment.md", tree / "docs/environment.md")
    assert check(tree, "docs")[0] == 0
    with (tree / "docs/environment.md").open("a") as page:
        page.write("more\n")
    assert check(tree, "docs")[0] == 1


def test_an_unknown_check_is_a_sentence(tree):
    code, text = check(tree, "spelling")
    assert code == 2
    assert "check 'spelling' is unknown; expected: clang-format" in text
