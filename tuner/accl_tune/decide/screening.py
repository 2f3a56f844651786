"""Screening: who can still win, and the finalist of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from accl_tune.decide.statistics import Floats, location, log_gains, spread
from accl_tune.model import CellRecord, Choice, Pair, Trial

__all__ = ["Screening", "cannot_confirm", "choose_finalists", "losers", "pairs_wanted", "settled"]


# Standard errors between no gain and the gain that is hoped for: p of about 1e-4 (many cells are
# tested), reached in 95 of 100 cases, with what the signed-rank test needs more than the mean.
_DETECTION = 5.6
# The best of many in screening was lucky too; so much of its gain is counted on.
_HOPE = 0.8


@dataclass(frozen=True)
class Screening:
    """How screening goes.

    min_gain: the gain that a rule must have, as a share.
    least: pairs of each candidate before it may be dropped for want of a gain over the default.
    least_rivals: pairs before it may be dropped because another is faster; more, since that one may
        have been lucky.
    most: pairs after which a candidate is known well enough to choose the finalist.
    z: standard errors that must separate a candidate from winning before it is dropped; wide, since
        a candidate dropped by bad luck is lost, and one kept costs only time.
    hopeless: a candidate that took so many times as long in each of two pairs is dropped at once.
    least_confirm, most_confirm: the range of confirming pairs of a finalist.
    change: what a change of choice between neighbouring sizes must be worth, as a share.
    """

    min_gain: float = 0.03
    least: int = 3
    least_rivals: int = 5
    most: int = 8
    z: float = 3.0
    hopeless: float = 1.8
    least_confirm: int = 16
    most_confirm: int = 120
    change: float = 0.01


def _t(z: float, freedom: int) -> float:
    """The quantile of Student's t that corresponds to a z, to first order."""
    return z + (z**3 + z) / (4 * max(freedom, 1))


def losers(record: CellRecord, how: Screening) -> dict[Choice, str]:
    """The live candidates that cannot win any more, and why."""
    live = record.live()
    gains = [log_gains(trial.screening) for trial in live]
    result: dict[Choice, str] = {}
    deviation, freedom = spread(gains)
    edges = [_edges(values, deviation, freedom, how.z) for values in gains]
    known = [
        low
        for (low, _), values in zip(edges, gains, strict=True)
        if len(values) >= how.least_rivals
    ]
    best = max(known, default=-inf)
    for trial, values, (_, high) in zip(live, gains, edges, strict=True):
        choice = trial.candidate.choice
        if len(values) >= 2 and float(np.max(values)) < -log(how.hopeless):
            result[choice] = (
                f"over {how.hopeless:g} times as slow as the default in each of {len(values)} pairs"
            )
        elif len(values) >= how.least and high < log(1 + how.min_gain):
            result[choice] = (
                f"cannot reach a gain of {how.min_gain:.0%} (at most {np.expm1(high):+.1%})"
            )
        elif len(values) >= how.least_rivals and high < best - how.change:
            result[choice] = (
                f"another is faster: {np.expm1(high):+.1%} at most against {np.expm1(best):+.1%}"
            )
    return result


def _centre(values: Floats) -> float:
    """Of a few values the median, which one outlier in three does not move; of more the sharper
    estimate.
    """
    return float(np.median(values)) if len(values) < 8 else location(values)


def _edges(values: Floats, deviation: float, freedom: int, z: float) -> tuple[float, float]:
    """Where the median of the log gains may truly lie."""
    if not len(values) or not freedom:
        return -inf, inf
    centre = float(np.median(values))
    reach = _t(z, freedom) * 1.2533 * deviation / sqrt(len(values))
    return centre - reach, centre + reach


def cannot_confirm(pairs: Sequence[Pair], how: Screening) -> bool:
    """Whether more confirming pairs of a finalist are wasted. Stopping early for want of a gain
    makes no false rule.
    """
    values = log_gains(pairs)
    if len(values) < 8:
        return False
    deviation, freedom = spread([values])
    return _edges(values, deviation, freedom, how.z)[1] < log(1 + how.min_gain)


def pairs_wanted(record: CellRecord, trial: Trial, how: Screening) -> int:
    """How many confirming pairs will very probably show a finalist's gain, going by the screening.

    Known before the first confirming pair is taken, and so no part of what is tested.
    """
    own = log_gains(trial.screening)
    everybody = [log_gains(one.screening) for one in record.trials]
    deviation = max(spread([own])[0], spread(everybody)[0])
    hoped = max(_HOPE * _centre(own), log(1 + how.min_gain) / 2)
    wanted = (_DETECTION * deviation / hoped) ** 2
    return int(min(max(wanted, how.least_confirm), how.most_confirm))


def settled(record: CellRecord, how: Screening) -> bool:
    """Whether more screening of a cell changes nothing: nobody is left, or all are known well
    enough.
    """
    return all(len(trial.screening) >= how.most for trial in record.live())


def choose_finalists(records: Sequence[CellRecord], how: Screening) -> list[Choice | None]:
    """The finalist of each cell of one collective, given by ascending size; None leaves the cell to
    the default.

    Not simply each cell's best: noise would then flip the choice between neighbouring sizes. The
    path of choices over the sizes is taken whose summed log gains, less `change` for every change,
    are largest. A choice that runs like the default in a cell costs and gains nothing there.
    """
    keys = _keys(records)
    gains = np.array([[_gain(record, key, how) for key in keys] for record in records]).reshape(
        -1, len(keys)
    )
    path = _best_path(gains, log(1 + how.change))
    chosen: list[Choice | None] = []
    for record, index in zip(records, path, strict=True):
        key = keys[index]
        trial = None if key is None or record.runs_like_default(key) else record.trial(key)
        chosen.append(trial.candidate.choice if trial else None)
    return chosen


def _keys(records: Sequence[CellRecord]) -> list[Choice | None]:
    """None (the default), then all choices that are live anywhere; earlier ones win ties."""
    keys: dict[Choice | None, None] = {None: None}
    for record in records:
        for trial in record.live():
            keys.update(dict.fromkeys(trial.candidate.choices))
    return list(keys)


def _gain(record: CellRecord, key: Choice | None, how: Screening) -> float:
    """The log gain of a choice in a cell as far as screening tells; -inf where it is out of the
    question.
    """
    if key is None or record.runs_like_default(key):
        return 0.0
    trial: Trial | None = record.trial(key)
    if trial is None or trial.out or not trial.screening:
        return -inf
    gain = _centre(log_gains(trial.screening))
    return gain if gain >= log(1 + how.min_gain) / 2 else -inf


def _best_path(gains: Floats, change: float) -> list[int]:
    """For each row a column, so that the sum of the entries less `change` a change of column is
    largest.
    """
    if not len(gains):
        return []
    total = gains[0].copy()
    came_from: list[np.ndarray] = []
    for row in gains[1:]:
        leader = int(np.argmax(total))
        switch = total[leader] - change > total
        came_from.append(np.where(switch, leader, np.arange(len(total))))
        total = np.where(switch, total[leader] - change, total) + row
    path = [int(np.argmax(total))]
    for origins in reversed(came_from):
        path.append(int(origins[path[-1]]))
    return path[::-1]
