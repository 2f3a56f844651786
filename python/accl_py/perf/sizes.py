"""Sizes and bandwidths as nccl-tests 2.19 defines them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from accl_py.errors import InvalidArgument

__all__ = ["COLLECTIVES", "Shape", "bandwidths", "parse_size", "progression"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str, name: str) -> int:
    """Bytes of '8', '64K', '1M', '2G' (binary units, as in nccl-tests)."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if match is None:
        raise InvalidArgument(f"{name} is '{text}'; expected bytes such as 8, 64K, 1M or 2G.")
    return int(match[1]) * _UNITS[match[2]]


def progression(first: int, last: int, factor: int, increment: int) -> Iterator[int]:
    """The sizes from first to last: times `factor` where it is above 1, else plus `increment`."""
    size = first
    while size <= last:
        yield size
        size = size * factor if factor > 1 and size > 0 else size + increment


@dataclass(frozen=True)
class Shape:
    """How a collective uses the size of a row: counts of one call, in elements.

    blocks: whether the larger buffer holds one block a rank (size = count * ranks * element size).
    rooted, reducing: whether root and redop mean something. busbw: its factor for n ranks.
    """

    name: str
    method: str
    blocks: bool
    rooted: bool
    reducing: bool

    def count(self, size: int, itemsize: int, ranks: int) -> int:
        """Elements of the call for a row of `size` bytes, cut to whole blocks."""
        return size // (itemsize * (ranks if self.blocks else 1))

    def bytes(self, count: int, itemsize: int, ranks: int) -> int:
        """The size that a row prints: the larger of the send and receive buffers."""
        return count * itemsize * (ranks if self.blocks else 1)

    def factor(self, ranks: int) -> float:
        """Busbw / algbw (nccl-tests, PERFORMANCE.md)."""
        if self.method == "all_reduce":
            return 2 * (ranks - 1) / ranks
        return (ranks - 1) / ranks if self.blocks else 1.0

    def pair_count(self, count: int, sender: int, receiver: int, ranks: int) -> int:
        """alltoallv: elements from one rank to another; uneven, `count` on average, nothing to oneself."""
        return 2 * count * ((receiver - sender) % ranks) // max(ranks - 1, 1)


COLLECTIVES = {
    shape.name: shape
    for shape in (
        Shape("all_reduce", "all_reduce", False, False, True),
        Shape("all_gather", "all_gather", True, False, False),
        Shape("reduce_scatter", "reduce_scatter", True, False, True),
        Shape("broadcast", "broadcast", False, True, False),
        Shape("reduce", "reduce", False, True, True),
        Shape("alltoall", "all_to_all", True, False, False),
        Shape("alltoallv", "all_to_all_v", True, False, False),
        Shape("scatter", "scatter", True, True, False),
        Shape("gather", "gather", True, True, False),
        Shape("sendrecv", "sendrecv", False, False, False),
        Shape("hypercube", "hypercube", True, False, False),
    )
}


def bandwidths(shape: Shape, size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Algbw and busbw in GB/s (10^9 bytes)."""
    if seconds <= 0:
        return 0.0, 0.0
    algbw = size / seconds / 1e9
    return algbw, algbw * shape.factor(ranks)
