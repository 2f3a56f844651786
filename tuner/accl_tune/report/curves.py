"""What is shown of a collective: times of default and tuned over sizes, bus bandwidths."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from accl_tune.evidence import Evidence
from accl_tune.model import CellRecord, of_collective

__all__ = ["Curve", "busbw", "curves"]


@dataclass(frozen=True)
class Curve:
    """By size. remeasured: the times are of the fresh run after the sweep, not of the sweep's own
    samples.
    """

    collective: str
    sizes: tuple[int, ...]
    default_us: tuple[float, ...]
    tuned_us: tuple[float, ...]
    has_rule: tuple[bool, ...]
    remeasured: bool


def busbw(collective: str, size: int, us: float, ranks: int) -> float:
    """nccl-tests' bus bandwidth in GB/s."""
    algbw = size / us / 1e3
    if collective == "all_reduce":
        return algbw * 2 * (ranks - 1) / ranks
    if collective in ("broadcast", "reduce"):
        return algbw
    return algbw * (ranks - 1) / ranks


def curves(evidence: Evidence) -> list[Curve]:
    """A curve for each collective that was measured."""
    records = evidence.ordered()
    result = []
    for name in dict.fromkeys(record.cell.collective for record in records):
        curve = _remeasured(evidence, name) or _sampled(
            evidence, of_collective(records, name), name
        )
        if curve.sizes:
            result.append(curve)
    return result


def _remeasured(evidence: Evidence, name: str) -> Curve | None:
    rows = sorted(
        (row for row in evidence.remeasured if row.cell.collective == name),
        key=lambda row: row.cell.bytes,
    )
    if not rows:
        return None
    return Curve(
        name,
        tuple(row.cell.bytes for row in rows),
        tuple(row.default_us for row in rows),
        tuple(row.tuned_us for row in rows),
        tuple(row.by_rule for row in rows),
        remeasured=True,
    )


def _sampled(evidence: Evidence, records: list[CellRecord], name: str) -> Curve:
    """From the sweep: the default's median; where a rule holds, less the gain that was shown."""
    ruled = {cell for interval in evidence.intervals for cell in interval.cells}
    rows = []
    for record in records:
        times = [
            pair.default_us
            for trial in record.trials
            for pair in trial.confirming or trial.screening
        ]
        if not times:
            continue
        verdict = evidence.verdicts.get(record.cell)
        has_rule = record.cell in ruled
        gain = verdict.gain if verdict and has_rule else 1.0
        rows.append((record.cell.bytes, median(times), median(times) / gain, has_rule))
    return Curve(
        name,
        tuple(row[0] for row in rows),
        tuple(row[1] for row in rows),
        tuple(row[2] for row in rows),
        tuple(row[3] for row in rows),
        remeasured=False,
    )
