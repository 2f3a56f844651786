"""accl-tune explain: which rule a call gets, why, on what evidence, and what without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accl_py import Rules, schedule

from accl_tune.decide.verdicts import Level, Verdict
from accl_tune.evidence import Evidence
from accl_tune.model import Cell, CellRecord
from accl_tune.words import format_bytes, nccl_word

__all__ = ["Query", "explain"]


@dataclass(frozen=True)
class Query:
    """A call, as rules see it."""

    collective: str
    bytes: int
    ranks: int
    nodes: int = 1
    engine: str = "cpu"
    uneven: bool = False

    def __str__(self) -> str:
        uneven = ", uneven" if self.uneven else ""
        return (
            f"{self.collective} of {format_bytes(self.bytes)} on {_count(self.ranks, 'rank')}, "
            f"{_count(self.nodes, 'node')}, engine {self.engine}{uneven}"
        )


def explain(rules: Rules, query: Query, evidence: Evidence | None) -> str:
    """Lines for people."""
    return "\n".join(_lines(rules, query, evidence))


def _lines(rules: Rules, query: Query, evidence: Evidence | None) -> Iterator[str]:
    yield str(query)
    rule = _match(rules, query)
    if rule is None:
        yield f"  no rule of {rules.name} matches:"
        yield from (f"    {reason}" for reason in _why_not(rules, query))
    else:
        yield f"  {rules.name}:{rule.line}: {rule.format()}"
        yield f"  chooses {_choice(rule)}"
        yield f"  since it is the first for {query.collective} on {query.engine} {_range(rule)}"
        earlier = [row for row in _rows(rules, query) if row.line < rule.line]
        if earlier:
            reasons = "; ".join(_misses(row, query) for row in earlier)
            yield f"  ({len(earlier)} earlier for {query.collective}: {reasons})"
    yield from _otherwise(rule, query)
    if evidence is not None:
        yield from _evidence_lines(evidence, query)


def _match(rules: Rules, query: Query) -> Any:
    return rules.match(
        query.collective, query.bytes, query.ranks, query.nodes, query.engine, query.uneven
    )


def _rows(rules: Rules, query: Query) -> list[Any]:
    return [
        row
        for row in rules.rows
        if row.engine == query.engine and nccl_word(row.collective) == nccl_word(query.collective)
    ]


def _choice(rule: Any) -> str:
    parts = [
        f"algorithm {rule.algorithm}" if rule.algorithm else "",
        f"protocol {rule.protocol}" if rule.protocol else "",
        f"{rule.channels} channels" if rule.channels > 0 else "",
        f"chunks of {format_bytes(rule.chunk_bytes)}" if rule.chunk_bytes else "",
    ]
    said = ", ".join(part for part in parts if part)
    return said or "nothing: the engine's own choice"


def _range(rule: Any) -> str:
    high = "any size up" if rule.max_bytes is None else format_bytes(rule.max_bytes)
    sizes = f"{format_bytes(rule.min_bytes)} to {high}"
    return f"whose range, {sizes}, holds the size, and whose ranks and nodes fit"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _misses(row: Any, query: Query) -> str:
    """Why a row does not match."""
    reasons = []
    if query.uneven and (row.min_bytes > 0 or row.max_bytes is not None):
        reasons.append("uneven sizes match rules for all sizes only")
    elif query.bytes < row.min_bytes or (row.max_bytes is not None and query.bytes > row.max_bytes):
        high = "any" if row.max_bytes is None else str(row.max_bytes)
        reasons.append(f"sizes {row.min_bytes} to {high}")
    if row.ranks not in (-1, query.ranks):
        reasons.append(_count(row.ranks, "rank"))
    if row.nodes not in (-1, query.nodes):
        reasons.append(_count(row.nodes, "node"))
    return f"line {row.line} is for {', '.join(reasons) or 'other calls'}"


def _why_not(rules: Rules, query: Query) -> list[str]:
    rows = _rows(rules, query)
    if rows:
        return [_misses(row, query) for row in rows]
    others = sorted({row.collective for row in rules.rows if row.engine == query.engine})
    known = f"; it has rules for {', '.join(others)}" if others else ""
    return [f"the file has none for {query.collective} on engine {query.engine}{known}"]


def _otherwise(rule: Any, query: Query) -> Iterator[str]:
    """What happens without a match, and without the file."""
    if query.engine != "cpu":
        yield f"  otherwise: {query.engine}'s own choice"
        return
    if rule is None:
        first = schedule.algorithms(query.collective)[0].name
        yield f"  so: the engine's own choice, algorithm {first}, protocol inline"
    default = _match(Rules.defaults(), query)
    if rule is not None and default is not None and _choice(rule) == _choice(default):
        yield "  which is what the built-in defaults choose too"
    else:
        yield f"  without the file: {_default(default)}"


def _default(rule: Any) -> str:
    if rule is None:
        return "the engine's own choice"
    return f"the default, {_choice(rule)} (built-in defaults, line {rule.line}: {rule.format()})"


def _evidence_lines(evidence: Evidence, query: Query) -> Iterator[str]:
    parameters = evidence.header["parameters"]
    measured = (parameters["ranks"], parameters["nodes"])
    if query.engine != "cpu" or (query.ranks, query.nodes) != measured:
        shape = f"{_count(measured[0], 'rank')} and {_count(measured[1], 'node')}"
        yield f"  evidence: measured on {shape}, and says nothing of this call"
        return
    records = [
        record for record in evidence.ordered() if record.cell.collective == query.collective
    ]
    if not records:
        yield f"  evidence: {query.collective} was not measured"
        return
    yield "  evidence:"
    for record in _around(records, query.bytes):
        yield f"    {_cell_line(record, evidence.verdicts.get(record.cell))}"
        yield from (f"      {line}" for line in _trial_lines(record))
        again = _again(evidence, record.cell)
        if again:
            yield f"      {again}"


def _around(records: list[CellRecord], size: int) -> list[CellRecord]:
    """The measured size itself, or those below and above."""
    exact = [record for record in records if record.cell.bytes == size]
    if exact:
        return exact
    below = [record for record in records if record.cell.bytes < size][-1:]
    above = [record for record in records if record.cell.bytes > size][:1]
    return below + above


def _cell_line(record: CellRecord, verdict: Verdict | None) -> str:
    size = format_bytes(record.cell.bytes)
    if verdict is None:
        return f"{size}: no verdict"
    if verdict.choice is None or not verdict.pairs:
        return f"{size}: default; {verdict.why}"
    level = {Level.STRONG: "shown", Level.WEAK: "weak", Level.NONE: "not shown"}[verdict.level]
    return (
        f"{size}: {verdict.choice.label} is {verdict.gain:.3f} times as fast as "
        f"{record.default.label}, 95 % interval {verdict.low:.3f} to {verdict.high:.3f}, "
        f"{verdict.pairs} fresh pairs, p {verdict.p:.2g} ({verdict.adjusted_p:.2g} corrected for all cells): "
        f"{level}; {verdict.why}"
    )


def _trial_lines(record: CellRecord) -> Iterator[str]:
    wrong = [trial for trial in record.trials if trial.wrong]
    dropped = [trial for trial in record.trials if trial.out and not trial.wrong]
    for trial in wrong:
        yield f"rejected {trial.candidate.choice.label}: {trial.out}"
    if record.trials:
        dropped_count = f"{len(dropped)} dropped in screening"
        yield f"{len(record.trials)} candidates, {dropped_count}, {len(wrong)} rejected"


def _again(evidence: Evidence, cell: Cell) -> str:
    for row in evidence.remeasured:
        if row.cell == cell and row.by_rule:
            return (
                f"measured again afterwards, with the rules: {row.gain:.3f} times as fast "
                f"(95 % interval {row.low:.3f} to {row.high:.3f})"
            )
    return ""
