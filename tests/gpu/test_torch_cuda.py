"""The torch backend with CUDA tensors, on 1, 2, 4 and 8 ranks."""

from __future__ import annotations

import collectives
import groups
import pytest
import streams
import training
from pool import Pool

SIZES = [1, 2, 4, 8]
FEW = [1, 2, 4]


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("dtype", [*collectives.REDUCED, *collectives.MOVED_ONLY])
def test_collectives(ranks_pool: Pool, dtype: str) -> None:
    ranks_pool.run(collectives.every_collective, limit=60, dtype=dtype, async_op=False)


@pytest.mark.parametrize("ranks", FEW)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_asynchronous_collectives(ranks_pool: Pool, dtype: str) -> None:
    ranks_pool.run(collectives.every_collective, limit=60, dtype=dtype, async_op=True)


@pytest.mark.parametrize("ranks", FEW)
@pytest.mark.parametrize(
    "program",
    [
        collectives.operations,
        collectives.refused,
        collectives.layouts,
        collectives.uneven,
        collectives.messages,
        collectives.coalescing,
        streams.host_goes_on,
        streams.side_streams,
        streams.wait_elsewhere,
        streams.memory_freed_early,
        streams.futures,
        streams.graphs,
        groups.subgroups,
        groups.splits,
        groups.shared_splits,
        groups.options,
        groups.kernels_serve,
        groups.barriers,
        groups.objects,
        training.ddp,
        training.fsdp,
        training.tensors,
        training.compiled,
    ],
    ids=lambda program: program.__name__,
)
def test_programs(ranks_pool: Pool, program) -> None:
    ranks_pool.run(program, limit=60)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_random_calls(ranks_pool: Pool) -> None:
    calls = 1000 if ranks_pool.size <= 4 else 300
    ranks_pool.run(collectives.random_calls, limit=60, calls=calls)


@pytest.mark.parametrize("ranks", [2])
def test_lazy_groups_send_between_two_ranks_alone(ranks: int) -> None:
    pool = Pool(ranks, eager=False)
    pool.run(collectives.messages)
    pool.close()
