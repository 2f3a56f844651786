"""How far a run is: a bar on a terminal, else a line now and then. On stderr, so that stdout is the
result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

__all__ = ["Bar", "Lines", "Progress", "Silence", "on_stderr"]

_LINE_SECONDS = 5.0


class Progress(Protocol):
    """`share` of the work is done (0 to 1), `left` seconds remain, `what` is being done."""

    def update(self, share: float, left: float | None, what: str) -> None:
        """Shows it."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


class Silence:
    """Shows nothing."""

    def update(self, share: float, left: float | None, what: str) -> None:
        """Nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Lines(Silence):
    """A line at each new step, and every few seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._last = -_LINE_SECONDS
        self._step = ""

    def update(self, share: float, left: float | None, what: str) -> None:
        """A line, if it is time for one."""
        now = self._clock()
        step = what.partition(",")[0]
        if now - self._last < _LINE_SECONDS and step == self._step and share < 1:
            return
        self._last, self._step = now, step
        print(f"accl-tune: {share:4.0%}, {_left(left)}{what}", file=self._stream, flush=True)


def _left(left: float | None) -> str:
    return "" if left is None else f"{left:.0f} s left, "


class Bar:
    """tqdm's bar."""

    def __init__(self, stream: TextIO) -> None:
        from tqdm import tqdm

        form = "{percentage:3.0f}% |{bar:30}| {postfix}"
        self._bar: Any = tqdm(
            total=1.0, file=stream, bar_format=form, leave=False, dynamic_ncols=True
        )
        self._shown = 0.0

    def update(self, share: float, left: float | None, what: str) -> None:
        """Moves the bar."""
        self._bar.n = min(share, 1.0)
        self._bar.set_postfix_str(f"{_left(left)}{what}", refresh=False)
        now = time.monotonic()
        if now - self._shown >= 0.1:  # drawing takes time from the ranks
            self._shown = now
            self._bar.refresh()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def on_stderr() -> Progress:
    """A bar if stderr is a terminal and tqdm is there, else lines."""
    if sys.stderr.isatty():
        try:
            return Bar(sys.stderr)
        except ImportError:
            pass
    return Lines(sys.stderr)
