"""The words that all parts share. Pure.

A *cell* is what a rule decides on: a collective and a size. In each cell *candidates* compete with
the *default*, which is the call with no forced choice. A *pair* is two timings, one of the default
and one of the candidate, taken one right after the other in random order; everything that is
decided rests on pairs. *Screening* pairs find the cell's best candidate, the finalist; *confirming*
pairs, taken afterwards, decide whether it is better than the default. So the choice of the finalist
cannot flatter its own evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from accl_tune.words import format_bytes

__all__ = ["Candidate", "Cell", "CellRecord", "Choice", "Field", "Pair", "Trial", "of_collective"]


@dataclass(frozen=True, order=True)
class Cell:
    """bytes: nccl-tests' size, the larger of one rank's send and receive buffers."""

    collective: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.collective} {format_bytes(self.bytes)}"


@dataclass(frozen=True, order=True)
class Choice:
    """What a rule chooses. chunk_bytes 0: the algorithm's own."""

    algorithm: str
    protocol: str
    chunk_bytes: int = 0

    @property
    def label(self) -> str:
        """`ring/bulk/256K`, and `ring/bulk` with the algorithm's own chunk size."""
        words = f"{self.algorithm}/{self.protocol}"
        return f"{words}/{format_bytes(self.chunk_bytes)}" if self.chunk_bytes else words


@dataclass(frozen=True)
class Candidate:
    """A choice, and others that run exactly alike in this cell: measuring it measures them all."""

    choice: Choice
    aliases: tuple[Choice, ...] = ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choice and its aliases."""
        return (self.choice, *self.aliases)


@dataclass(frozen=True)
class Field:
    """Who competes in a cell. default: what the engine runs with no forced choice; aliases run
    exactly like it.
    """

    default: Choice
    default_aliases: tuple[Choice, ...] = ()
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Microseconds a call, of the default and of the candidate; which of the two ran first."""

    default_us: float
    candidate_us: float
    default_first: bool


@dataclass
class Trial:
    """One candidate in one cell. `out` says why it no longer takes part; empty while it does."""

    candidate: Candidate
    out: str = ""
    wrong: bool = False  # its data was wrong or the call failed: never to be used
    screening: list[Pair] = field(default_factory=list)
    confirming: list[Pair] = field(default_factory=list)


@dataclass
class CellRecord:
    """All that is known of a cell. `unmeasured` says why it has no samples, where it has none."""

    cell: Cell
    default: Choice  # what the default runs here
    default_aliases: tuple[Choice, ...] = ()  # run exactly like the default here
    trials: list[Trial] = field(default_factory=list)
    iterations: int = 1  # calls in a batch
    finalist: Choice | None = None
    wanted: int = 0  # confirming pairs of the finalist, fixed before the first is taken
    unmeasured: str = ""

    def live(self) -> list[Trial]:
        """The trials that still take part."""
        return [trial for trial in self.trials if not trial.out]

    def trial(self, choice: Choice) -> Trial | None:
        """The trial that stands for a choice, whether by name or as an alias."""
        for trial in self.trials:
            if choice in trial.candidate.choices:
                return trial
        return None

    def runs_like_default(self, choice: Choice) -> bool:
        """Whether a choice changes nothing here."""
        return choice == self.default or choice in self.default_aliases


def of_collective(records: Iterable[CellRecord], name: str) -> list[CellRecord]:
    """The cells of one collective, by size."""
    chosen = [record for record in records if record.cell.collective == name]
    return sorted(chosen, key=lambda record: record.cell.bytes)
