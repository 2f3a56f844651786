"""Corners of the torch backend with CUDA tensors. ``ACCL_TEST_BACKEND=nccl`` tries them on nccl."""

from __future__ import annotations

import os
from collections.abc import Callable

import edges
import pytest
from pool import Pool

OURS = os.environ.get("ACCL_TEST_BACKEND", "accl") == "accl"
PROGRAMS = edges.ANY_BACKEND + (edges.OURS_ALONE if OURS else [])


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_edges(ranks_pool: Pool, program: Callable[[int, int], None]) -> None:
    ranks_pool.run(program)


@pytest.mark.parametrize("ranks", [8])
@pytest.mark.parametrize(
    "program",
    [edges.large_batches, edges.groups_in_turns, edges.captures_beside_eager_calls],
    ids=lambda program: program.__name__,
)
def test_many_ranks(ranks_pool: Pool, program: Callable[[int, int], None]) -> None:
    ranks_pool.run(program, limit=120)
