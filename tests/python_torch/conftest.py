"""Fixtures of the torch suites: process groups of 2 and 3 ranks that serve all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import Ranks  # noqa: E402

_SIZES = (2, 3)


@pytest.fixture(scope="session")
def _pools() -> Iterator[dict[int, Ranks]]:
    pools = {size: Ranks(size) for size in _SIZES}
    yield pools
    for pool in pools.values():
        pool.stop()


@pytest.fixture(params=_SIZES, ids=lambda size: f"{size}ranks")
def ranks(request: pytest.FixtureRequest, _pools: dict[int, Ranks]) -> Ranks:
    """2 and 3 ranks, one after the other."""
    return _pools[request.param]


@pytest.fixture
def ranks2(_pools: dict[int, Ranks]) -> Ranks:
    return _pools[2]


@pytest.fixture
def ranks3(_pools: dict[int, Ranks]) -> Ranks:
    return _pools[3]
