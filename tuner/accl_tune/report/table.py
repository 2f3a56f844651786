"""Default against tuned, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import median

from accl_tune.decide.verdicts import Level
from accl_tune.evidence import Evidence, Remeasured
from accl_tune.words import format_bytes

__all__ = ["remeasured_table", "state_change", "summary"]

_HEAD = f"{'size':>8} {'default us':>12} {'tuned us':>12} {'ratio':>7}   {'95 % interval':<16} runs"
_LOST = 0.98
_BUSY_CORES = 0.25
# The default's own times, then and now, so far apart in so large a share of the cells.
_CHANGED_FACTOR = 1.5
_CHANGED_SHARE = 0.25


def remeasured_table(rows: Sequence[Remeasured]) -> str:
    """One block a collective; ratio is default / tuned, above 1 where tuned is faster."""
    return "\n".join(_blocks(rows))


def _blocks(rows: Sequence[Remeasured]) -> Iterator[str]:
    for name in dict.fromkeys(row.cell.collective for row in rows):
        block = sorted(
            (row for row in rows if row.cell.collective == name), key=lambda row: row.cell.bytes
        )
        yield f"{name}"
        yield _HEAD
        for row in block:
            where = f"{row.ran.label}" if row.by_rule else f"{row.ran.label} (default)"
            yield (
                f"{format_bytes(row.cell.bytes):>8} {row.default_us:12.2f} {row.tuned_us:12.2f} "
                f"{row.gain:7.3f}   {f'{row.low:.3f} to {row.high:.3f}':<16} {where}"
            )
        yield ""
    yield from _verdict(rows)


def _mean(rows: Sequence[Remeasured]) -> float:
    return exp(sum(log(row.gain) for row in rows) / len(rows))


def _verdict(rows: Sequence[Remeasured]) -> Iterator[str]:
    ruled = [row for row in rows if row.by_rule]
    plain = [row for row in rows if not row.by_rule]
    if ruled:
        best = max(ruled, key=lambda row: row.gain)
        worst = min(ruled, key=lambda row: row.gain)
        yield (
            f"With a rule: {len(ruled)} cells, {_mean(ruled):.3f} times as fast (geometric mean); "
            f"best {best.gain:.3f} ({best.cell}), worst {worst.gain:.3f} ({worst.cell})."
        )
        lost = [row for row in ruled if row.high < _LOST]
        if lost:
            cells = ", ".join(str(row.cell) for row in lost)
            yield f"Slower than the default in this run: {cells}. Sweep again, for longer."
    if plain:
        off = max(abs(log(row.gain)) for row in plain)
        yield (
            f"Without: {len(plain)} cells, where both sides are the default: {_mean(plain):.3f} "
            f"in the mean, at most {exp(off):.3f} apart. So much is noise."
        )


def state_change(evidence: Evidence) -> str:
    """A sentence where the machine was not as it was in the sweep; empty where it was.

    Told by the default alone, which both runs timed: a neighbour that came or went changes it, and
    may change which choice is the fastest.
    """
    ratios = []
    for row in evidence.remeasured:
        record = evidence.records.get(row.cell)
        trials = record.trials if record else []
        then = [
            pair.default_us for trial in trials for pair in (*trial.screening, *trial.confirming)
        ]
        if then:
            ratios.append(row.default_us / median(then))
    changed = [ratio for ratio in ratios if abs(log(ratio)) > log(_CHANGED_FACTOR)]
    if len(changed) <= _CHANGED_SHARE * len(ratios):
        return ""
    return (
        f"The machine was not as it was in the sweep: in {len(changed)} of {len(ratios)} cells the "
        f"default itself took {min(changed):.2f} to {max(changed):.2f} times as long. Rules that "
        "were measured beside a busy neighbour may lose without it, and the other way round: sweep "
        "again when the machine is quiet."
    )


def summary(evidence: Evidence) -> str:
    """What a sweep decided, in a few lines."""
    return "\n".join(_summary(evidence))


def _summary(evidence: Evidence) -> Iterator[str]:
    records = evidence.ordered()
    ruled = {cell for interval in evidence.intervals for cell in interval.cells}
    for interval in evidence.intervals:
        verdicts = [evidence.verdicts[cell] for cell in interval.cells]
        gains = [verdict.gain for verdict in verdicts if verdict.level is not Level.NONE]
        sizes = f"{format_bytes(interval.min_bytes)} to {format_bytes(interval.max_bytes)}"
        factor = f"{min(gains):.2f}" if len(gains) == 1 else f"{min(gains):.2f} to {max(gains):.2f}"
        what = f"  {interval.collective:<15} {sizes:<20} {interval.choice.label:<28}"
        yield f"{what} {factor} times as fast"
    trials = [trial for record in records for trial in record.trials]
    samples = sum(len(trial.screening) + len(trial.confirming) for trial in trials)
    yield (
        f"{len(records)} cells, {len(trials)} candidates, {samples} pairs in {evidence.spent:.0f} "
        f"s: {len(ruled)} cells get one of {len(evidence.intervals)} rules, the others keep the "
        "default."
    )
    wrong = [trial for trial in trials if trial.wrong]
    if wrong:
        yield (
            f"{len(wrong)} candidates were rejected, since their data was wrong or their call "
            "failed; the evidence says which."
        )
    if evidence.foreign_cores is not None and evidence.foreign_cores > _BUSY_CORES:
        yield (
            f"Other processes kept {evidence.foreign_cores:.1f} cores busy meanwhile: the rules "
            "are for a machine that is as busy. Sweep again when it is quiet."
        )
    unmeasured = [record for record in records if record.unmeasured]
    if unmeasured:
        yield f"{len(unmeasured)} cells were not measured, since the budget did not reach for them."
