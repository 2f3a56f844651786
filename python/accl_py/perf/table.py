"""The text and JSON that nccl-tests 2.19 prints, so that scripts that parse it parse ours. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Half", "Row", "header", "json_row", "line"]


@dataclass(frozen=True)
class Half:
    """Out-of-place or in-place: seconds a call, GB/s, wrong elements (None: not checked)."""

    seconds: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """One size. `against` is the other backend's seconds and busbw of the out-of-place half."""

    size: int
    count: int
    dtype: str
    redop: str
    root: int
    out_of_place: Half
    in_place: Half | None
    against: tuple[float, float] | None = None


def header(against: str | None) -> list[str]:
    """The three header lines of the table."""
    lines = [
        "#                                                              out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)       ",
    ]
    if against:
        lines[0] += f"  {against}"
        lines[1] += "     time   busbw   ratio"
        lines[2] += "     (us)  (GB/s)  (x)"
    return lines


def _time(seconds: float) -> str:
    us = seconds * 1e6
    return f"{us:7.0f}" if us >= 10000 else f"{us:7.1f}" if us >= 100 else f"{us:7.2f}"


def _half(half: Half | None) -> str:
    if half is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = "N/A" if half.wrong is None else f"{half.wrong:g}"
    return f"  {_time(half.seconds)}  {half.algbw:6.2f}  {half.busbw:6.2f}  {wrong:>6}"


def line(row: Row) -> str:
    """One row of the table."""
    text = f"{row.size:12d}  {row.count:12d}  {row.dtype:>8}  {row.redop:>6}  {row.root:>6}"
    text += _half(row.out_of_place) + _half(row.in_place)
    if row.against is not None:
        seconds, busbw = row.against
        text += f"  {_time(seconds)}  {busbw:6.2f}  {seconds / max(row.out_of_place.seconds, 1e-12):6.2f}"
    return text


def json_row(row: Row) -> dict[str, Any]:
    """A row as nccl-tests' -J has it."""

    def half(h: Half | None) -> dict[str, Any] | None:
        if h is None:
            return None
        return {"time": h.seconds * 1e6, "alg_bw": h.algbw, "bus_bw": h.busbw, "nwrong": "N/A" if h.wrong is None else h.wrong}

    return {
        "size": row.size,
        "count": row.count,
        "type": row.dtype,
        "redop": row.redop,
        "root": f"{row.root:>6}",
        "out_of_place": half(row.out_of_place),
        "in_place": half(row.in_place),
    }
