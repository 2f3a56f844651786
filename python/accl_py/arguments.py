"""What users pass to calls: checked here, with a sentence where it is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from numbers import Real
from operator import index
from typing import Any, TypedDict

from accl_py.errors import InvalidArgument

__all__ = ["CallOptions", "core_options", "counts_of", "integer", "seconds_of"]


class CallOptions(TypedDict, total=False):
    """What every collective takes besides its own arguments.

    algorithm, protocol, chunk_bytes: force a choice, which must be the same on every rank; None
        leaves it to the rules. See accl_py.schedule.algorithms and docs/algorithms.md.
    timeout: seconds for this call; None: the communicator's.
    async_op: return a `Work` at once instead of waiting.
    stream: for arrays on a GPU: the stream that the call is put on, as an integer handle or an
        object with ptr (CuPy), cuda_stream (torch) or __cuda_stream__; None: the current one.
    """

    algorithm: str | None
    protocol: str | None
    chunk_bytes: int | None
    timeout: float | timedelta | None
    async_op: bool
    stream: Any


_INT_MAX = 2**31 - 1
SIZE_MAX = 2**62
OPTION_NAMES = frozenset(CallOptions.__annotations__)


def seconds_of(timeout: float | timedelta, name: str = "timeout") -> float:
    """A timeout in seconds; InvalidArgument where it is none.

    `name` is what the message calls it.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not seconds > 0:
        raise InvalidArgument(f"{name} is {timeout!r}; expected seconds above 0 or a timedelta.")
    return float(seconds)


def core_options(options: CallOptions) -> dict[str, Any]:
    """The options as _core.Call takes them.

    Raises InvalidArgument for an unknown or ill-typed one.
    """
    if not options:
        return {}
    if unknown := options.keys() - OPTION_NAMES:
        raise InvalidArgument(
            f"Option {min(unknown)!r} is unknown; expected one of: "
            f"{', '.join(sorted(OPTION_NAMES))}."
        )
    result: dict[str, Any] = {}
    for word in ("algorithm", "protocol"):
        value = options.get(word)
        if value is None:
            continue
        if not isinstance(value, str):
            raise InvalidArgument(f"{word} is {value!r}; expected a word or None.")
        result[word] = value
    chunk = options.get("chunk_bytes")
    if chunk is not None:
        result["chunk_bytes"] = integer(chunk, "chunk_bytes", 0, SIZE_MAX)
    timeout = options.get("timeout")
    if timeout is not None:
        result["timeout"] = seconds_of(timeout)
    if options.get("async_op"):
        result["background"] = True
    return result


def integer(value: Any, name: str, least: int = -_INT_MAX - 1, most: int = _INT_MAX) -> int:
    """The integer; InvalidArgument where it is none, or out of range."""
    try:
        number = index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}; expected an integer.") from None
    if number < least:
        raise InvalidArgument(f"{name} is {number}; expected at least {least}.")
    if number > most:
        raise InvalidArgument(f"{name} is {number}; expected at most {most}.")
    return number


def counts_of(values: Sequence[int] | None, name: str, size: int) -> list[int] | None:
    """One integer a rank; InvalidArgument where they are not."""
    if values is None:
        return None
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise InvalidArgument(f"{name} is {values!r}; expected a list of one integer a rank.")
    counts = [integer(v, f"{name}[{i}]", 0, SIZE_MAX) for i, v in enumerate(values)]
    if len(counts) != size:
        raise InvalidArgument(f"{name} has {len(counts)} entries; expected one a rank: {size}.")
    return counts
