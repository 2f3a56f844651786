"""All ranks of a run, what they tell each other, and the groups that they measure in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from accl_py.communicator import Communicator
from accl_py.errors import InvalidArgument
from accl_py.perf.memory import Memory

__all__ = ["World", "parse_split"]

Array = np.ndarray[Any, Any]

_SPLITS: dict[str, Callable[[int, int], int]] = {
    "AND": lambda rank, n: rank & n,
    "OR": lambda rank, n: rank | n,
    "MOD": lambda rank, n: rank % n,
    "DIV": lambda rank, n: rank // n,
}
_SIGNS = {"&": "AND", "|": "OR", "%": "MOD", "/": "DIV"}
_REDUCTIONS: dict[str, Callable[[Array], Any]] = {
    "sum": np.sum,
    "avg": np.mean,
    "min": np.min,
    "max": np.max,
}


def parse_split(text: str | None, name: str = "--split") -> Callable[[int], int]:
    """The group of a rank, from nccl-tests' NCCL_TESTS_SPLIT: 'AND 0x3', 'MOD 2', 'DIV 4', '%2'.

    None or empty: one group.
    """
    if not text:
        return lambda rank: 0
    match = re.fullmatch(r"\s*(AND|OR|MOD|DIV|[&|%/])\s*(0[xX][0-9a-fA-F]+|\d+)\s*", text.upper())
    word = _SIGNS.get(match[1], match[1]) if match else ""
    number = int(match[2], 0 if match[2].lower().startswith("0x") else 10) if match else 0
    if match is None or (number == 0 and word in ("MOD", "DIV")):
        raise InvalidArgument(
            f"{name} is '{text}'; expected a word of AND, OR, MOD, DIV (or & | % /) and a number, "
            "such as 'MOD 2'; MOD and DIV need one above 0."
        )
    return lambda rank: _SPLITS[word](rank, number)


class World:
    """All ranks. What they tell each other goes the way of their data."""

    def __init__(self, communicator: Communicator, memory: Memory) -> None:
        self.communicator = communicator
        self.rank, self.size = communicator.rank, communicator.size
        self._memory = memory

    def gather(self, values: Array) -> Array:
        """Everybody's values, of one size: a row each."""
        out = self._memory.zeros(self.size * len(values), values.dtype)
        x = self._memory.put(values)
        self.communicator.all_gather(x, out, **self._memory.options)
        return self._memory.get(out).reshape(self.size, len(values))

    def over_ranks(self, value: float, how: str) -> float:
        """The sum, avg, min or max of everybody's value."""
        return float(_REDUCTIONS[how](self.gather(np.array([value]))))

    def of_rank(self, value: float, rank: int) -> float:
        """A rank's value."""
        return float(self.gather(np.array([value]))[rank, 0])

    def texts(self, text: str, size: int = 256) -> list[str]:
        """Everybody's text, cut to `size` bytes."""
        raw = np.zeros(size, np.uint8)
        encoded = text.encode()[:size]
        raw[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        rows = self.gather(raw)
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]

    def barrier(self) -> None:
        """Waits until everybody is here."""
        self.gather(np.zeros(1))
