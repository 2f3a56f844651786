"""A check that cannot fail is none: each failing case is reported, with exit status 1."""

import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
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
        ("ruff", "examples/a.py", "x = 1\n", "import os\n\nx = 1\n"),  # lint alone
        ("ruff", "examples/a.py", "x = 1\n", "x  =  1\n"),  # format alone
        ("mypy", "python/accl_py/a.py", "x: int = 1\n", 'x: int = "1"\n'),
        ("mypy", "tuner/accl_tune/a.py", "x: int = 1\n", "def f(x): return x\n"),
        ("getenv", "accl/a.cc", "int a;\n", '#include <cstdlib>\nauto a = std::getenv("A");\n'),
    ],
)
def test_a_failing_case_is_reported(tree, name, file, good, bad):
    for package in ("python/accl_py", "tuner/accl_tune"):
        (tree / package).mkdir()
        (tree / package / "__init__.py").write_text('"""A package."""\n')
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


@pytest.fixture
def packages(tree):
    """The tree with our packages."""
    for folder in ("python", "tuner"):
        shutil.copytree(
            ROOT / folder,
            tree / folder,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("*.so", "__pycache__", "include", "lib"),
        )
    return tree


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("python/accl_py/rules.py", "import torch", "accl_py.rules -> torch"),
        ("python/accl_py/mpi.py", "import mpi4py", "accl_py.mpi -> mpi4py"),
        ("python/accl_py/rules.py", "import accl_tune", "accl_py.rules -> accl_tune"),
        ("tuner/accl_tune/words.py", "import accl_py.arrays", "accl_tune.words -> accl_py.arrays"),
        ("tuner/accl_tune/words.py", "import accl_py._core", "accl_tune uses a private name"),
        ("tuner/accl_tune/words.py", "from accl_py import _core", "accl_tune uses a private name"),
    ],
)
def test_a_forbidden_import_is_reported(packages, file, line, words):
    with (packages / file).open("a") as module:
        module.write(f"{line}\n")
    code, text = check(packages, "imports")
    assert code == 1
    assert words in text
    assert "FAILED imports" in text


def test_the_packages_as_they_are_pass(packages):
    code, text = check(packages, "imports")
    assert code == 0, text


def test_a_heavy_import_is_reported(monkeypatch, capsys):
    loader = SourceFileLoader("accl_check", str(ROOT / "tools/check"))
    tool = module_from_spec(spec_from_loader("accl_check", loader))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(tool)
    assert tool.imports_stay_light()
    monkeypatch.setattr(tool, "LIGHT", ["mpi4py"])
    assert not tool.imports_stay_light()
    assert "loads mpi4py; import it in the function" in capsys.readouterr().out


def test_a_dead_link_is_reported(tree):
    page = tree / "docs/a.md"
    page.write_text("[here](a.md#top), [out](https://a.example/b), `f[i](x)`\n\n    code[i](y)\n")
    assert check(tree, "links")[0] == 0
    page.write_text("[gone](b.md)\n")
    code, text = check(tree, "links")
    assert code == 1
    assert "docs/a.md: b.md does not exist" in text


def test_an_unknown_check_is_a_sentence(tree):
    code, text = check(tree, "spelling")
    assert code == 2
    assert "check 'spelling' is unknown; expected: clang-format" in text
