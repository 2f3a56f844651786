"""The CUDA driver, as far as a measurement needs it: memory, events and graphs on one stream.

Through ctypes, so that neither CuPy nor torch is needed. The driver is the one that the core uses.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from accl_py.errors import AcclSystemError, InvalidArgument

__all__ = ["Device", "GpuArray", "device_count"]

Array = np.ndarray[Any, Any]

_NON_BLOCKING_STREAM = 1
_CAPTURE_THREAD_LOCAL = 1
_DLPACK_CUDA = 2


@cache
def _driver() -> ctypes.CDLL:
    name = os.environ.get("ACCL_CUDA_LIBRARY") or "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise AcclSystemError(f"The CUDA driver cannot be loaded: {error}.") from error
    if driver.cuInit(c_uint(0)) != 0:
        raise AcclSystemError("The CUDA driver finds no GPU that it can use (cuInit failed).")
    return driver


def _call(function: str, *arguments: Any) -> None:
    try:
        result = getattr(_driver(), function)(*arguments)
    except AttributeError:
        raise AcclSystemError(f"The CUDA driver has no {function}; it is too old.") from None
    if result != 0:
        text = c_char_p()
        _driver().cuGetErrorString(c_int(result), byref(text))
        why = text.value.decode() if text.value else "no text"
        error = AcclSystemError(f"{function} failed: {why} ({result}).")
        error.code = result
        raise error


def device_count() -> int:
    """GPUs that this process sees."""
    count = c_int()
    _call("cuDeviceGetCount", byref(count))
    return count.value


class Device:
    """One GPU with a stream of its own, current on the thread that makes it."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._device = c_int()
        _call("cuDeviceGet", byref(self._device), c_int(ordinal))
        context = c_void_p()
        _call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        _call("cuCtxSetCurrent", context)
        stream = c_void_p()
        _call("cuStreamCreateWithPriority", byref(stream), c_uint(_NON_BLOCKING_STREAM), c_int(0))
        self.stream: int = stream.value or 0

    @property
    def name(self) -> str:
        """Such as 'NVIDIA H200'."""
        return self._text("cuDeviceGetName")

    @property
    def bus_id(self) -> str:
        """Such as '0000:19:00.0'."""
        return self._text("cuDeviceGetPCIBusId")

    def _text(self, function: str) -> str:
        text = ctypes.create_string_buffer(128)
        _call(function, text, c_int(len(text)), self._device)
        return text.value.decode(errors="replace")

    def allocate(self, size: int) -> int:
        """Memory; to be given to free()."""
        memory = c_uint64()
        _call("cuMemAlloc_v2", byref(memory), c_size_t(max(size, 1)))
        return memory.value

    @staticmethod
    def free(memory: int) -> None:
        """Waits for the GPU, as the driver does."""
        _call("cuMemFree_v2", c_uint64(memory))

    def copy(self, to: int, source: int, size: int) -> None:
        """In stream order; addresses of the GPU or of the host."""
        if size:
            arguments = (c_uint64(to), c_uint64(source), c_size_t(size), c_void_p(self.stream))
            _call("cuMemcpyAsync", *arguments)

    def synchronize(self) -> None:
        """Waits for the stream."""
        _call("cuStreamSynchronize", c_void_p(self.stream))

    def event(self) -> Event:
        """A point in time on the stream: now."""
        return Event(self.stream)

    def graph(self, enqueue: Callable[[], object]) -> Graph:
        """What `enqueue` puts on the stream, as a graph, instead of running it."""
        stream = c_void_p(self.stream)
        _call("cuStreamBeginCapture_v2", stream, c_int(_CAPTURE_THREAD_LOCAL))
        captured = c_void_p()
        try:
            enqueue()
        except BaseException:
            with suppress(AcclSystemError):  # what went wrong first is told
                _call("cuStreamEndCapture", stream, byref(captured))
            raise
        _call("cuStreamEndCapture", stream, byref(captured))
        return Graph(captured, self.stream)


class Event:
    """A point in time on a stream."""

    def __init__(self, stream: int) -> None:
        self._event = c_void_p()
        _call("cuEventCreate", byref(self._event), c_uint(0))
        _call("cuEventRecord", self._event, c_void_p(stream))

    def seconds_since(self, earlier: Event) -> float:
        """On the GPU's clock; waits for this one."""
        _call("cuEventSynchronize", self._event)
        milliseconds = c_float()
        _call("cuEventElapsedTime", byref(milliseconds), earlier._event, self._event)
        return milliseconds.value / 1e3

    def __del__(self) -> None:
        if self._event:
            _call("cuEventDestroy_v2", self._event)


class Graph:
    """A captured graph, ready to run."""

    def __init__(self, captured: c_void_p, stream: int) -> None:
        self._stream = stream
        self._ready = c_void_p()
        _call("cuGraphInstantiateWithFlags", byref(self._ready), captured, c_uint64(0))
        _call("cuGraphDestroy", captured)

    def launch(self) -> None:
        """On the stream."""
        _call("cuGraphLaunch", self._ready, c_void_p(self._stream))

    def __del__(self) -> None:
        if self._ready:
            _call("cuGraphExecDestroy", self._ready)


class GpuArray:
    """A flat array on a GPU: what accl-perf does with numpy's, in the order of the device's stream.

    Slices share memory.
    """

    def __init__(self, device: Device, count: int, dtype: np.dtype[Any]) -> None:
        self.device = device
        self.dtype = dtype
        self.shape = (count,)
        self._whole: GpuArray | None = None  # whose memory it is
        self._address = device.allocate(count * dtype.itemsize)

    def __del__(self) -> None:
        if getattr(self, "_address", 0) and self._whole is None:
            self.device.free(self._address)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> GpuArray:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise InvalidArgument(f"A part of a GpuArray has step {step}; expected 1.")
        view = object.__new__(GpuArray)
        view.device, view.dtype, view.shape = self.device, self.dtype, (max(stop - start, 0),)
        view._whole = self
        view._address = self._address + start * self.dtype.itemsize
        return view

    def __setitem__(self, part: slice | Any, values: GpuArray | Array) -> None:
        target = self if part is Ellipsis else self[part]
        if len(values) != len(target) or values.dtype != target.dtype:
            raise InvalidArgument(f"{values.dtype} x {len(values)} cannot go into {target!r}.")
        size = len(target) * self.dtype.itemsize
        if isinstance(values, GpuArray):
            self.device.copy(target._address, values._address, size)
            return
        values = np.ascontiguousarray(values)
        self.device.copy(target._address, values.ctypes.data, size)
        self.device.synchronize()  # the values may go

    def copy(self) -> GpuArray:
        """Another one with the same values."""
        other = GpuArray(self.device, len(self), self.dtype)
        other[...] = self
        return other

    def numpy(self) -> Array:
        """The values, once the stream is done with what is on it now."""
        values = np.empty(self.shape, self.dtype)
        self.device.copy(values.ctypes.data, self._address, values.nbytes)
        self.device.synchronize()
        return values

    def __repr__(self) -> str:
        return f"<{self.dtype} x {len(self)} on GPU {self.device.ordinal}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address if len(self) else 0, False),
            "version": 3,
            "stream": self.device.stream or None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CUDA, self.device.ordinal
