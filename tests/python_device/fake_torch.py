"""CUDA tensors of a stand-in for torch, over the fake GPUs, as far as accl_py looks at them."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gpu_arrays import Memory

# Types that numpy lacks lie in integers of the same size.
STORED = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
_current = threading.local()


class Device:
    """torch.device."""

    def __init__(self, kind: str, index: int | None) -> None:
        self.type, self.index = kind, index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class DType:
    """torch.dtype."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """torch.Tensor. `host` has its values; for types that numpy lacks, their bits."""

    layout = "torch.strided"

    def __init__(self, values: Any, dtype: str, device: int = 0) -> None:
        self.dtype, self.device = DType(dtype), Device("cuda", device)
        memory = Memory(np.asarray(values).astype(STORED.get(dtype, dtype)), device)
        self._at(memory, memory.host)

    def _at(self, memory: Memory, host: np.ndarray[Any, Any]) -> None:
        self._memory, self.host, self.shape = memory, host, host.shape
        self.recorded: list[int] = []

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise TypeError("torch has none for some types, and for tensors that require grad.")

    def t(self) -> Tensor:
        other = object.__new__(Tensor)
        other.dtype, other.device = self.dtype, self.device
        other._at(self._memory, self.host.T)
        return other

    def detach(self) -> Tensor:
        return self

    def data_ptr(self) -> int:
        return self.host.ctypes.data

    def element_size(self) -> int:
        return self.host.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.host.itemsize for s in self.host.strides)

    def is_contiguous(self) -> bool:
        return bool(self.host.flags.c_contiguous)

    def is_conj(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return False

    def new_empty(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(np.zeros(shape, self.host.dtype), self.dtype.name, self.device.index or 0)

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream.cuda_stream)


Tensor.__module__ = "torch"


class Stream:
    """torch.cuda.Stream and torch.cuda.ExternalStream."""

    def __init__(self, cuda_stream: int, device: int = 0) -> None:
        self.cuda_stream, self.device_index = cuda_stream, device


@contextmanager
def using(stream: Stream | None) -> Iterator[None]:
    """The stream is this thread's current one; None: nothing changes."""
    before = getattr(_current, "stream", 0)
    _current.stream = before if stream is None else stream.cuda_stream
    try:
        yield
    finally:
        _current.stream = before


class Torch(types.ModuleType):
    """The module `torch`. Each thread has a current stream, 0 unless `using` says otherwise."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.Tensor = Tensor
        self.asked: list[int] = []  # devices of which the current stream was asked
        self.cuda = types.SimpleNamespace(
            current_stream=self._current_stream, ExternalStream=Stream, stream=using
        )

    def _current_stream(self, device: int) -> Stream:
        self.asked.append(device)
        return Stream(getattr(_current, "stream", 0), device)
