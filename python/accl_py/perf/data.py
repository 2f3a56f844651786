"""Random test data and the right results, in numpy. Values are small, so that the dtypes hold the sums exactly."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from accl_py.errors import InvalidArgument

__all__ = ["DTYPES", "OPERATIONS", "as_array", "random_values", "reduced", "wrong_elements"]

Array = np.ndarray[Any, Any]

# nccl-tests' names.
DTYPES: dict[str, np.dtype[Any]] = {
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int64": np.dtype(np.int64),
    "uint64": np.dtype(np.uint64),
    "half": np.dtype(np.float16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "fp8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
OPERATIONS = {
    "sum": "sum",
    "prod": "product",
    "min": "min",
    "max": "max",
    "avg": "avg",
    "mulsum": "premul_sum",
}
FACTOR = 2.0  # of mulsum


def as_array(values: Array, dtype: str) -> Array:
    """Small numbers as an array of nccl-tests' dtype."""
    return values.astype(DTYPES[dtype])


def random_values(seed: int, rank: int, count: int, op: str, dtype: str) -> Array:
    """What `rank` holds: whole numbers 0 to 3 (float8: 0 or 1), for products 1 or 2 (2 on 6 ranks at most)."""
    generator = np.random.default_rng([seed, rank])
    if op == "prod":
        return generator.integers(1, 3 if rank < 6 else 2, count)
    return generator.integers(0, 2 if dtype.startswith("fp8") else 4, count)


def is_integer(dtype: str) -> bool:
    """Whether averages truncate."""
    return DTYPES[dtype].kind in "iu"


def reduced(values: list[Array], op: str, dtype: str) -> Array:
    """The right result of a reduction of all ranks' values."""
    stack = np.stack(values)
    match op:
        case "sum":
            return as_array(stack.sum(0), dtype)
        case "avg":
            total = stack.sum(0)  # not negative: the division of integers truncates
            return as_array(
                total // len(values) if is_integer(dtype) else total / len(values), dtype
            )
        case "mulsum":
            return as_array(stack.sum(0) * int(FACTOR), dtype)
        case "prod":
            return as_array(stack.prod(0), dtype)
        case "min":
            return as_array(stack.min(0), dtype)
        case "max":
            return as_array(stack.max(0), dtype)
        case _:
            raise InvalidArgument(
                f"Operation '{op}' is unknown; expected one of: {', '.join(OPERATIONS)}."
            )


def wrong_elements(got: Array, right: Array) -> int:
    """Elements that differ by more than one rounding, which an average made in another order may show."""
    if got.dtype.kind in "iu":
        return int(np.count_nonzero(got != right))
    tolerance = float(ml_dtypes.finfo(got.dtype).eps)
    close = np.isclose(got.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=0)
    return int(np.count_nonzero(~close))
