"""Random test data and the right results, in numpy. Values are small, so that every dtype holds every sum exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from accl_py.errors import InvalidArgument

__all__ = ["DTYPES", "OPERATIONS", "as_array", "random_values", "reduced", "wrong_elements"]

Array = np.ndarray[Any, Any]

# nccl-tests' names, and numpy's. bfloat16 is held as its upper 16 bits.
DTYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
}
OPERATIONS = {"sum": "sum", "prod": "product", "min": "min", "max": "max", "avg": "avg", "mulsum": "premul_sum"}
FACTOR = 2.0  # of mulsum


def as_array(values: Array, dtype: str) -> Array:
    """Small whole numbers as an array of nccl-tests' dtype."""
    return values.astype(DTYPES[dtype])


def random_values(seed: int, rank: int, count: int, op: str) -> Array:
    """What `rank` holds: whole numbers 0 to 3, for products 1 or 2 (of 6 ranks at most)."""
    generator = np.random.default_rng([seed, rank])
    if op == "prod":
        return generator.integers(1, 3 if rank < 6 else 2, count)
    return generator.integers(0, 4, count)


def reduced(values: list[Array], op: str, dtype: str) -> Array:
    """The right result of a reduction of all ranks' values."""
    stack = np.stack(values)
    match op:
        case "sum" | "avg":
            result = stack.sum(0)
        case "mulsum":
            result = stack.sum(0) * int(FACTOR)
        case "prod":
            result = stack.prod(0)
        case "min":
            result = stack.min(0)
        case "max":
            result = stack.max(0)
        case _:
            raise InvalidArgument(f"Operation '{op}' is unknown; expected one of: {', '.join(OPERATIONS)}.")
    if op != "avg":
        return as_array(result, dtype)
    if np.dtype(DTYPES[dtype]).kind == "f":
        return (result / len(values)).astype(DTYPES[dtype])
    return as_array(result // len(values), dtype)  # values are not negative: this truncates


def wrong_elements(got: Array, right: Array) -> int:
    """Elements that differ, beyond the rounding that an average in another order may show."""
    if got.dtype.kind != "f":
        return int(np.count_nonzero(got != right))
    tolerance = 4 * float(np.finfo(got.dtype).eps)
    close = np.isclose(got.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=0)
    return int(np.count_nonzero(~close))
