"""What rank 0 sees of the measuring ranks, and what a sweep needs of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from accl_py import Rules, schedule
from accl_py.errors import AcclError

from accl_tune.errors import MeasureError
from accl_tune.measure.bench import Bench, Job
from accl_tune.measure.candidates import field_of
from accl_tune.measure.data import dtype_of
from accl_tune.model import Cell, Choice, Field, Pair

__all__ = ["DEFAULT", "RULES", "ChoiceFailed", "Lead", "Measurer", "Side"]


class _Rules:
    """The side that obeys the rules given by `use_rules`."""


DEFAULT = None
RULES = _Rules()

# A pair takes so many turns, and of each side the best one counts. A neighbour that takes a core
# for some milliseconds spoils a turn and not the pair; as both sides have as many turns, neither is
# favoured.
_TURNS = 4

# One side of a comparison: None is the call with no forced choice.
Side = Choice | _Rules | None


class ChoiceFailed(Exception):
    """A choice ended the communicator; a new one has been made. `side` is None where it was the
    default.
    """

    def __init__(self, side: Side, why: str) -> None:
        super().__init__(why)
        self.side = side


class Measurer(Protocol):
    """What a sweep needs: the engine's own default, a check of the data, and times. Tests have
    their own.
    """

    ranks: int
    nodes: int

    def field(self, cell: Cell) -> Field:
        """Who competes in a cell."""

    def check(self, cell: Cell, sides: Sequence[Side]) -> list[str]:
        """What is wrong with each side's data; empty where nothing is."""

    def seconds(self, cell: Cell, side: Side, iterations: int) -> float:
        """The time of a batch of so many calls."""

    def pairs(self, cell: Cell, order: Sequence[tuple[Side, bool]], iterations: int) -> list[Pair]:
        """A pair for each entry: who competes with the default, and who runs first."""

    def renew(self) -> None:
        """Makes communicators and buffers anew, so that no decision rests on how memory fell."""


class Lead:
    """Rank 0's side: every method has all ranks act. `alive` raises MeasureError where a rank
    process is gone.
    """

    def __init__(
        self,
        bench: Bench,
        dtype: str,
        *,
        timeout: float = 20.0,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._bench = bench
        self._dtype = dtype
        self._timeout = timeout
        self._alive = alive
        self.ranks = bench.control.size
        self.nodes = bench.control.nodes
        self.element_bytes = dtype_of(dtype).itemsize
        self.pids: tuple[int, ...] = ()  # of all ranks, where they are ours
        self.between_jobs = True  # else the ranks are not in lockstep, and cannot be told anything
        self._renewed = 0
        self._random = random.Random(bench.control.size)
        self.renew()

    def _job(self, what: str, cell: Cell, sides: Sequence[Side], **fields: Any) -> Job:
        return {
            "do": what,
            "cell": [cell.collective, cell.bytes],
            "dtype": self._dtype,
            "timeout": self._timeout,
            "choices": [_words(side) for side in sides],
            **fields,
        }

    def _run(self, job: Job, sides: Sequence[Side]) -> list[float]:
        """Has all ranks run a job. Raises ChoiceFailed where a choice ended the communicator."""
        self._bench.at = -1
        self.between_jobs = False
        try:
            result = self._bench.lead(job)
        except AcclError as error:
            self._alive()
            try:
                self._bench.reconnect()
            except AcclError as second:
                self._alive()
                raise MeasureError(f"The ranks could not go on: {second}") from error
            self.between_jobs = True
            if self._bench.at < 0:
                raise MeasureError(f"The ranks could not go on: {error}") from error
            failed = sides[self._bench.at]
            self.renew()
            raise ChoiceFailed(failed, str(error)) from error
        self.between_jobs = True
        return result

    def renew(self) -> None:
        """Makes communicators and buffers anew, the communicators in random order."""
        self._renewed += 1
        order = ["default", "rules"]
        self._random.shuffle(order)
        self._run({"do": "renew", "number": self._renewed, "order": order}, [])

    def field(self, cell: Cell) -> Field:
        """Who competes in a cell: all that the registry has, and what the engine runs with no
        forced choice.
        """
        return field_of(cell, self.ranks, self.element_bytes, self._choice(cell, DEFAULT))

    def with_rules(self, cell: Cell) -> Choice:
        """What the engine runs with the rules given by `use_rules`."""
        return self._choice(cell, RULES)

    def report(self, cell: Cell, side: Side) -> dict[str, Any]:
        """Makes one call; what the executor of rank 0 did: algorithm, protocol, chunk_bytes,
        traffic.
        """
        self._run(self._job("run", cell, [side]), [side])
        return self._bench.reported

    def _choice(self, cell: Cell, side: Side) -> Choice:
        """As rules spell it: the algorithm's own chunk size is 0."""
        ran = self.report(cell, side)
        own = {row.name: row.default_chunk_bytes for row in schedule.algorithms(cell.collective)}
        chunk = int(ran["chunk_bytes"])
        return Choice(
            ran["algorithm"], ran["protocol"], 0 if chunk == own.get(ran["algorithm"]) else chunk
        )

    def use_rules(self, rules: Rules, text: str) -> None:
        """Makes a second communicator of all ranks, which obeys rules."""
        self._run({"do": "use", "text": text, "name": rules.name}, [])
        self.renew()

    def check(self, cell: Cell, sides: Sequence[Side]) -> list[str]:
        """What is wrong with each side's data; empty where nothing is."""
        try:
            return [
                self._complaint(count)
                for count in self._run(self._job("check", cell, sides), sides)
            ]
        except ChoiceFailed as failure:
            if len(sides) == 1:
                return [f"the call failed: {failure}"]
        return [complaint for side in sides for complaint in self.check(cell, [side])]

    def _complaint(self, count: float) -> str:
        if math.isinf(count):
            return f"the engine refuses it: {self._bench.refusal or 'on another rank'}"
        return f"{count:.0f} wrong element{'s' if count > 1 else ''}" if count else ""

    def seconds(self, cell: Cell, side: Side, iterations: int) -> float:
        """The time of a batch of so many calls, of the slowest rank."""
        job = self._job("time", cell, [side], order=[0], iterations=iterations)
        return self._run(job, [side])[0]

    def pairs(self, cell: Cell, order: Sequence[tuple[Side, bool]], iterations: int) -> list[Pair]:
        """A pair for each entry: who competes with the default, and who runs first (True: the
        default).
        """
        try:
            return self._pairs(cell, order, iterations)
        except ChoiceFailed as failure:
            if len(order) == 1:
                raise ChoiceFailed(order[0][0], str(failure)) from failure
        # Ranks may notice a failure one call apart. Alone with the default, the culprit shows.
        return [pair for entry in order for pair in self.pairs(cell, [entry], iterations)]

    def _pairs(self, cell: Cell, order: Sequence[tuple[Side, bool]], iterations: int) -> list[Pair]:
        turns = min(_TURNS, iterations)
        calls = iterations // turns
        sides: list[Side] = [DEFAULT]
        runs: list[int] = []
        for side, default_first in order:
            if side not in sides:
                sides.append(side)
            index = sides.index(side)
            there = (0, index) if default_first else (index, 0)
            for turn in range(turns):  # there and back again, so that a drift meets both alike
                runs.extend(there if turn % 2 == 0 else there[::-1])
        job = self._job("time", cell, sides, order=runs, iterations=calls)
        times = iter(1e6 * seconds / calls for seconds in self._run(job, sides))
        result = []
        for _, default_first in order:
            best = [math.inf, math.inf]  # of who began, of who came second
            for turn in range(turns):
                for one in (0, 1) if turn % 2 == 0 else (1, 0):
                    best[one] = min(best[one], next(times))
            first, second = best
            result.append(
                Pair(first, second, True) if default_first else Pair(second, first, False)
            )
        return result

    def stop(self) -> None:
        """Ends the other ranks' service and leaves."""
        try:
            if self.between_jobs:
                self._bench.lead({"do": "stop"})
                self._bench.close()
            else:
                self._bench.abort()
        except AcclError:
            pass  # they are gone already; an earlier error says why


def _words(side: Side) -> list[Any]:
    if side is None:
        return []
    if isinstance(side, _Rules):
        return ["rules"]
    return [side.algorithm, side.protocol, side.chunk_bytes]
