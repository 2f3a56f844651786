"""Schedules: the pure form of the CPU engine's algorithms; docs/algorithms.md describes each.

`algorithms(collective)` lists them, the default first; `plan(...)` gives one rank's rounds of
transfers.
"""

from accl_py._core import Algorithm, Schedule, algorithms, plan

__all__ = ["Algorithm", "Schedule", "algorithms", "plan"]
