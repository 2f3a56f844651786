"""Views of arrays: address, shape, strides and dtype of whatever the caller has.

numpy arrays, torch CPU tensors (torch is never imported here), and anything that numpy can view through the buffer
protocol or DLPack. A view never owns memory; it holds the array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from accl_py import _core
from accl_py.errors import InvalidArgument

__all__ = ["View", "like", "view"]

DType = _core.DType

_NUMPY_DTYPES = {
    np.dtype(name): getattr(DType, name)
    for name in (
        "float64 float32 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128".split()
    )
}
# ml_dtypes register these with numpy; they are matched by name, so that the package is not needed here.
_NUMPY_EXTENSIONS = {
    "bfloat16": DType.bfloat16,
    "float8_e4m3fn": DType.float8_e4m3fn,
    "float8_e5m2": DType.float8_e5m2,
}
_TORCH_NAMES = {f"torch.{name}": value for name, value in DType.__members__.items()}
_SIZES = {value: _core.size_of(value) for value in DType.__members__.values()}


@dataclass(slots=True)
class View:
    """One array of the caller's. Sizes in elements, address in bytes."""

    array: Any
    address: int
    shape: tuple[int, ...]
    dtype: DType
    contiguous: bool
    readonly: bool
    is_torch: bool

    @property
    def count(self) -> int:
        """Elements."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _SIZES[self.dtype]


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "data_ptr")


def view(array: Any, name: str, *, writable: bool = False) -> View:
    """Views an array. Raises InvalidArgument where it is none, is on a device, or has a dtype that is not supported.

    writable: it will be written; read-only and overlapping (expanded) memory is refused.
    """
    if isinstance(array, np.ndarray):
        return _numpy_view(array, array, name, writable)
    if is_torch(array):
        return _torch_view(array, name, writable)
    return _numpy_view(array, _as_numpy(array, name), name, writable)


def _as_numpy(array: Any, name: str) -> np.ndarray[Any, Any]:
    if hasattr(array, "__dlpack__"):
        device = getattr(array, "__dlpack_device__", lambda: (1, 0))()
        if device[0] != 1:
            raise InvalidArgument(f"{name} is on a device; this version moves memory of the host only. Copy it to the host first.")
        try:
            return np.from_dlpack(array)
        except (TypeError, RuntimeError, BufferError) as error:
            raise InvalidArgument(f"{name} ({type(array).__name__}) could not be viewed through DLPack: {error}.") from error
    try:
        memory = memoryview(array)
    except TypeError:
        raise InvalidArgument(
            f"{name} is a {type(array).__name__}; expected a numpy array, a torch CPU tensor, or anything with DLPack or "
            "the buffer protocol."
        ) from None
    return np.asarray(memory)


def _numpy_view(array: Any, a: np.ndarray[Any, Any], name: str, writable: bool) -> View:
    dtype = _NUMPY_DTYPES.get(a.dtype)
    if dtype is None:
        dtype = _NUMPY_EXTENSIONS.get(a.dtype.name)
        if dtype is None or not a.dtype.isnative:
            raise InvalidArgument(f"{name} has dtype {a.dtype.str if a.dtype.isbuiltin != 1 else a.dtype}; expected one of: {_names()} in native byte order.")
    if writable:
        if not a.flags.writeable:
            raise InvalidArgument(f"{name} is read-only, but it would be written.")
        _refuse_overlap(name, a.shape, a.strides)
    return View(array, a.ctypes.data, a.shape, dtype, a.flags.c_contiguous, not a.flags.writeable, False)


def _torch_view(t: Any, name: str, writable: bool) -> View:
    if t.device.type != "cpu":
        raise InvalidArgument(f"{name} is on {t.device}; this version moves CPU tensors only. Use .cpu() first.")
    if str(t.layout) != "torch.strided":
        raise InvalidArgument(f"{name} is {t.layout}; expected a dense tensor.")
    dtype = _TORCH_NAMES.get(str(t.dtype))
    if dtype is None:
        raise InvalidArgument(f"{name} has dtype {t.dtype}; expected one of: {_names()}.")
    shape = tuple(t.shape)
    if writable:
        if t.requires_grad and t.is_leaf and not t.is_inference():
            t = t.detach()
        size = t.element_size()
        _refuse_overlap(name, shape, tuple(s * size for s in t.stride()))
    return View(t, t.data_ptr(), shape, dtype, t.is_contiguous() and not t.is_conj() and not t.is_neg(), False, True)


def _refuse_overlap(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    # Elements that share memory: a dimension of stride 0, as expand() and broadcast_to() make.
    if any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True)):
        raise InvalidArgument(f"{name} has elements that share memory (strides {strides}); expected one of its own for each. Copy it first.")


def _names() -> str:
    return ", ".join(DType.__members__)


def like(v: View, shape: tuple[int, ...]) -> Any:
    """A new, contiguous array of the same kind and dtype, uninitialised."""
    if v.is_torch:
        return v.array.new_empty(shape)
    dtype = v.array.dtype if isinstance(v.array, np.ndarray) else np.asarray(v.array).dtype
    return np.empty(shape, dtype)


def contiguous(v: View) -> Any:
    """The array itself where it is contiguous, else a copy in logical (row-major) order."""
    if v.contiguous:
        return v.array
    if v.is_torch:
        return v.array.detach().resolve_conj().resolve_neg().contiguous()
    return np.ascontiguousarray(v.array)


def copy_back(v: View, staged: Any) -> None:
    """Copies a staged result into the caller's array."""
    if v.is_torch:
        v.array.detach().copy_(staged.reshape(v.shape))
    else:
        target = v.array if isinstance(v.array, np.ndarray) else _as_numpy(v.array, "out")
        target[...] = staged.reshape(v.shape)
