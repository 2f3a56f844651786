"""Views of arrays: address, shape, strides and dtype of whatever the caller has.

On the host: numpy arrays, torch CPU tensors (torch is never imported here), and anything that numpy
can view through the buffer protocol or DLPack. On GPUs: see accl_py.device_arrays. A view never
owns memory; it holds the array.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from accl_py import _core
from accl_py.device_arrays import CudaArray, device_like
from accl_py.errors import InvalidArgument

__all__ = ["Staged", "View", "contiguous", "copy_back", "finish_all", "is_torch", "like", "view"]

DType = _core.DType

_NUMPY_DTYPES = {
    np.dtype(name): getattr(DType, name)
    for name in (
        [
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
            "bool",
            "complex64",
            "complex128",
        ]
    )
}
# ml_dtypes registers these with numpy; matched by name, so that the package is not needed here.
_NUMPY_EXTENSIONS = {
    "bfloat16": DType.bfloat16,
    "float8_e4m3fn": DType.float8_e4m3fn,
    "float8_e5m2": DType.float8_e5m2,
}
_TORCH_NAMES = {f"torch.{name}": value for name, value in DType.__members__.items()}
_SIZES = {value: _core.size_of(value) for value in DType.__members__.values()}
_DLPACK_HOST = 1
_MOST_OFFSETS = 1 << 22  # elements of an odd view that are looked at one by one


@dataclass(slots=True)
class View:
    """One array of the caller's. Sizes in elements, address in bytes."""

    name: str  # what messages call it
    array: Any  # the caller's object
    memory: Any  # it as a numpy array, or as what the caller has
    address: int
    shape: tuple[int, ...]
    dtype: DType
    contiguous: bool
    readonly: bool
    is_torch: bool
    device: int | None = None  # the GPU's ordinal; None: host memory

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


@cache
def _is_torch_type(kind: type) -> bool:
    return any(c.__module__ == "torch" and c.__name__ == "Tensor" for c in kind.__mro__)


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    kind: Any = type(array)
    return _is_torch_type(kind)


def view(array: Any, name: str, *, writable: bool = False) -> View:
    """Views an array.

    writable: it will be written; read-only memory, and elements that share memory (as in expanded
        tensors), are refused.
    Raises InvalidArgument where it is no array, is on a device that is no CUDA GPU, or has a dtype
    that is not supported; `name` is what the message calls it.
    """
    if isinstance(array, np.ndarray):
        return _numpy_view(array, array, name, writable)
    if is_torch(array):
        return _torch_view(array, name, writable)
    if hasattr(array, "__cuda_array_interface__"):
        return _cuda_view(array, name, writable)
    return _numpy_view(array, _as_numpy(array, name), name, writable)


def _as_numpy(array: Any, name: str) -> np.ndarray[Any, Any]:
    if hasattr(array, "__dlpack__"):
        device = getattr(array, "__dlpack_device__", lambda: (_DLPACK_HOST, 0))()
        if device[0] != _DLPACK_HOST:
            raise InvalidArgument(
                f"{name} is on a device of DLPack's type {int(device[0])}; expected memory of the host, "
                "or a CUDA array with __cuda_array_interface__."
            )
        try:
            return np.from_dlpack(array)
        except (TypeError, RuntimeError, BufferError, ValueError) as error:
            raise InvalidArgument(
                f"{name} ({type(array).__name__}) could not be viewed through DLPack: {error}"
            ) from error
    try:
        memory = memoryview(array)
    except (TypeError, BufferError):
        raise InvalidArgument(
            f"{name} is a {type(array).__name__}; expected a numpy or CuPy array, a torch tensor, or "
            "anything with DLPack, the buffer protocol or __cuda_array_interface__."
        ) from None
    try:
        return np.asarray(memory)
    except ValueError as error:  # a format that numpy does not know
        raise InvalidArgument(
            f"{name} ({type(array).__name__}) has elements of format '{memory.format}'; "
            f"expected one of: {_names()}."
        ) from error


def _dtype_of(kind: np.dtype[Any], name: str) -> DType:
    dtype: DType | None = _NUMPY_DTYPES.get(kind)
    if dtype is None and kind.isnative:
        dtype = _NUMPY_EXTENSIONS.get(kind.name)
    if dtype is None:
        text = str(kind) if kind.isnative else f"{kind.name} of foreign byte order"
        raise InvalidArgument(
            f"{name} has dtype {text}; expected one of: {_names()}, in native byte order."
        )
    return dtype


def _numpy_view(array: Any, a: np.ndarray[Any, Any], name: str, writable: bool) -> View:
    dtype = _dtype_of(a.dtype, name)
    whole = a.flags.c_contiguous and a.flags.aligned
    if writable:
        if not a.flags.writeable:
            raise InvalidArgument(f"{name} is read-only, but it would be written.")
        if not whole:
            _refuse_overlap(name, a.shape, a.strides, a.itemsize)
    return View(name, array, a, a.ctypes.data, a.shape, dtype, whole, not a.flags.writeable, False)


def _torch_view(t: Any, name: str, writable: bool) -> View:
    if t.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(
            f"{name} is on {t.device}; expected a tensor of the CPU or of a CUDA GPU."
        )
    on_gpu = t.device.type == "cuda"
    if str(t.layout) != "torch.strided":
        raise InvalidArgument(f"{name} is {t.layout}; expected a dense tensor.")
    dtype = _TORCH_NAMES.get(str(t.dtype))
    if dtype is None:
        raise InvalidArgument(f"{name} has dtype {t.dtype}; expected one of: {_names()}.")
    shape = tuple(t.shape)
    memory = t.detach()
    whole = t.is_contiguous() and not t.is_conj() and not t.is_neg()
    if on_gpu and not whole:
        raise _not_contiguous(name, ".contiguous()")
    if writable and not whole:
        size = t.element_size()
        _refuse_overlap(name, shape, tuple(s * size for s in t.stride()), size)
    device = t.device.index if on_gpu else None
    return View(name, t, memory, t.data_ptr(), shape, dtype, whole, False, True, device)


def _cuda_view(array: Any, name: str, writable: bool) -> View:
    a = CudaArray.of(array, name)
    if not a.contiguous:
        raise _not_contiguous(name, "cupy.ascontiguousarray(...)")
    if writable and a.readonly:
        raise InvalidArgument(f"{name} is read-only, but it would be written.")
    dtype = _dtype_of(a.dtype, name)
    return View(name, array, array, a.address, a.shape, dtype, True, a.readonly, False, a.device)


def _not_contiguous(name: str, how: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} is on a GPU and not contiguous in C order; copy it first, with {how}, since calls "
        "on a GPU make no copies of their own."
    )


def _refuse_overlap(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> None:
    """Refuses views some of whose elements share memory, as expand() and broadcast_to() make."""
    if 0 in shape:
        return
    dimensions = sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1)
    reach = itemsize  # bytes that the dimensions so far span
    for stride, n in dimensions:
        if stride < reach:
            break
        reach += stride * (n - 1)
    else:
        return
    if dimensions[0][0] >= itemsize and not _elements_meet(dimensions, itemsize):
        return
    raise InvalidArgument(
        f"{name} has elements that share memory (shape {shape}, strides {strides} bytes), but it "
        "would be written; copy it first."
    )


def _elements_meet(dimensions: list[tuple[int, int]], itemsize: int) -> bool:
    """Looks at every element; views too large for that are taken to be sound."""
    offsets = np.zeros(1, np.int64)
    for stride, n in dimensions:
        if offsets.size * n > _MOST_OFFSETS:
            return False
        offsets = np.add.outer(offsets, np.arange(n) * stride).ravel()
    offsets.sort()
    return bool((np.diff(offsets) < itemsize).any())


def _names() -> str:
    return ", ".join(DType.__members__)


def like(v: View, shape: tuple[int, ...], stream: int | None = None) -> Any:
    """A new, contiguous array of the same kind and dtype, uninitialised.

    stream: on a GPU, the stream on which it is used first, where it is not the current one.
    """
    if v.device is not None:
        return device_like(v.memory, shape, v.device, stream, v.name)
    if v.is_torch:
        return v.memory.new_empty(shape)
    return np.empty(shape, v.memory.dtype)


def contiguous(v: View) -> Any:
    """The array itself where it is contiguous, else a copy in logical (row-major) order."""
    if v.contiguous:
        return v.memory
    if v.is_torch:
        return v.memory.resolve_conj().resolve_neg().contiguous()
    return np.array(v.memory, order="C", copy=True)


def copy_back(v: View, staged: Any) -> None:
    """Copies a staged result into the caller's array."""
    if v.is_torch:
        v.memory.copy_(staged)
    else:
        v.memory[...] = staged


class Staged:
    """An array of a call: the caller's, or a contiguous copy where the caller's is not."""

    def __init__(self, v: View, *, read: bool) -> None:
        self.caller = v
        self.staged = not v.contiguous
        if self.staged:
            self.memory = contiguous(v) if read else like(v, v.shape)
            self.address = view(self.memory, "staging").address
        else:
            self.memory = v.memory
            self.address = v.address

    def finish(self) -> None:
        """Copies the result into the caller's array where it went through a copy."""
        if self.staged:
            copy_back(self.caller, self.memory)


def finish_all(outputs: list[Staged]) -> None:
    """Finishes each."""
    for staged in outputs:
        staged.finish()
