"""A race between `accl` and another torch backend, both through torch.distributed, for accl-perf --against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from accl_py.errors import InvalidArgument

__all__ = ["Rival"]

_ROUNDS = 5  # A B A B ...; the median of each counts


class Rival:
    """Two groups of the ranks of `comm`: accl's and the other backend's."""

    def __init__(self, backend: str, comm: Any, method: str) -> None:
        import torch
        import torch.distributed as dist

        import accl_py.torch  # noqa: F401  (registers accl)

        if method not in _CALLS:
            raise InvalidArgument(
                f"--against has no {method}; expected one of: {', '.join(_CALLS)}."
            )
        torch.set_num_threads(1)
        store = dist.HashStore() if comm.size == 1 else _store(dist, comm)
        dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.size)
        self._theirs = dist.group.WORLD
        self._mine = dist.new_group(backend="accl")
        self._comm = comm
        self._call = _CALLS[method]

    def race(
        self, count: int, dtype: str, root: int, iterations: int, warmup: int
    ) -> tuple[float, float]:
        """Seconds a call: accl's and the other's, medians of interleaved rounds."""
        import torch

        n = self._comm.size
        small = torch.zeros(count, dtype=getattr(torch, dtype))
        large = torch.zeros(count * n, dtype=getattr(torch, dtype))
        other = torch.zeros_like(large)
        samples: dict[Any, list[float]] = {self._mine: [], self._theirs: []}
        for group in samples:
            for _ in range(max(warmup, 1)):
                self._call(group, small, large, other, root)
        for _ in range(_ROUNDS):
            for group, times in samples.items():
                self._comm.barrier()
                begin = time.perf_counter()
                for _ in range(iterations):
                    self._call(group, small, large, other, root)
                times.append((time.perf_counter() - begin) / iterations)
        return statistics.median(samples[self._mine]), statistics.median(samples[self._theirs])


def _store(dist: Any, comm: Any) -> Any:
    """A TCPStore on the loopback device of rank 0, its port passed on by `comm`."""
    import numpy as np

    port = np.zeros(1, np.int64)
    store = None
    if comm.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, comm.size, is_master=True, wait_for_workers=False)
        port[0] = store.port
    comm.broadcast(port)
    return store or dist.TCPStore(
        "127.0.0.1", int(port[0]), comm.size, is_master=False, wait_for_workers=False
    )


def _dist() -> Any:
    import torch.distributed

    return torch.distributed


# (group, one block, all blocks, all blocks again, root)
_CALLS: dict[str, Callable[[Any, Any, Any, Any, int], Any]] = {
    "all_reduce": lambda g, one, _, __, ___: _dist().all_reduce(one, group=g),
    "all_gather": lambda g, one, many, _, __: _dist().all_gather_into_tensor(many, one, group=g),
    "reduce_scatter": lambda g, one, many, _, __: _dist().reduce_scatter_tensor(one, many, group=g),
    "broadcast": lambda g, one, _, __, root: _dist().broadcast(one, root, group=g),
    "reduce": lambda g, one, _, __, root: _dist().reduce(one, root, group=g),
    "all_to_all": lambda g, _, many, other, __: _dist().all_to_all_single(other, many, group=g),
}
