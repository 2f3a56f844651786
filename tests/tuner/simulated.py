"""A machine that exists in numbers alone: known true times, noise of many kinds, its own clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log, pi, sin

from accl_tune.measure.lead import ChoiceFailed
from accl_tune.model import Candidate, Cell, Choice, Field, Pair

DEFAULT_CHOICE = Choice("direct", "bulk")

# Log noise of a timing: from the random source and the time in seconds.
Noise = Callable[[random.Random, float], float]


def normal(share: float) -> Noise:
    """A deviation of `share`, the same on both sides."""
    return lambda source, _: source.gauss(0, share)


def skewed(share: float) -> Noise:
    """Timings as they are: a floor, and delays above it. The deviation is `share`."""
    return lambda source, _: share * source.expovariate(1)


def heavy(share: float) -> Noise:
    """Student's t with 2 degrees of freedom, whose variance is infinite, scaled to `share`."""

    def noise(source: random.Random, _: float) -> float:
        spread = (source.gammavariate(1, 1)) ** 0.5
        return max(-2.0, min(5.0, share * source.gauss(0, 1) / spread))

    return noise


def spikes(share: float) -> Noise:
    """Quiet, but one timing in twenty takes 3 to 20 times as long."""

    def noise(source: random.Random, _: float) -> float:
        spike = log(source.uniform(3, 20)) if source.random() < 0.05 else 0.0
        return source.gauss(0, share) + spike

    return noise


def drifting(share: float) -> Noise:
    """The machine slows down and speeds up by half, over seconds."""
    return lambda source, now: source.gauss(0, share) + 0.5 * sin(2 * pi * now / 3)


def bursts(share: float) -> Noise:
    """A neighbour takes half of the machine, for a fifth of the time, in turns of 50 ms."""

    def noise(source: random.Random, now: float) -> float:
        busy = hash(int(now / 0.05)) % 5 == 0
        return source.gauss(0, share) + (log(2) if busy else 0.0)

    return noise


@dataclass
class Machine:
    """A Measurer. gains: true factors by which choices are faster than the default, by cell."""

    gains: Callable[[Cell], dict[Choice, float]]
    noise: Noise
    seed: int = 1
    ranks: int = 2
    nodes: int = 1
    call_us: Callable[[Cell], float] = lambda cell: 1 + cell.bytes / 10_000
    aliases: Callable[[Cell], tuple[Choice, ...]] = lambda cell: ()
    wrong: dict[Choice, str] = field(default_factory=dict)
    failing: dict[Choice, int] = field(default_factory=dict)  # after so many pairs
    pids: tuple[int, ...] = ()
    now: float = 0.0
    timed: int = 0

    def __post_init__(self) -> None:
        self._source = random.Random(f"machine {self.seed}")

    def clock(self) -> float:
        return self.now

    def renew(self) -> None:
        self.now += 0.01

    def field(self, cell: Cell) -> Field:
        candidates = tuple(Candidate(choice) for choice in self.gains(cell))
        return Field(DEFAULT_CHOICE, self.aliases(cell), candidates)

    def check(self, cell: Cell, sides: Sequence[Choice | None]) -> list[str]:
        self.now += 1e-4 * len(sides)
        return [self.wrong.get(side, "") if side else "" for side in sides]

    def seconds(self, cell: Cell, side: Choice | None, iterations: int) -> float:
        gain = self.gains(cell)[side] if side else 1.0
        once = 1e-6 * self.call_us(cell) / gain * exp(self.noise(self._source, self.now))
        self.now += once * iterations
        self.timed += 1
        return once * iterations

    def pairs(
        self, cell: Cell, order: Sequence[tuple[Choice | None, bool]], iterations: int
    ) -> list[Pair]:
        result = []
        for side, default_first in order:
            if side in self.failing:
                self.failing[side] -= 1
                if self.failing[side] < 0:
                    raise ChoiceFailed(side, "it hung")
            first, second = (None, side) if default_first else (side, None)
            times = {}
            for one, which in ((first, 0), (second, 1)):
                times[which] = 1e6 * self.seconds(cell, one, iterations) / iterations
            default, candidate = (times[0], times[1]) if default_first else (times[1], times[0])
            result.append(Pair(default, candidate, default_first))
        return result
