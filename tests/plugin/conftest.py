"""Fixtures: the plugin in this process with a clean state, and ranks as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nccl_caller import Plugin, plugin_path  # noqa: E402

VARIABLES = ["ACCL_RULES", "ACCL_RULES_DIGEST", "ACCL_LOG", "ACCL_HOSTID", "NCCL_DEBUG"]
_numbers = count(1)


def fresh_communicator() -> int:
    """A commId that no other test, and no other run of the tests, uses."""
    return (os.getpid() << 32) | next(_numbers) | (0xA << 60)


@pytest.fixture(scope="session")
def _loaded() -> Plugin:
    assert plugin_path().is_file(), f"{plugin_path()} is missing: build and install the package"
    return Plugin()


@pytest.fixture
def plugin(_loaded, monkeypatch):
    """The plugin as if just loaded, in an environment that says nothing."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    _loaded.clear()
    _loaded.give_rules(None)
    _loaded.give_rules(None, everywhere=False)
    _loaded.reload()
    _loaded.said.clear()
    yield _loaded
    _loaded.clear()


@pytest.fixture
def communicator() -> int:
    return fresh_communicator()


@pytest.fixture
def rules(plugin, monkeypatch, tmp_path):
    """Writes a rules file and makes it ACCL_RULES of communicators to come."""

    def use(text: str | bytes, name="rules.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.setenv("ACCL_RULES", str(path))
        plugin.reload()
        plugin.said.clear()
        return path

    return use


class Rank:
    """A process that calls the plugin; `do` waits for its answer."""

    def __init__(self, errors: Path, **environment: str) -> None:
        kept = {key: value for key, value in os.environ.items() if key not in VARIABLES}
        self._errors = errors
        with errors.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("nccl_caller.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**kept, **environment},
            )

    def do(self, what: str, **order):
        self.process.stdin.write(json.dumps({"do": what, **order}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the rank died: {self.stderr()}"
        return json.loads(line)

    def stderr(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        self.process.stdin.close()
        return self.process.wait(timeout=30)


@pytest.fixture
def rank(tmp_path):
    """Starts ranks; what is left of them goes with the test."""
    ranks: list[Rank] = []

    def start(rules: str | Path | None = None, **environment: str) -> Rank:
        if isinstance(rules, str):
            path = tmp_path / f"rules{len(ranks)}.csv"
            path.write_text(rules)
            rules = path
        if rules is not None:
            environment["ACCL_RULES"] = str(rules)
        ranks.append(Rank(tmp_path / f"stderr{len(ranks)}", **environment))
        return ranks[-1]

    yield start
    for one in ranks:
        if one.process.poll() is None:
            one.kill()
        one.process.stdin.close()
        one.process.stdout.close()
