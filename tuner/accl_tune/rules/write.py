"""From intervals to a rules file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accl_py import Rules

from accl_tune.decide.intervals import Interval
from accl_tune.decide.verdicts import Level, Verdict
from accl_tune.evidence import write_atomically
from accl_tune.model import Cell
from accl_tune.words import format_bytes, nccl_word

__all__ = ["Shape", "rules_text", "write_rules"]

_COLUMNS = (
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,"
    "regBuff,engine,chunk_bytes"
)


@dataclass(frozen=True)
class Shape:
    """The communicators that a rule is for: those that were measured."""

    ranks: int
    nodes: int


def rules_text(
    intervals: Sequence[Interval],
    verdicts: Mapping[Cell, Verdict],
    shape: Shape,
    provenance: Mapping[str, str],
) -> str:
    """The text of a rules file, which the strict parser has accepted."""
    lines = [f"# {key}: {' '.join(value.split())}" for key, value in provenance.items()]
    lines.append(f"# {_COLUMNS}")
    for interval in intervals:
        lines.append(f"# {_reason(interval, verdicts)}")
        lines.append(_row(interval, shape))
    if not intervals:
        lines.append("# nothing was significantly faster than the default")
    lines.append("# for all else the built-in defaults, since a rules file takes their place")
    lines.extend(row.format() for row in Rules.defaults().rows if row.engine == "cpu")
    text = "\n".join(lines) + "\n"
    Rules.parse(text, "what accl-tune would write")
    return text


def write_rules(path: Path, text: str) -> None:
    """Writes the file whole or not at all. Raises EvidenceError."""
    write_atomically(path, text)


def _row(interval: Interval, shape: Shape) -> str:
    choice = interval.choice
    fields: list[str | int] = [
        nccl_word(interval.collective),
        interval.min_bytes,
        interval.max_bytes,
        choice.algorithm,
        choice.protocol,
        -1,
        shape.nodes,
        shape.ranks,
        -1,
        -1,
        "cpu",
    ]
    if choice.chunk_bytes:
        fields.append(choice.chunk_bytes)
    return ",".join(str(field) for field in fields)


def _reason(interval: Interval, verdicts: Mapping[Cell, Verdict]) -> str:
    """`1.21 to 1.40 times as fast at 4 sizes from 64K to 4M`; a comment, and no provenance."""
    shown = [
        verdicts[cell]
        for cell in interval.cells
        if cell in verdicts and verdicts[cell].level is not Level.NONE
    ]
    gains = sorted(verdict.gain for verdict in shown)
    sizes = [verdict.cell.bytes for verdict in shown]
    if len(shown) == 1:
        only = shown[0]
        return (
            f"{only.gain:.2f} times as fast at {format_bytes(only.cell.bytes)} "
            f"(95 % interval {only.low:.2f} to {only.high:.2f})"
        )
    return (
        f"{gains[0]:.2f} to {gains[-1]:.2f} times as fast at {len(shown)} sizes "
        f"from {format_bytes(min(sizes))} to {format_bytes(max(sizes))}"
    )
