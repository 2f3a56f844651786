"""Arrays in the memory of the fake GPUs, which this process can read, too.

`Exported` knows nothing but __cuda_array_interface__; `ndarray`, with the module `Cupy`, stands in
for CuPy.
"""

from __future__ import annotations

import ctypes
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fakes import FakeCuda

DLPACK_CUDA = 2
gpu = FakeCuda()
_current = threading.local()


class Memory:
    """Bytes on a GPU, and a numpy view of them."""

    def __init__(self, values: np.ndarray[Any, Any], device: int) -> None:
        gpu.use_device(device)
        self.address = gpu.allocate(max(values.nbytes, 1))
        self.device = device
        raw = (ctypes.c_char * values.nbytes).from_address(self.address)
        self.host = np.frombuffer(raw, values.dtype).reshape(values.shape)
        self.host[...] = values

    def __del__(self) -> None:
        gpu.free(self.address)


class Exported:
    """An array of a library that accl_py does not know."""

    def __init__(self, values: Any, device: int = 0, **interface: Any) -> None:
        self.memory = Memory(np.asarray(values), device)
        self.host = self.memory.host
        self.dtype = self.host.dtype
        self._interface = interface

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.host.shape,
            "typestr": self.dtype.str,
            "data": (self.memory.address, False),
            "version": 3,
            **self._interface,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CUDA, self.memory.device


class ndarray:  # noqa: N801
    """CuPy's, as far as accl_py looks at it."""

    def __init__(self, values: Any, device: int = 0) -> None:
        values = np.asarray(values)
        self._memory = Memory(values, device)
        self._at(self._memory.host, device)

    def _at(self, host: np.ndarray[Any, Any], device: int) -> None:
        self.host = host
        self.shape, self.dtype = host.shape, host.dtype
        self.flags = types.SimpleNamespace(c_contiguous=host.flags.c_contiguous)
        self.data = types.SimpleNamespace(ptr=host.ctypes.data)
        self.device = types.SimpleNamespace(id=device)

    def __getitem__(self, key: Any) -> ndarray:
        part = object.__new__(ndarray)
        part._memory = self._memory
        part._at(self.host[key], self.device.id)
        return part

    __cuda_array_interface__: dict[str, Any] = {}  # that it is there is enough


ndarray.__module__ = "cupy"


class Stream:
    """CuPy's stream."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self.ptr = ptr
        self.device_id = device_id


class Cupy(types.ModuleType):
    """The module `cupy`. Each thread has a current stream, 0 unless `using` says otherwise."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.made_on: list[tuple[int, int]] = []  # device and stream of each call of empty()
        self.cuda = types.SimpleNamespace(
            get_current_stream=lambda device=-1: Stream(self._stream()),
            Device=_device,
            ExternalStream=lambda ptr, device: using(ptr),
        )

    @staticmethod
    def _stream() -> int:
        return int(getattr(_current, "stream", 0))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> ndarray:
        self.made_on.append((_current.device, self._stream()))
        return ndarray(np.zeros(shape, dtype), _current.device)


@contextmanager
def using(stream: int) -> Iterator[None]:
    """The stream is this thread's current one."""
    before = getattr(_current, "stream", 0)
    _current.stream = stream
    try:
        yield
    finally:
        _current.stream = before


@contextmanager
def _device(ordinal: int) -> Iterator[None]:
    _current.device = ordinal
    yield


def settled(*streams: int, device: int = 0) -> None:
    """What is on the streams (or on the GPU's null stream) has run."""
    gpu.use_device(device)
    for stream in streams or (0,):
        gpu.synchronize(stream)
