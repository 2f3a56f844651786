"""Buffers of a cell, random inputs, and what must come out.

Inputs are small whole numbers at random, so that sums are exact in every dtype and in any order: an
element is wrong or it is right, with no tolerance to hide in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accl_tune.errors import ArgumentError
from accl_tune.model import Cell

__all__ = ["DTYPES", "Buffers", "Memory", "legal_bytes"]

DTYPES = [
    "float64",
    "float32",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
]

ROOT = 0
_ROOTED_SOURCE = ("broadcast", "scatter")
_ROOTED_TARGET = ("reduce", "gather")
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_WHOLE = ("all_reduce", "broadcast", "reduce")
_LINE = 64
_MOST = 4  # inputs lie in -4 to 4, so that sums of many are exact in 8 and 16 bits
_POISON = 99  # no sum of inputs of up to 24 ranks

Array = NDArray[Any]


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy dtype of a word. Raises ArgumentError."""
    if name not in DTYPES:
        raise ArgumentError(f"--dtype is '{name}'; expected one of: {', '.join(DTYPES)}.")
    return np.dtype(name)


def legal_bytes(collective: str, size: int, ranks: int, element_bytes: int) -> int:
    """The next size up that is whole elements, and whole blocks where every rank has one."""
    grain = element_bytes if collective in _WHOLE else element_bytes * ranks
    return max(1, -(-size // grain)) * grain


class Memory:
    """Two areas, each grown to the largest that was asked for and used again: as a program's
    buffers are.
    """

    def __init__(self) -> None:
        self._areas: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * 2

    def array(self, area: int, count: int, dtype: np.dtype[Any]) -> Array:
        """An array at the start of an area, aligned to a cache line."""
        size = count * dtype.itemsize
        if len(self._areas[area]) < size + _LINE:
            self._areas[area] = np.empty(size + _LINE, np.uint8)
            self._areas[area].fill(0)  # so that every page is there, and its own
        memory = self._areas[area]
        skip = -memory.ctypes.data % _LINE
        return memory[skip : skip + size].view(dtype)


class Buffers:
    """One rank's arrays in a cell: `x` and `out` as accl_py's methods take them; None where a rank
    has none.
    """

    def __init__(
        self, memory: Memory, cell: Cell, rank: int, ranks: int, dtype: np.dtype[Any]
    ) -> None:
        self.cell = cell
        self._rank = rank
        self._ranks = ranks
        self._dtype = dtype
        whole = cell.bytes // dtype.itemsize
        block = whole // ranks
        inputs = {"all_gather": block, "gather": block}.get(cell.collective, whole)
        outputs = {"reduce_scatter": block, "scatter": block, "broadcast": 0}.get(
            cell.collective, whole
        )
        root = rank == ROOT
        self.x: Array | None = memory.array(0, inputs, dtype)
        self.out: Array | None = memory.array(1, outputs, dtype) if outputs else None
        if cell.collective == "scatter" and not root:
            self.x = None
        if cell.collective in _ROOTED_TARGET and not root:
            self.out = None

    def _input(self, rank: int) -> Array:
        """What rank `rank` puts in: the same numbers on whichever rank they are made."""
        source = np.random.default_rng([rank, self.cell.bytes, *self.cell.collective.encode()])
        whole = self.cell.bytes // self._dtype.itemsize
        count = whole // self._ranks if self.cell.collective in ("all_gather", "gather") else whole
        lowest = 0 if self._dtype.kind == "u" else -_MOST
        return source.integers(lowest, _MOST, count, np.int8, endpoint=True).astype(self._dtype)

    def expected(self) -> tuple[Array | None, Array | None]:
        """What x and out must hold after a call; None where there is nothing to check."""
        name, rank = self.cell.collective, self._rank
        if name == "broadcast":
            return self._input(ROOT), None
        x = None if self.x is None else self._input(rank)
        if self.out is None:
            return x, None
        part = slice(rank * len(self.out), (rank + 1) * len(self.out))
        if name == "scatter":
            return x, self._input(ROOT)[part]
        if name in _REDUCING:
            total = self._sum()
            return x, total[part] if name == "reduce_scatter" else total
        inputs = [self._input(other) for other in range(self._ranks)]
        if name == "all_to_all":
            block = len(self.out) // self._ranks
            inputs = [one[rank * block : (rank + 1) * block] for one in inputs]
        return x, np.concatenate(inputs)

    def _sum(self) -> Array:
        total = self._input(0)
        for other in range(1, self._ranks):
            total += self._input(other)
        return total

    def fill(self) -> None:
        """Random inputs; outputs are poisoned, so that what an earlier call left cannot pass for a
        result.
        """
        if self.cell.collective == "broadcast" and self._rank != ROOT:
            assert self.x is not None
            self.x.fill(_POISON)
        elif self.x is not None:
            self.x[:] = self._input(self._rank)
        self.poison()

    def poison(self) -> None:
        """Makes what the call must write wrong."""
        if self.out is not None:
            self.out.fill(_POISON)
        elif self.cell.collective == "broadcast" and self._rank != ROOT and self.x is not None:
            self.x.fill(_POISON)

    def wrong(self, expected: tuple[Array | None, Array | None]) -> int:
        """The number of wrong elements, in outputs and in inputs (which a call must not change)."""
        count = 0
        for have, want in zip((self.x, self.out), expected, strict=True):
            if have is not None and want is not None:
                count += int(np.count_nonzero(have != want))
        return count
