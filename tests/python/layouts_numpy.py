"""Arrays with given values in every memory layout that numpy knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

DTYPES = [
    np.dtype(name)
    for name in (
        "float64 float32 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool "
        "complex64 complex128".split()
    )
]
SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (0, 3), (3, 0, 2), (7,), (4, 5), (2, 3, 4)]


def _step(a: Array) -> Array:
    if a.ndim == 0:
        return np.zeros(3, a.dtype)[1:2].reshape(())
    wide = np.zeros((*a.shape[:-1], a.shape[-1] * 2 + 1), a.dtype)
    return wide[..., 1::2]


def _reversed(a: Array) -> Array:
    return np.zeros_like(a)[(..., *(slice(None, None, -1) for _ in a.shape))]


def _unaligned(a: Array) -> Array:
    raw = np.zeros(a.nbytes + 1, np.uint8)
    return np.ndarray(a.shape, a.dtype, raw.data, 1)


def _inner(a: Array) -> Array:
    frame = np.zeros(tuple(n + 2 for n in a.shape), a.dtype)
    return frame[(..., *(slice(1, -1) for _ in a.shape))]


_MAKERS: dict[str, Callable[[Array], Array]] = {
    "contiguous": np.zeros_like,
    "fortran": lambda a: np.zeros(a.shape, a.dtype, order="F"),
    "step": _step,
    "reversed": _reversed,
    "unaligned": _unaligned,
    "inner": _inner,
}
LAYOUTS = list(_MAKERS)


def lay_out(values: Array, layout: str) -> Array:
    """A writable array equal to `values`, in that layout."""
    a = _MAKERS[layout](values)
    assert isinstance(a, np.ndarray) and a.shape == values.shape
    a[...] = values
    return a


def numbers(shape: tuple[int, ...], dtype: np.dtype[Any], rank: int) -> Array:
    """Small whole numbers, another set on each rank; sums and products of a few are exact."""
    count = int(np.prod(shape, dtype=np.int64))
    values = (np.arange(count) * 3 + rank * 5 + 1) % 4 + (rank + count) % 2
    if dtype.kind == "c":
        return (values + 1j * ((values + rank) % 3)).astype(dtype).reshape(shape)
    return values.astype(dtype).reshape(shape)


def reduced(inputs: list[Array], op: str, factor: float = 1.0) -> Array:
    """What numpy says of a reduction over ranks."""
    stack = np.stack(inputs)
    dtype = stack.dtype
    if op == "avg":
        total = stack.sum(axis=0, dtype=dtype)
        if dtype.kind in "iu":
            return np.trunc(total / len(inputs)).astype(dtype)
        return (total / len(inputs)).astype(dtype)
    if op == "premul_sum":
        return (stack * dtype.type(factor)).sum(axis=0, dtype=dtype)
    function = {
        "sum": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }[op]
    return np.asarray(function.reduce(stack, axis=0, dtype=dtype))
