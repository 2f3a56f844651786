"""The GPU half of a communicator: NCCL, and kernels of our own, on the streams of CUDA.

It is made collectively, with `device=` or at the first collective call with CUDA arrays.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, TypedDict

from accl_py import _core
from accl_py.arguments import CallOptions
from accl_py.arrays import Staged
from accl_py.device_arrays import current_stream, interface_stream, keep_for, stream_handle
from accl_py.errors import InvalidArgument
from accl_py.stores import StoreAdapter
from accl_py.work import DeviceWork

__all__ = ["DeviceOptions", "DeviceSide", "Origin", "device_of", "gpu_unavailable"]

_NCCL = "libnccl.so.2"
_LEFT_OUT = "expected all arrays of a call in one place"


class DeviceOptions(TypedDict, total=False):
    """How the GPU half is made; all but on_fault must be the same on every rank.

    blocking: False: making it returns while NCCL still connects; calls wait for that.
    min_channels, max_channels: NCCL's minCTAs and maxCTAs, 1 to 64; 0: its own choice.
    cga_cluster_size, traffic_class: as NCCL's; -1: its own choice. network: its netName.
    split_share: children of split() share the parent's resources.
    kernels: our own kernels where the rules ask for them and the ranks can have them.
    on_fault: "raise": after a fault, later calls raise. "exit": the process ends, too, lest the
        streams go on with data that never came.
    """

    blocking: bool
    min_channels: int
    max_channels: int
    cga_cluster_size: int
    traffic_class: int
    network: str
    split_share: bool
    kernels: bool
    on_fault: str


@dataclass(frozen=True)
class Origin:
    """How a communicator was made, so that its GPU half can be made alike."""

    store: Any  # the caller's
    rank: int
    size: int
    timeout: float
    name: str
    rules: _core.Rules | None
    rules_file: str
    device_options: DeviceOptions

    def core_options(self, device: int) -> _core.DeviceOptions:
        """For the core; InvalidArgument for an unknown or ill-typed option."""
        known = DeviceOptions.__annotations__
        if unknown := self.device_options.keys() - known.keys():
            raise InvalidArgument(
                f"device_options has {min(unknown)!r}; expected some of: {', '.join(known)}."
            )
        try:
            return _core.DeviceOptions(
                device,
                self.timeout,
                self.name,
                self.rules,
                self.rules_file,
                **self.device_options,
            )
        except TypeError:
            raise InvalidArgument(
                f"device_options is {dict(self.device_options)!r}, which holds a value of a wrong "
                "type; see accl_py.device.DeviceOptions."
            ) from None

    def lasting_store(self) -> Any:
        """Collective. The watchdog asks the store at any time; that of MPI cannot be asked so."""
        lasting = getattr(self.store, "lasting", None)
        return self.store if lasting is None else lasting()


def device_of(staged: Sequence[Staged]) -> int | None:
    """The GPU that all arrays are on; None: all are on the host.

    Raises InvalidArgument where they are in several places.
    """
    if not staged:
        return None
    first = staged[0].caller
    for other in staged:
        v = other.caller
        if v.device != first.device:
            raise InvalidArgument(
                f"{first.name} is {_where(first.device)}, but {v.name} is {_where(v.device)}; "
                f"{_LEFT_OUT}."
            )
    return first.device


def _where(device: int | None) -> str:
    return "in host memory" if device is None else f"on GPU {device}"


class DeviceSide:
    """The GPU half of one rank."""

    def __init__(self, origin: Origin, handle: _core.DeviceCommunicator | None = None) -> None:
        self._origin = origin
        self._handle = handle
        self._joining = Lock()

    @property
    def handle(self) -> _core.DeviceCommunicator | None:
        """The core's communicator; None: not made yet."""
        return self._handle

    def join(self, device: int, timeout: float | None = None) -> _core.DeviceCommunicator:
        """Makes it unless it is there: then collective. All later calls must be for that GPU."""
        with self._joining:
            if self._handle is None:
                origin = self._origin if timeout is None else replace(self._origin, timeout=timeout)
                options = origin.core_options(device)
                load_nccl()
                store = StoreAdapter(origin.lasting_store())
                self._handle = _core.DeviceCommunicator.create(
                    store, origin.rank, origin.size, options
                )
        if self._handle.device != device:
            raise InvalidArgument(
                f"The arrays are on GPU {device}, but communicator '{self._origin.name}' is bound to "
                f"GPU {self._handle.device}, that of its first call; expected arrays there."
            )
        return self._handle

    def require(self, what: str, device: int | None = None) -> _core.DeviceCommunicator:
        """It as it is, for what not all ranks do; InvalidArgument where it is not made yet."""
        if self._handle is None:
            raise InvalidArgument(
                f"{what} needs the GPU half of communicator '{self._origin.name}', which all ranks "
                "make together: give device= when the communicator is made, or make a collective "
                "call with CUDA arrays first."
            )
        return self._handle if device is None else self.join(device)

    def enqueue(
        self,
        handle: _core.DeviceCommunicator,
        calls: list[_core.Call],
        keep: list[Staged],
        result: Any,
        options: CallOptions,
        peer: int = -1,
    ) -> Any:
        """Puts calls on the stream of the arrays (or of the options). The result, or a Work."""
        device = handle.device
        stream = self.stream_for(handle, keep, options)
        if not options.get("async_op"):
            if len(calls) == 1:
                handle.run(calls[0], stream)
            else:
                handle.enqueue_group(calls, stream)
        else:
            work = (
                handle.enqueue(calls[0], stream)
                if len(calls) == 1
                else handle.enqueue_group(calls, stream)
            )
            now = partial(current_stream, keep[0].memory, device) if keep else lambda: stream
            result = DeviceWork(work, result, keep, now, device, peer)
        if options.get("stream") is not None:
            for staged in keep:
                keep_for(staged.memory, stream, device)
        return result

    def stream_for(
        self, handle: _core.DeviceCommunicator, keep: list[Staged], options: CallOptions
    ) -> int:
        """The stream of a call, ordered after those that the arrays ask for."""
        given = options.get("stream")
        if given is not None:
            stream = stream_handle(given, handle.device)
        else:
            stream = current_stream(keep[0].memory, handle.device)
        for staged in keep:
            named = interface_stream(staged.memory)
            if named is not None and named != stream:
                handle.follow(stream, named)
        return stream

    def split(self, color: int, key: int, origin: Origin) -> DeviceSide | None:
        """Collective. The GPU half of a child, not made yet where this one is not."""
        if self._handle is None:
            return DeviceSide(origin) if color >= 0 else None
        options = origin.core_options(self._handle.device)
        child = self._handle.split(color, key, options)
        return None if child is None else DeviceSide(origin, child)


def gpu_unavailable() -> str | None:
    """Why calls with arrays on GPUs cannot work in this process; None where they can.

    They need a CUDA driver, a GPU and NCCL.
    """
    load_nccl()
    return _core.DeviceCommunicator.unavailable()


def load_nccl() -> None:
    """Loads the libnccl of the nvidia-nccl wheel where the process holds none and none is named.

    The core finds it then, wherever the wheel is installed. Failures are left to the core, which
    says what was tried.
    """
    if os.environ.get("ACCL_NCCL_LIBRARY"):
        return
    with suppress(OSError):
        ctypes.CDLL(_NCCL, mode=os.RTLD_NOLOAD)  # torch's, say
        return
    try:
        spec = find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / "lib" / _NCCL
        if path.exists():
            with suppress(OSError):
                ctypes.CDLL(str(path))
            return
