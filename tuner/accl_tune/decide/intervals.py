"""Intervals: from verdicts on cells to as few ranges of sizes as explain them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accl_tune.decide.statistics import location, log_gains
from accl_tune.decide.verdicts import Level, Verdict
from accl_tune.model import Cell, CellRecord, Choice

__all__ = ["Interval", "build_intervals"]

# A smallest measured size of at most this stands for all sizes below it too.
SMALL_BYTES = 64


@dataclass(frozen=True)
class Interval:
    """A rule in the making: the choice holds from min_bytes to max_bytes, both included."""

    collective: str
    choice: Choice
    min_bytes: int
    max_bytes: int
    cells: tuple[Cell, ...]


@dataclass
class _Run:
    """Neighbouring cells, first to last (both included), that a common choice fits."""

    first: int
    last: int
    choices: list[Choice]


def build_intervals(
    records: Sequence[CellRecord], verdicts: Mapping[Cell, Verdict]
) -> list[Interval]:
    """The intervals of one collective, whose records come by ascending size.

    Cells that need a rule (a shown gain) and cells where the same choice changes nothing are joined
    as far as one choice fits all. An end between two measured sizes is put where the two choices
    break even, on the straight line of log gain over log size.
    """
    runs = [run for run in _runs(records, verdicts) if _proven(run, records, verdicts)]
    intervals = []
    for index, run in enumerate(runs):
        before = runs[index - 1] if index and runs[index - 1].last == run.first - 1 else None
        after = (
            runs[index + 1]
            if index + 1 < len(runs) and runs[index + 1].first == run.last + 1
            else None
        )
        low = _lower_end(records, run, before)
        high = _upper_end(records, run, after)
        cells = tuple(record.cell for record in records[run.first : run.last + 1])
        intervals.append(Interval(cells[0].collective, run.choices[0], low, high, cells))
    return intervals


def _level(record: CellRecord, verdicts: Mapping[Cell, Verdict]) -> Level:
    verdict = verdicts.get(record.cell)
    return verdict.level if verdict else Level.NONE


def _fitting(record: CellRecord, verdicts: Mapping[Cell, Verdict]) -> list[Choice]:
    """What a rule may give this cell; without a shown gain, choices that change nothing."""
    if _level(record, verdicts) is Level.NONE:
        return [record.default, *record.default_aliases]
    choice = verdicts[record.cell].choice
    trial = record.trial(choice) if choice else None
    return list(trial.candidate.choices) if trial else []


def _runs(records: Sequence[CellRecord], verdicts: Mapping[Cell, Verdict]) -> list[_Run]:
    """The fewest runs: each is made as long as it can be."""
    runs: list[_Run] = []
    run: _Run | None = None
    for index, record in enumerate(records):
        fitting = _fitting(record, verdicts)
        needs_rule = _level(record, verdicts) is not Level.NONE
        common = [choice for choice in run.choices if choice in fitting] if run else []
        if run and common:
            run.choices = common
            run.last = index
        elif needs_rule:
            run = _Run(index, index, fitting)
            runs.append(run)
        else:
            run = None
    for run in runs:
        while _level(records[run.last], verdicts) is Level.NONE:
            run.last -= 1
    return runs


def _proven(run: _Run, records: Sequence[CellRecord], verdicts: Mapping[Cell, Verdict]) -> bool:
    return any(
        _level(record, verdicts) is Level.STRONG for record in records[run.first : run.last + 1]
    )


def _lower_end(records: Sequence[CellRecord], run: _Run, before: _Run | None) -> int:
    first = records[run.first].cell.bytes
    if run.first == 0:
        return 0 if first <= SMALL_BYTES else first
    other = before.choices[0] if before else None
    return _break_even(records[run.first - 1], records[run.first], other, run.choices[0]) + 1


def _upper_end(records: Sequence[CellRecord], run: _Run, after: _Run | None) -> int:
    if run.last == len(records) - 1:
        return records[run.last].cell.bytes
    other = after.choices[0] if after else None
    return _break_even(records[run.last], records[run.last + 1], run.choices[0], other)


def _break_even(
    smaller: CellRecord, larger: CellRecord, below: Choice | None, above: Choice | None
) -> int:
    """The largest size at which `below` (None: the default) is to be used, from smaller's to below
    larger's.
    """
    at_smaller = _advantage(smaller, below, above)
    at_larger = _advantage(larger, below, above)
    share = 0.5
    if at_smaller is not None and at_larger is not None and at_smaller > 0 > at_larger:
        share = at_smaller / (at_smaller - at_larger)
    low, high = smaller.cell.bytes, larger.cell.bytes
    between = round(low * math.exp(share * math.log(high / low)))
    grain = max(
        1, 1 << max(between.bit_length() - 3, 0)
    )  # three leading bits: a size that can be read
    return max(low, min(between // grain * grain, high - 1))


def _advantage(record: CellRecord, one: Choice | None, other: Choice | None) -> float | None:
    """The log gain of one choice over another as far as is known."""
    gains = [_known_gain(record, choice) for choice in (one, other)]
    return None if gains[0] is None or gains[1] is None else gains[0] - gains[1]


def _known_gain(record: CellRecord, choice: Choice | None) -> float | None:
    if choice is None or record.runs_like_default(choice):
        return 0.0
    trial = record.trial(choice)
    if trial is None or trial.wrong:
        return None
    pairs = trial.confirming or trial.screening
    return location(log_gains(pairs)) if pairs else None
