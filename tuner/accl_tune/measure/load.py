"""How much of the machine others use meanwhile. Rules that were measured on a busy machine describe
a busy machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ForeignLoad"]

_IDLE = (3, 4)  # idle and iowait, in the first line of /proc/stat


class ForeignLoad:
    """From its making on: the cores that processes other than ours kept busy, on average.

    pids: ours, on this host, all of them there when asked.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = tuple(pids)
        self._start = self._now()

    def cores(self) -> float | None:
        """None where the system does not say."""
        now = self._now()
        if self._start is None or now is None:
            return None
        wall, foreign = now[0] - self._start[0], now[1] - self._start[1]
        return max(foreign / wall, 0.0) if wall > 0 else None

    def _now(self) -> tuple[float, float] | None:
        """(seconds, seconds of processor time that were not ours)."""
        try:
            tick = os.sysconf("SC_CLK_TCK")
            ticks = [
                int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
            ]
            ours = sum(_ticks(pid) for pid in self._pids)
        except (OSError, ValueError, IndexError):
            return None
        busy = sum(count for index, count in enumerate(ticks) if index not in _IDLE)
        return time.monotonic(), (busy - ours) / tick


def _ticks(pid: int) -> int:
    """User and system time of a process; the fields after its name, which may hold anything."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
