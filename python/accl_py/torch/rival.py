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

        if method not in # (group, one block, all blocks, all blocks again, root)
_CALLS: dict[str, Callable[[Any, Any, Any, Any, int], Any]] = {
    "all_reduce": lambda g, one, _, __, ___: _dist().all_reduce(one, group=g),
    "all_gather": lambda g, one, many, _, __: _dist().all_gather_into_tensor(many, one, group=g),
    "reduce_scatter": lambda g, one, many, _, __: _dist().reduce_scatter_tensor(one, many, group=g),
    "broadcast": lambda g, one, _, __, root: _dist().broadcast(one, root, group=g),
    "reduce": lambda g, one, _, __, root: _dist().reduce(one, root, group=g),
    "all_to_all": lambda g, _, many, other, __: _dist().all_to_all_single(other, many, group=g),
}
