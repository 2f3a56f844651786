"""What tests say to the fakes and ask of them: fakes.h for Python.

The process must have been started with build.Fakes.environment(), or have set it before the first
use of CUDA by accl_py; then these are the very libraries that accl_py uses.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_long, c_size_t, c_uint, c_ulonglong, c_void_p

UNDEFINED = -(2**31)


class Config(ctypes.Structure):
    """accl::nccl::Config of accl/src/engine/nccl/api.h."""

    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cga_cluster_size", c_int),
        ("min_ctas", c_int),
        ("max_ctas", c_int),
        ("net_name", c_char_p),
        ("split_share", c_int),
        ("traffic_class", c_int),
        ("comm_name", c_char_p),
        ("collnet_enable", c_int),
        ("cta_policy", c_int),
        ("shrink_share", c_int),
    ]


class FakeCuda:
    """The driver: streams, memory, and what fakes.h adds. Streams are integers, 0 the null stream."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["ACCL_CUDA_LIBRARY"])
        for name, result, *arguments in (
            ("fake_cuda_set_capturing", None, c_void_p, c_int),
            ("fake_cuda_pause", None, c_void_p),
            ("fake_cuda_resume", None, c_void_p),
            ("fake_cuda_live_events", c_long),
            ("fake_cuda_live_streams", c_long),
            ("fake_cuda_live_bytes", c_size_t),
            ("fake_cuda_device_of", c_int, c_void_p),
        ):
            function = getattr(self.library, name)
            function.restype = result
            function.argtypes = arguments
        self._check("cuInit", c_uint(0))

    def use_device(self, ordinal: int) -> None:
        """Makes the device current on this thread."""
        context = c_void_p()
        self._check("cuDevicePrimaryCtxRetain", byref(context), c_int(ordinal))
        self._check("cuCtxSetCurrent", context)

    def new_stream(self) -> int:
        """A stream of the current device."""
        stream = c_void_p()
        self._check("cuStreamCreateWithPriority", byref(stream), c_uint(1), c_int(0))
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        self._check("cuStreamDestroy_v2", c_void_p(stream))

    def synchronize(self, stream: int) -> None:
        self._check("cuStreamSynchronize", c_void_p(stream))

    def allocate(self, size: int) -> int:
        """Memory of the current device: its address is also one of this process."""
        memory = c_ulonglong()
        self._check("cuMemAlloc_v2", byref(memory), c_size_t(size))
        return memory.value

    def free(self, memory: int) -> None:
        self._check("cuMemFree_v2", c_ulonglong(memory))

    def set_capturing(self, stream: int, capturing: bool) -> None:
        self.library.fake_cuda_set_capturing(stream, int(capturing))

    def pause(self, stream: int) -> None:
        self.library.fake_cuda_pause(stream)

    def resume(self, stream: int) -> None:
        self.library.fake_cuda_resume(stream)

    def device_of(self, stream: int) -> int:
        return self.library.fake_cuda_device_of(stream)

    def live_events(self) -> int:
        return self.library.fake_cuda_live_events()

    def live_streams(self) -> int:
        return self.library.fake_cuda_live_streams()

    def live_bytes(self) -> int:
        return self.library.fake_cuda_live_bytes()

    def _check(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} of the fake driver returned {result}.")


class FakeNccl:
    """NCCL: failures to order, counters and logs."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["ACCL_NCCL_LIBRARY"])
        for name, result, *arguments in (
            ("fake_nccl_fail_next", None, c_char_p, c_int),
            ("fake_nccl_fail_next_here", None, c_char_p, c_int),
            ("fake_nccl_calls", c_long, c_char_p),
            ("fake_nccl_set_async_error", c_int, c_char_p, c_int, c_int),
            ("fake_nccl_last_config", c_int, c_char_p, c_int, POINTER(Config)),
            ("fake_nccl_log", c_size_t, c_char_p, c_int, c_char_p, c_size_t),
            ("fake_nccl_end_waiting_inits", None),
            ("fake_nccl_mismatches", c_long),
            ("fake_nccl_live_communicators", c_long),
        ):
            function = getattr(self.library, name)
            function.restype = result
            function.argtypes = arguments

    def fail_next(self, function: str, result: int, here: bool = False) -> None:
        """The next call of the function, on any thread or here, does nothing and returns result."""
        name = "fake_nccl_fail_next_here" if here else "fake_nccl_fail_next"
        getattr(self.library, name)(function.encode(), result)

    def calls(self, function: str) -> int:
        return self.library.fake_nccl_calls(function.encode())

    def set_async_error(self, result: int, name: str | None = None, rank: int = -1) -> int:
        return self.library.fake_nccl_set_async_error(_bytes(name), rank, result)

    def last_config(self, name: str | None, rank: int) -> Config | None:
        config = Config()
        found = self.library.fake_nccl_last_config(_bytes(name), rank, byref(config))
        return config if found else None

    def log(self, name: str | None, rank: int) -> list[str]:
        """The calls of the newest communicator of that name and rank, one line each."""
        size = self.library.fake_nccl_log(_bytes(name), rank, None, 0)
        text = ctypes.create_string_buffer(size + 1)
        self.library.fake_nccl_log(_bytes(name), rank, text, size + 1)
        return text.value.decode().splitlines()

    def end_waiting_inits(self) -> None:
        self.library.fake_nccl_end_waiting_inits()

    def mismatches(self) -> int:
        return self.library.fake_nccl_mismatches()

    def live_communicators(self) -> int:
        return self.library.fake_nccl_live_communicators()


def _bytes(name: str | None) -> bytes | None:
    return None if name is None else name.encode()
