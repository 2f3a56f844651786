"""Corners of the torch backend with CUDA tensors. ``ACCL_TEST_BACKEND=nccl`` tries them on nccl."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import edges
import pytest
from pool import Pool

BACKEND = os.environ.get("ACCL_TEST_BACKEND", "accl")
PROGRAMS = edges.ANY_BACKEND + (edges.OURS_ALONE if BACKEND == "accl" else [])


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


@pytest.mark.parametrize("ranks", [2])
def test_groups_without_a_device(ranks: int, tmp_path: Path) -> None:
    pool = Pool(ranks, BACKEND, eager=False)
    pool.run(edges.barrier_first)
    pool.run(edges.large_sends_do_not_wait)
    pool.run(edges.backwards)
    pool.run(edges.made_again, backend=BACKEND, folder=str(tmp_path))
    pool.close()
