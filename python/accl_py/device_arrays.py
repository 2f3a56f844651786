"""Arrays and streams of CUDA, of whatever library the caller uses; none is imported here.

torch tensors and CuPy arrays are known by their type, and have a current stream. Anything else comes
through __cuda_array_interface__, which names the stream to order after.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from operator import index
from typing import Any

import numpy as np

from accl_py.errors import InvalidArgument

__all__ = ["CudaArray", "current_stream", "device_like", "keep_for", "stream_handle"]

_DLPACK_CUDA = (2, 13)  # device memory, managed memory
_LEGACY_STREAM = 1  # a name of the null stream
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


@cache
def is_cupy_type(kind: type) -> bool:
    """Whether it is the array of CuPy."""
    return any(
        c.__module__.partition(".")[0] == "cupy" and c.__name__ == "ndarray" for c in kind.__mro__
    )


def _is_cupy(array: Any) -> bool:
    kind: Any = type(array)
    return is_cupy_type(kind)


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


@dataclass(slots=True)
class CudaArray:
    """What an array of a GPU says of itself."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contiguous: bool
    readonly: bool
    device: int

    @classmethod
    def of(cls, array: Any, name: str) -> CudaArray:
        """Reads it. Raises InvalidArgument where what it says cannot be used."""
        if _is_cupy(array):
            whole = bool(array.flags.c_contiguous)
            address = array.data.ptr
            return cls(address, array.shape, np.dtype(array.dtype), whole, False, array.device.id)
        try:
            interface = array.__cuda_array_interface__
            shape = tuple(index(n) for n in interface["shape"])
            address, readonly = interface["data"]
            dtype = _dtype(array, interface["typestr"])
            strides = interface.get("strides")
            masked = interface.get("mask") is not None
            whole = strides is None or _is_c_order(shape, tuple(strides), dtype.itemsize)
            address = index(address)
        except Exception as error:  # of the foreign object: whatever it raises, it cannot be used
            raise InvalidArgument(
                f"{name} ({type(array).__name__}) has a __cuda_array_interface__ that cannot be "
                f"read: {type(error).__name__}: {error}."
            ) from error
        if masked:
            raise InvalidArgument(f"{name} has a mask; expected an array without one.")
        return cls(address, shape, dtype, whole, bool(readonly), _device_of(array, address, name))


def _dtype(array: Any, typestr: str) -> np.dtype[Any]:
    """The object's own dtype where it has one that numpy knows: a typestr has no bfloat16."""
    dtype: np.dtype[Any]
    try:
        dtype = np.dtype(array.dtype)
    except (AttributeError, TypeError):
        dtype = np.dtype(typestr)
    return dtype


def _is_c_order(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    if 0 in shape:
        return True
    expected = itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and stride != expected:
            return False
        expected *= n
    return True


def _device_of(array: Any, address: int, name: str) -> int:
    asked = getattr(array, "__dlpack_device__", None)
    if asked is not None:
        kind, ordinal = asked()
        if kind not in _DLPACK_CUDA:
            raise InvalidArgument(
                f"{name} is on a device of DLPack's type {int(kind)}; expected a CUDA GPU."
            )
        return int(ordinal)
    return _device_of_pointer(address, name)


def _device_of_pointer(address: int, name: str) -> int:
    """What the driver says."""
    ordinal = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL(os.environ.get("ACCL_CUDA_LIBRARY") or "libcuda.so.1")
        ask = driver.cuPointerGetAttribute
    except (OSError, AttributeError) as error:
        raise InvalidArgument(
            f"{name} does not say which GPU it is on (it has no __dlpack_device__), and the CUDA "
            f"driver cannot be asked: {error}."
        ) from error
    result = ask(ctypes.byref(ordinal), ctypes.c_int(_DEVICE_ORDINAL), ctypes.c_uint64(address))
    if result != 0:
        raise InvalidArgument(
            f"{name} has the address {address:#x}, which the CUDA driver does not know as memory of "
            f"a GPU (cuPointerGetAttribute returned {result})."
        )
    return ordinal.value


# ---- streams ----


def stream_handle(stream: Any, device: int | None, name: str = "stream") -> int:
    """The handle of a stream: an integer, or what has ptr (CuPy), cuda_stream (torch) or
    __cuda_stream__.

    Raises InvalidArgument where it is none of these, or says that it is of another GPU.
    """
    handle = _handle_of(stream)
    if isinstance(handle, bool):
        handle = None
    try:
        number = index(handle)
    except TypeError:
        raise InvalidArgument(
            f"{name} is {stream!r}; expected an integer handle, or a stream of CuPy or torch (an "
            "object with ptr, cuda_stream or __cuda_stream__)."
        ) from None
    if number < 0:
        raise InvalidArgument(f"{name} is {number}; expected a handle of 0 or more.")
    own = getattr(stream, "device_index", getattr(stream, "device_id", None))
    if device is not None and isinstance(own, int) and own >= 0 and own != device:
        raise InvalidArgument(
            f"{name} is of GPU {own}, but the arrays are on GPU {device}; both must be of one."
        )
    return 0 if number == _LEGACY_STREAM else number


def _handle_of(stream: Any) -> Any:
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if handle is not None:
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        return stream
    try:
        _, handle = protocol() if callable(protocol) else protocol
    except (TypeError, ValueError):
        return None
    return handle


def current_stream(array: Any, device: int) -> int:
    """The stream on which the array's library works now in this thread.

    Of a library that has no such notion: the stream that the array names, else the null stream.
    """
    if _is_torch(array):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if _is_cupy(array):
        handle: int = sys.modules["cupy"].cuda.get_current_stream(device).ptr
        return 0 if handle == _LEGACY_STREAM else handle
    return interface_stream(array) or 0


def interface_stream(array: Any) -> int | None:
    """The stream that an array of an unknown library asks to be ordered after; None: none."""
    if _is_torch(array) or _is_cupy(array):  # these order by their current stream
        return None
    named = array.__cuda_array_interface__.get("stream")
    return None if named is None else stream_handle(named, None)


def device_like(
    array: Any, shape: tuple[int, ...], device: int, stream: int | None, name: str
) -> Any:
    """A new array of the same kind and dtype, on the stream (None: the current one)."""
    if _is_torch(array):
        with _torch_stream(stream, device):
            return array.new_empty(shape)
    if _is_cupy(array):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            if stream is None:
                return cupy.empty(shape, array.dtype)
            with cupy.cuda.ExternalStream(stream, device):
                return cupy.empty(shape, array.dtype)
    raise InvalidArgument(
        f"out is missing, and a new {type(array).__name__} like {name} cannot be made here; give out."
    )


def keep_for(array: Any, stream: int, device: int) -> None:
    """Tells torch that a stream other than the current one uses the tensor's memory.

    Other libraries are not told: their arrays must be kept until the stream is done with them.
    """
    if _is_torch(array):
        array.record_stream(_external(stream, device))


def _external(stream: int, device: int) -> Any:
    cuda = sys.modules["torch"].cuda
    if stream == 0:  # which ExternalStream takes for "any of the pool"
        return cuda.default_stream(device)
    return cuda.ExternalStream(stream, device=device)


def _torch_stream(stream: int | None, device: int) -> AbstractContextManager[Any]:
    cuda = sys.modules["torch"].cuda
    chosen = None if stream is None else _external(stream, device)
    context: AbstractContextManager[Any] = cuda.stream(chosen)  # None: nothing changes
    return context
