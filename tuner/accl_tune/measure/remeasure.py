"""Default against rules, side by side, in a run of its own after the decision.

The samples of a sweep decided its rules; these did not, so they say honestly what the rules are
worth. Cells without
a rule are measured as well: there both sides are the default, and what they show is noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set
from statistics import median

from accl_py import Rules

from accl_tune.decide.statistics import interval, location, log_gains, to_factor
from accl_tune.errors import Interrupted
from accl_tune.evidence import Remeasured
from accl_tune.measure.lead import RULES, Lead
from accl_tune.measure.progress import Progress, Silence
from accl_tune.model import Cell, CellRecord, Choice, Pair

__all__ = ["remeasure"]

_LEAST_ROUNDS = 3


def remeasure(
    lead: Lead,
    records: Sequence[CellRecord],
    ruled: Set[Cell],
    text: str,
    name: str,
    *,
    seconds: float,
    clock: Callable[[], float],
    seed: int = 1,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Remeasured]:
    """Pairs of (default, rules) for all measured cells, in rounds of random order, for about so
    many seconds.

    ruled: the cells with a rule. text, name: the rules. Raises Interrupted, MeasureError.
    """
    begun = clock()
    lead.use_rules(Rules.parse(text, name), text)
    source = random.Random(seed)
    measured = [record for record in records if not record.unmeasured]
    ran = {record.cell: lead.with_rules(record.cell) for record in measured}
    pairs: dict[Cell, list[Pair]] = {record.cell: [] for record in measured}
    show = progress or Silence()
    number = 0
    while number < _LEAST_ROUNDS or clock() - begun < seconds:
        number += 1
        lead.renew()
        for record in source.sample(measured, len(measured)):
            spent = clock() - begun
            if number > _LEAST_ROUNDS and spent >= seconds:
                break
            show.update(
                min(spent / seconds, 1.0),
                max(seconds - spent, 0.0),
                f"measuring again, round {number}",
            )
            if stop():
                raise Interrupted("Interrupted while measuring again.")
            first = source.random() < 0.5
            order = [(RULES, first), (RULES, not first)]
            pairs[record.cell].extend(lead.pairs(record.cell, order, record.iterations))
    return [
        _row(
            record.cell,
            ran[record.cell],
            record.cell in ruled and not record.runs_like_default(ran[record.cell]),
            pairs[record.cell],
        )
        for record in measured
    ]


def _row(cell: Cell, ran: Choice, by_rule: bool, pairs: list[Pair]) -> Remeasured:
    values = log_gains(pairs)
    low, high = interval(values)
    return Remeasured(
        cell,
        default_us=median(pair.default_us for pair in pairs),
        tuned_us=median(pair.candidate_us for pair in pairs),
        gain=to_factor(location(values)),
        low=to_factor(low),
        high=to_factor(high),
        ran=ran,
        by_rule=by_rule,
        pairs=tuple(pairs),
    )
