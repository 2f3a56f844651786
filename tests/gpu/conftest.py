"""Pools of ranks that the tests share; needs a GPU (see tools/gpu_check)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pool as pools

BACKEND = os.environ.get("ACCL_TEST_BACKEND", "accl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of one pool in a row, so that each is started once and few live at a time."""
    items.sort(
        key=lambda item: getattr(item, "callspec", None) and item.callspec.params.get("ranks") or 0
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Says at once what failed: the whole run may be stopped before its summary."""
    if report.failed and sys.__stderr__ is not None:
        print(f"\n{report.nodeid}: {report.longreprtext}", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="session")
def backend() -> str:
    """The backend under test; ``nccl`` checks the tests themselves."""
    return BACKEND


class Pools:
    """The pool of the last test's size; others are closed, since they hold the GPU's memory."""

    def __init__(self) -> None:
        self._pool: pools.Pool | None = None

    def of(self, size: int) -> pools.Pool:
        if self._pool is None or self._pool.size != size or self._pool.broken:
            self.close()
            self._pool = pools.Pool(size, BACKEND)
        return self._pool

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


@pytest.fixture(scope="session")
def all_pools() -> Iterator[Pools]:
    """Closed at the end of the session."""
    made = Pools()
    yield made
    made.close()


@pytest.fixture
def ranks_pool(all_pools: Pools, ranks: int) -> Any:
    """The pool for the test's parameter ``ranks``."""
    return all_pools.of(ranks)
