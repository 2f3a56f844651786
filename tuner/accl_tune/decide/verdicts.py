"""Verdicts: whether finalists are better than the default, by their confirming pairs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import log

from accl_tune.decide.statistics import (
    adjust,
    interval,
    location,
    log_gains,
    signed_rank_p,
    to_factor,
)
from accl_tune.model import Cell, CellRecord, Choice, Pair

__all__ = ["Level", "Proof", "Verdict", "judge"]


class Level(Enum):
    """How well a gain is shown. NONE makes no rule; WEAK only widens the rule of a neighbouring
    size.
    """

    NONE = "none"
    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True)
class Proof:
    """What a rule must show.

    min_gain: the least gain, as a share of the candidate's time.
    wrong_share: the share of the rules that may be wrong (false discovery rate over all cells of a
        sweep).
    weak_p: hysteresis. Beside a cell with the same choice whose gain is fully shown, a cell is
        taken along where its own p (uncorrected) is at most this and its gain at least half of
        min_gain.
    """

    min_gain: float = 0.03
    wrong_share: float = 0.01
    weak_p: float = 0.05


@dataclass(frozen=True)
class Verdict:
    """The decision on a cell. gain, low, high: times as fast as the default, and its 95 %
    confidence interval.
    """

    cell: Cell
    choice: Choice | None
    level: Level
    why: str
    pairs: int = 0
    gain: float = 1.0
    low: float = 1.0
    high: float = 1.0
    p: float = 1.0
    adjusted_p: float = 1.0


def judge(records: Sequence[CellRecord], proof: Proof) -> list[Verdict]:
    """A verdict for every record, in their order. All cells of a sweep must be judged together: the
    correction for many tests is over them.
    """
    tested = [record for record in records if _confirming(record)]
    ps = {id(record): signed_rank_p(log_gains(_confirming(record))) for record in tested}
    adjusted = dict(zip(ps, adjust(list(ps.values())), strict=True))
    return [
        _verdict(record, ps[id(record)], adjusted[id(record)], proof)
        if id(record) in ps
        else _untested(record)
        for record in records
    ]


def _confirming(record: CellRecord) -> list[Pair]:
    trial = record.trial(record.finalist) if record.finalist else None
    return trial.confirming if trial and not trial.wrong else []


def _untested(record: CellRecord) -> Verdict:
    trial = record.trial(record.finalist) if record.finalist else None
    if trial and trial.wrong:
        why = f"{trial.candidate.choice.label} looked best, but {trial.out}"
    elif record.unmeasured:
        why = record.unmeasured
    elif record.finalist:
        why = f"{record.finalist.label} looked best, but there was no time to confirm it"
    elif not record.trials:
        why = "every choice runs like the default here"
    else:
        why = "no candidate looked better than the default"
    return Verdict(record.cell, record.finalist, Level.NONE, why)


def _verdict(record: CellRecord, p: float, adjusted: float, proof: Proof) -> Verdict:
    values = log_gains(_confirming(record))
    centre = location(values)
    low, high = interval(values)
    level, why = _level(centre, p, adjusted, proof)
    return Verdict(
        record.cell,
        record.finalist,
        level,
        why,
        len(values),
        to_factor(centre),
        to_factor(low),
        to_factor(high),
        p,
        adjusted,
    )


def _level(centre: float, p: float, adjusted: float, proof: Proof) -> tuple[Level, str]:
    if centre >= log(1 + proof.min_gain) and adjusted <= proof.wrong_share:
        return Level.STRONG, "the gain is significant"
    if centre >= log(1 + proof.min_gain) / 2 and p <= proof.weak_p:
        return (
            Level.WEAK,
            "the gain is small or not fully shown: only beside a size with the same choice",
        )
    if adjusted > proof.wrong_share:
        return Level.NONE, "the gain is not significant"
    return Level.NONE, f"the gain is below {proof.min_gain:.0%}"
