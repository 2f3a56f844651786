"""Where the data of a measurement lies, and how calls are timed there: the host, or a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from accl_py.communicator import PreparedCall, PreparedDeviceCall
from accl_py.perf.cuda import Device, GpuArray

__all__ = ["GpuMemory", "HostMemory", "Memory", "Timed"]

Array = np.ndarray[Any, Any]


@dataclass
class Timed:
    """A call that can be timed.

    run: once, to its end. time: the seconds of n calls back to back. time_each: the seconds of each
    of n calls. warm: n calls that nobody times.
    result is what it wrote, right what it should have written (None: nothing here, or not checked).
    """

    run: Callable[[], Any]
    time: Callable[[int], float]
    time_each: Callable[[int], list[float]]
    warm: Callable[[int], Any]
    result: Any = None
    right: Array | None = None
    reset: Callable[[], None] = lambda: None


class HostMemory:
    """numpy arrays and the host's clock."""

    options: dict[str, Any] = {}  # noqa: RUF012  of each call

    @staticmethod
    def zeros(count: int, dtype: np.dtype[Any]) -> Any:
        """A new array."""
        return np.zeros(count, dtype)

    @staticmethod
    def put(values: Array) -> Any:
        """An array with these values."""
        return values

    @staticmethod
    def get(array: Any) -> Array:
        """Its values."""
        values: Array = array
        return values

    @staticmethod
    def prepared(call: PreparedCall) -> Timed:
        """Times a loop in C++."""
        return Timed(call.run, call.time, call.time_each, call.time)

    @staticmethod
    def repeated(run: Callable[[], Any]) -> Timed:
        """Times a loop over what is made of Python steps."""

        def each(iterations: int) -> list[float]:
            ends = [time.perf_counter()]
            for _ in range(iterations):
                run()
                ends.append(time.perf_counter())
            return [after - before for before, after in pairwise(ends)]

        def total(iterations: int) -> float:
            return sum(each(iterations))

        return Timed(run, total, each, total)


class GpuMemory:
    """Arrays of a GPU, and events on its stream.

    graph_launches: where above 0, the timed calls are captured into one graph, which is launched so
        often. host_time: what the host spends on putting the calls on the stream is timed instead.
    """

    def __init__(self, device: Device, graph_launches: int = 0, host_time: bool = False) -> None:
        self.device = device
        self.options: dict[str, Any] = {"stream": device.stream}
        self._launches = graph_launches
        self._host_time = host_time

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Any:
        """A new array."""
        return self.put(np.zeros(count, dtype))

    def put(self, values: Array) -> Any:
        """An array with these values."""
        array = GpuArray(self.device, len(values), values.dtype)
        array[...] = values
        return array

    @staticmethod
    def get(array: Any) -> Array:
        """Its values, once the GPU is done."""
        values: Array = array.numpy()
        return values

    def prepared(self, call: PreparedDeviceCall) -> Timed:
        """Times what a loop in C++ puts on the stream."""
        return self._timed(call.enqueue)

    def repeated(self, run: Callable[[], Any]) -> Timed:
        """Times what a loop over Python steps puts on the stream."""

        def enqueue(iterations: int) -> None:
            for _ in range(iterations):
                run()

        return self._timed(enqueue)

    def _timed(self, enqueue: Callable[[int], object]) -> Timed:
        def warm(iterations: int) -> None:
            enqueue(iterations)
            self.device.synchronize()

        return Timed(
            lambda: warm(1),
            lambda iterations: self._time(enqueue, iterations),
            lambda iterations: self._time_each(enqueue, iterations),
            warm,
        )

    def _time(self, enqueue: Callable[[int], object], iterations: int) -> float:
        if not self._launches:
            return self._between(lambda: enqueue(iterations))
        graph = self.device.graph(lambda: enqueue(iterations))
        graph.launch()  # the first one also brings the graph to the GPU
        self.device.synchronize()

        def launch_all() -> None:
            for _ in range(self._launches):
                graph.launch()

        seconds = self._between(launch_all)
        return seconds / self._launches

    def _between(self, put_on_stream: Callable[[], object]) -> float:
        start = self.device.event()
        begin = time.perf_counter()
        put_on_stream()
        on_host = time.perf_counter() - begin
        on_gpu = self.device.event().seconds_since(start)
        return on_host if self._host_time else on_gpu

    def _time_each(self, enqueue: Callable[[int], object], iterations: int) -> list[float]:
        events = [self.device.event()]
        for _ in range(iterations):
            enqueue(1)
            events.append(self.device.event())
        return [after.seconds_since(before) for before, after in pairwise(events)]


Memory = HostMemory | GpuMemory
