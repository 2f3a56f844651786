"""Words of the command line: sizes, shares, names of collectives."""

import re
from math import isfinite

from accl_tune.errors import ArgumentError

__all__ = [
    "COLLECTIVES",
    "collective",
    "format_bytes",
    "nccl_word",
    "parse_bytes",
    "parse_share",
    "sizes",
]

# Those that have something to choose. A barrier has one algorithm and no size.
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
)

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """`8`, `64K`, `1M`, `2G`: binary units, as in nccl-tests. Raises ArgumentError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ArgumentError(f"'{text}' is no size; expected bytes such as 8, 64K, 1M or 2G.")
    size = int(found[1]) * _UNITS[found[2].upper()]
    if size >= 1 << 63:
        raise ArgumentError(f"'{text}' is too large a size; expected less than 2^63 bytes.")
    return size


def format_bytes(count: int) -> str:
    """The shortest exact spelling: 65536 is `64K`, 100 is `100`."""
    for unit in ("T", "G", "M", "K"):
        if count and count % _UNITS[unit] == 0:
            return f"{count // _UNITS[unit]}{unit}"
    return str(count)


def parse_share(text: str) -> float:
    """`3%` or `0.03`, as a share of 1. Raises ArgumentError."""
    raw = text.strip()
    try:
        share = float(raw[:-1]) / 100 if raw.endswith("%") else float(raw)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ArgumentError(
            f"'{text}' is no share; expected such as 3% or 0.03, from 0 to below 1."
        )
    return share


def collective(text: str) -> str:
    """The name in our spelling; NCCL's (`allreduce`) is read as well. Raises ArgumentError."""
    plain = text.strip().lower().replace("_", "").replace("-", "")
    for name in COLLECTIVES:
        if nccl_word(name) == plain:
            return name
    if plain == "barrier":
        raise ArgumentError("'barrier' has one algorithm and no size: there is nothing to tune.")
    raise ArgumentError(f"'{text}' is no collective; expected one of: {', '.join(COLLECTIVES)}.")


def nccl_word(name: str) -> str:
    """The spelling of rules files: `allreduce`."""
    return name.replace("_", "")


def sizes(first: int, last: int, factor: float) -> list[int]:
    """`first`, times `factor` again and again, up to `last`, in bytes. Raises ArgumentError."""
    if first < 1:
        raise ArgumentError(f"-b is {first}; expected at least 1 byte.")
    if last < first:
        raise ArgumentError(f"-e is {format_bytes(last)}, below -b, {format_bytes(first)}.")
    if not (factor > 1 and isfinite(factor)):
        raise ArgumentError(f"-f is {factor:g}; expected a factor above 1.")
    result = [first]
    exact = float(first)
    while exact * factor <= last * (1 + 1e-9):
        exact *= factor
        result.append(max(round(exact), result[-1] + 1))
    return result
