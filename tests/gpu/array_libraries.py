"""CuPy and torch, as far as the programs of accl_py_programs.py need them: arrays, streams, delays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

DELAY = 0.3  # seconds, of delay(): far more than a call takes


class CupyLibrary:
    """CuPy's arrays. Nothing here compiles a kernel, which would need the CUDA toolkit."""

    reduced = (
        *("float64", "float32", "float16", "int8", "uint8", "int32", "int64", "uint32", "uint64"),
        *("complex64", "complex128"),
    )
    moved_only = ("int16", "bool")

    def __init__(self, device: int) -> None:
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(device).use()

    def make(self, values: Any, dtype: str) -> Any:
        """An array of the GPU with these values."""
        return self.cupy.asarray(np.asarray(values).astype(dtype))

    def read(self, array: Any) -> Any:
        """Its values; waits for the current stream alone."""
        assert isinstance(array, self.cupy.ndarray)
        return array.get()

    def stream(self) -> Any:
        """A new one, which the null stream does not wait for."""
        return self.cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        """The stream is the current one."""
        with stream:
            yield

    def busy(self, stream: Any) -> bool:
        """Whether something on it has not run yet."""
        return not stream.done

    def delay(self, stream: Any) -> None:
        """What is put on the stream now runs later."""
        stream.launch_host_func(lambda _: time.sleep(DELAY), None)

    def fill(self, array: Any, byte: int, stream: Any) -> None:
        """Sets every byte, on the stream."""
        array.data.memset_async(byte, array.nbytes, stream)

    def column(self, array: Any) -> Any:
        """A view that is not contiguous."""
        return array[:, 1]

    def synchronize(self) -> None:
        """Waits for the GPU."""
        self.cupy.cuda.runtime.deviceSynchronize()


class TorchLibrary:
    """torch's CUDA tensors."""

    reduced = (
        *("float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64"),
        *("complex64", "complex128"),
    )
    moved_only = ("float8_e4m3fn", "float8_e5m2", "int16", "bool")

    def __init__(self, device: int) -> None:
        import torch

        self.torch = torch
        torch.cuda.set_device(device)

    def make(self, values: Any, dtype: str) -> Any:
        """A tensor of the GPU with these values."""
        host = self.torch.from_numpy(np.array(values))
        return host.to(getattr(self.torch, dtype)).cuda()

    def read(self, array: Any) -> Any:
        """Its values in a type that numpy has; waits for the current stream alone."""
        assert isinstance(array, self.torch.Tensor) and array.is_cuda
        host = array.cpu()
        numpy_has_it = str(host.dtype).rpartition(".")[2] in CupyLibrary.reduced + ("int16", "bool")
        return host.numpy() if numpy_has_it else host.to(self.torch.float64).numpy()

    def stream(self) -> Any:
        """A new one, which the null stream does not wait for."""
        return self.torch.cuda.Stream()

    @contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        """The stream is the current one."""
        with self.torch.cuda.stream(stream):
            yield

    def busy(self, stream: Any) -> bool:
        """Whether something on it has not run yet."""
        return not stream.query()

    def delay(self, stream: Any) -> None:
        """What is put on the stream now runs later."""
        with self.torch.cuda.stream(stream):
            self.torch.cuda._sleep(int(2e9 * DELAY))  # cycles

    def fill(self, array: Any, byte: int, stream: Any) -> None:
        """Sets every byte, on the stream."""
        with self.torch.cuda.stream(stream):
            array.view(self.torch.uint8).fill_(byte)

    def column(self, array: Any) -> Any:
        """A view that is not contiguous."""
        return array[:, 1]

    def synchronize(self) -> None:
        """Waits for the GPU."""
        self.torch.cuda.synchronize()


LIBRARIES: dict[str, Any] = {"cupy": CupyLibrary, "torch": TorchLibrary}
