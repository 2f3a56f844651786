"""Fixtures of the Python suite. Nothing that a test leaves lies outside its temporary folders."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before accl_py reads its environment, here and in the processes that tests start.
os.environ.setdefault("ACCL_LOG", "error")
_traces = tempfile.TemporaryDirectory(prefix="accl-traces-")  # goes with this process
os.environ["ACCL_TRACE_DIR"] = _traces.name
os.environ.pop("ACCL_RULES", None)
sys.path.insert(0, str(Path(__file__).parent))

from local_ranks import ThreadRanks  # noqa: E402


@pytest.fixture(scope="session")
def _pools() -> Iterator[dict[int, ThreadRanks]]:
    pools: dict[int, ThreadRanks] = {size: ThreadRanks(size) for size in (1, 2, 3, 4)}
    yield pools
    for pool in pools.values():
        pool.stop()


@pytest.fixture(params=(1, 2, 3, 4), ids=lambda size: f"{size}ranks")
def ranks(request: pytest.FixtureRequest, _pools: dict[int, ThreadRanks]) -> ThreadRanks:
    """Ranks as threads; 1, 2, 3 and 4 of them, one after the other."""
    return _pools[request.param]


@pytest.fixture
def ranks2(_pools: dict[int, ThreadRanks]) -> ThreadRanks:
    return _pools[2]


@pytest.fixture
def ranks3(_pools: dict[int, ThreadRanks]) -> ThreadRanks:
    return _pools[3]
