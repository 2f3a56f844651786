"""The package's surface: exported names, errors, stores, stubs, and the guide's snippets."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import accl_py
import numpy as np
import pytest
from accl_py import Communicator, FileStore, HashStore, errors
from accl_py.stores import Store
from local_ranks import outcomes

ROOT = Path(__file__).parents[2]
MODULES = ("errors", "stores", "rules", "schedule", "launch", "mpi", "arrays", "communicator")


def test_exported_names() -> None:
    for name in ("accl_py", *(f"accl_py.{m}" for m in MODULES)):
        module = importlib.import_module(name)
        assert len(set(module.__all__)) == len(module.__all__)
        for exported in module.__all__:
            assert hasattr(module, exported), f"{name}.{exported}"
    public = {
        n
        for n in vars(accl_py)
        if not n.startswith("_") and not inspect.ismodule(getattr(accl_py, n))
    }
    assert public <= set(accl_py.__all__)
    assert {n for n in vars(errors) if inspect.isclass(getattr(errors, n))} == set(errors.__all__)
    assert accl_py.__version__ == (ROOT / "VERSION").read_text().strip()


def test_everything_public_is_documented() -> None:
    for name in (
        "Communicator",
        "Group",
        "Work",
        "FileStore",
        "HashStore",
        "init",
        "Rules",
        "PreparedCall",
        "PreparedDeviceCall",
        "DeviceWork",
    ):
        thing = getattr(accl_py, name)
        assert thing.__doc__, name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert value.__doc__, f"{name}.{member}"


def test_error_tree() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.AcclError)
    assert issubclass(errors.AcclError, RuntimeError)
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(errors.RulesError, errors.InvalidArgument)
    assert issubclass(errors.TimeoutError, builtins.TimeoutError)


class Slow:
    """The least that a store may be: get() without a timeout."""

    def __init__(self) -> None:
        self._store = HashStore()

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)


def _torch_store(kind: str, folder: Path) -> Any:
    dist = pytest.importorskip("torch.distributed")
    if kind == "file":
        return dist.FileStore(str(folder / "torch-store"), 2)
    if kind == "tcp":
        return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return dist.PrefixStore("mine", dist.HashStore())


def _stores(name: str, folder: Path) -> Any:
    if name == "accl file":
        return FileStore(folder)
    if name == "accl hash":
        return HashStore()
    return Slow() if name == "least" else _torch_store(name.split()[1], folder)


STORES = ("accl file", "accl hash", "least", "torch file", "torch tcp", "torch hash")


@pytest.mark.parametrize("name", STORES)
def test_any_store_serves(name: str, tmp_path: Path) -> None:
    first = _stores(name, tmp_path)

    def work(rank: int) -> float:
        store = first
        if name == "torch tcp" and rank == 1:  # a client serves one thread at a time
            from torch.distributed import TCPStore

            store = TCPStore("127.0.0.1", first.port, is_master=False)
        for _ in range(3):  # the same store and name again
            with Communicator.from_store(store, rank, 2, timeout=20) as c:
                total = float(c.all_reduce(np.ones(2))[0])
        return total

    assert [result for result, _ in outcomes(2, work)] == [2, 2]


@pytest.mark.parametrize("name", [name for name in STORES if name != "least"])
def test_a_rank_that_never_comes(name: str, tmp_path: Path) -> None:
    store = _stores(name, tmp_path)
    begin = time.monotonic()
    with pytest.raises(errors.TimeoutError, match="Rank 1 of 2 did not join communicator 'w'"):
        Communicator.from_store(store, 0, 2, name="w", timeout=timedelta(milliseconds=300))
    assert 0.2 < time.monotonic() - begin < 1.5


class Failing:
    """A store that fails in one of its methods."""

    def __init__(self, where: str, error: BaseException) -> None:
        self._where, self._error = where, error

    def set(self, key: str, value: bytes) -> None:
        if self._where == "set":
            raise self._error

    def get(self, key: str) -> Any:
        if self._where == "get":
            raise self._error
        return "no bytes" if self._where == "text" else b"something else"


@pytest.mark.parametrize("where", ["set", "get"])
def test_a_store_that_fails(where: str) -> None:
    with pytest.raises(
        errors.StoreError, match=f"the store could not {where} 'accl/world/.': no route"
    ):
        Communicator.from_store(Failing(where, OSError("no route")), 0, 2, timeout=5)
    with pytest.raises(KeyboardInterrupt):
        Communicator.from_store(Failing(where, KeyboardInterrupt()), 0, 2, timeout=5)
    with pytest.raises(SystemExit):
        Communicator.from_store(Failing(where, SystemExit(3)), 0, 2, timeout=5)


@pytest.mark.parametrize(
    "where, words", [("text", "could not get"), ("other", "does not hold what a rank")]
)
def test_a_store_with_something_else(where: str, words: str) -> None:
    with pytest.raises(errors.StoreError, match=words):
        Communicator.from_store(Failing(where, OSError()), 0, 2, timeout=5)


def test_stores_wait(tmp_path: Path) -> None:
    for store in (FileStore(tmp_path), HashStore()):
        assert isinstance(store, Store)
        threading.Timer(0.1, store.set, ("a/b c", b"\0value")).start()
        assert store.get("a/b c") == b"\0value"
        with pytest.raises(
            errors.TimeoutError, match="the key 'none' did not appear within 0.05 s"
        ):
            store.get("none", timedelta(seconds=0.05))


def test_guide_snippets(tmp_path: Path) -> None:
    """Each block of docs/python.md runs, from top to bottom, in a process of its own."""
    text = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 4
    for block in blocks:
        answer = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert answer.returncode == 0, block + answer.stdout + answer.stderr


def _parameters_of(thing: Any) -> list[str] | None:
    """Parameter names by the signature that pybind11 writes; unnamed ones as arg0, ..."""
    first = (thing.__doc__ or "").partition("\n")[0]
    found = re.match(r"\w+\((.*)\) ->", first)
    return None if found is None else re.findall(r"(?:^|, )(\w+):", found[1])


def _members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = statement
    return names


def _public(thing: Any) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def _same_parameters(name: str, stub: ast.FunctionDef, thing: Any) -> None:
    told = _parameters_of(thing)
    if told is None:
        return
    wanted = [argument.arg for argument in (*stub.args.posonlyargs, *stub.args.args)]
    named = [n for n in told if not re.fullmatch(r"arg\d+", n)]
    assert len(told) == len(wanted), name
    # Unnamed ones can be given by position only.
    assert [n for n in wanted if n in named] == named, name


def test_stub_is_true() -> None:
    """_core.pyi names what _core has, with the same parameters."""
    from accl_py import _core

    stub = _members(ast.parse((ROOT / "python" / "accl_py" / "_core.pyi").read_text()).body)
    assert set(stub) == _public(_core)
    checked = 0
    for name, statement in stub.items():
        thing = getattr(_core, name)
        if isinstance(statement, ast.FunctionDef):
            _same_parameters(name, statement, thing)
        elif isinstance(statement, ast.ClassDef):
            members = _members(statement.body)
            assert {m for m in members if not m.startswith("_")} == _public(thing), name
            for member, inner in members.items():
                if isinstance(inner, ast.FunctionDef) and not isinstance(
                    vars(thing).get(member), property
                ):
                    _same_parameters(f"{name}.{member}", inner, getattr(thing, member))
                    checked += 1
    assert checked > 50
