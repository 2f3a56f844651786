"""Calls under way: on the host, and on a GPU's stream."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Lock
from typing import Any

from accl_py import _core
from accl_py.arguments import seconds_of
from accl_py.arrays import Staged, finish_all
from accl_py.device_arrays import stream_handle
from accl_py.errors import AcclError, TimeoutError

__all__ = ["DeviceWork", "HostWork", "Work"]


class Work:
    """A call under way, with async_op.

    May be dropped: it completes all the same.
    """

    _work: Any
    _result: Any

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Waits and returns the call's result.

        Of arrays on the host: blocks until it is there. Raises the call's error, or
        accl_py.errors.TimeoutError if `timeout` (seconds) passes first: the call then goes on and
        may be waited for again. Of arrays on a GPU: see DeviceWork.wait.
        """
        raise NotImplementedError

    def done(self) -> bool:
        """Whether it is complete, with or without an error."""
        raise NotImplementedError

    @property
    def result(self) -> Any:
        """What the call returns; waits for it."""
        return self.wait()

    @property
    def sequence(self) -> int:
        """The number of the call, from 1; collectives and point-to-point messages count apart."""
        number: int = self._work.sequence
        return number

    @property
    def source_rank(self) -> int:
        """Of a recv: who sent it; -1 until it is complete."""
        raise NotImplementedError

    def report(self) -> dict[str, Any]:
        """What really ran: algorithm, protocol, chunk_bytes, traffic; on a GPU engine, too.

        Empty words until it is complete, and where NCCL chose by itself.
        """
        report: dict[str, Any] = self._work.report()
        return report

    def __repr__(self) -> str:
        return f"<accl_py.Work #{self.sequence}, {'complete' if self.done() else 'under way'}>"

    def _late(self, timeout: float | timedelta) -> TimeoutError:
        return TimeoutError(
            f"The call (#{self.sequence}) was not complete after {timeout} s; it goes on."
        )


class HostWork(Work):
    """Of arrays in host memory, which are kept until it is complete."""

    def __init__(self, work: _core.Work, result: Any, staged: list[Staged]) -> None:
        self._work = work
        self._result = result
        self._staged = staged  # results that are still to be copied back
        self._finishing = Lock()

    def __del__(self) -> None:
        # Dropped under way: the results are copied back once they are there.
        if self._staged:
            work, staged = self._work, self._staged
            work.on_complete(lambda: None if work.failed() else finish_all(staged))

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """As Work.wait."""
        if not self._work.wait(None if timeout is None else seconds_of(timeout)):
            assert timeout is not None
            raise self._late(timeout)
        self._copy_back()
        return self._result

    def _copy_back(self) -> None:
        if self._staged:
            with self._finishing:
                staged, self._staged = self._staged, []
                finish_all(staged)

    def done(self) -> bool:
        """As Work.done."""
        if not self._work.done():
            return False
        if not self._work.failed():
            self._copy_back()
        return True

    @property
    def source_rank(self) -> int:
        """As Work.source_rank."""
        rank: int = self._work.source_rank
        return rank


class DeviceWork(Work):
    """Of arrays on a GPU: the call is on its stream already. Keeps the arrays while it lives."""

    def __init__(
        self,
        work: _core.DeviceWork,
        result: Any,
        keep: list[Staged],
        current_stream: Callable[[], int],
        device: int,
        peer: int = -1,
    ) -> None:
        self._work = work
        self._result = result
        self._keep = keep
        self._current_stream = current_stream
        self._device = device
        self._peer = peer

    def wait(self, timeout: float | timedelta | None = None, *, stream: Any = None) -> Any:
        """Lets a stream wait, and returns the result, which that stream may use from now on.

        The host does not block. stream: which one; None: the one that is current now. With a
        timeout the host blocks instead, until the GPU is done or accl_py.errors.TimeoutError is
        raised; the call then goes on. Raises the error that ended the communicator.
        """
        if timeout is not None:
            return self.synchronize(timeout)
        handle = self._current_stream() if stream is None else stream_handle(stream, self._device)
        self._work.order(handle)
        return self._result

    def synchronize(self, timeout: float | timedelta | None = None) -> Any:
        """Blocks the host until the GPU is done, and returns the result.

        Raises the call's error, or accl_py.errors.TimeoutError if `timeout` passes first.
        """
        if not self._work.wait(None if timeout is None else seconds_of(timeout)):
            assert timeout is not None
            raise self._late(timeout)
        return self._result

    def done(self) -> bool:
        """Asks the GPU."""
        complete: bool = self._work.done()
        return complete

    @property
    def error(self) -> AcclError | None:
        """The error with which it ended; None while it has none."""
        try:
            self._work.raise_error()
        except AcclError as error:
            return error
        return None

    @property
    def source_rank(self) -> int:
        """Of a recv: the peer."""
        return self._peer
