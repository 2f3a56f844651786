"""The text and JSON that nccl-tests 2.19 prints, so that scripts that parse it parse ours. Pure."""

from __future__ import annotations

import math
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
    each: tuple[float, ...] = ()  # seconds of each call, with -I


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


_EACH = (("i_min", "i_max", "i_p99", "i_cv%"), ("(us)", "(us)", "(us)", "(%)"))


def header(against: str | None, per_iteration: bool = False) -> list[str]:
    """The three header lines of the table."""
    if per_iteration:
        names, units = ("".join(f"  {word:>7}" for word in words) for words in _EACH)
        half = ("     time   algbw   busbw  #wrong", "     (us)  (GB/s)  (GB/s)        ")
        return [
            f"#{'out-of-place':>74}{'in-place':>64}",
            "#       size         count      type   redop    root" + (half[0] + names) * 2,
            "#        (B)    (elements)                          " + (half[1] + units) * 2,
        ]
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


def spread(seconds: tuple[float, ...]) -> dict[str, float]:
    """Statistics of single calls, in us, and the coefficient of variation in percent."""
    us = sorted(1e6 * s for s in seconds)
    mean = sum(us) / len(us)
    deviation = (sum((u - mean) ** 2 for u in us) / len(us)) ** 0.5

    def at(q: float) -> float:
        return us[max(0, math.ceil(q * len(us)) - 1)]

    return {
        "min_us": us[0],
        "max_us": us[-1],
        "avg_us": mean,
        "p50_us": at(0.5),
        "p95_us": at(0.95),
        "p99_us": at(0.99),
        "stdev_us": deviation,
        "cv_pct": 100 * deviation / mean if mean else 0.0,
    }


def _half(half: Half | None, per_iteration: bool) -> str:
    if half is None:
        return (
            f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
            + f"  {'N/A':>7}" * 4 * per_iteration
        )
    wrong = "N/A" if half.wrong is None else f"{half.wrong:g}"
    text = f"  {_time(half.seconds)}  {half.algbw:6.2f}  {half.busbw:6.2f}  {wrong:>6}"
    if per_iteration:
        s = spread(half.each)
        text += (
            "".join(f"  {_time(s[k] / 1e6)}" for k in ("min_us", "max_us", "p99_us"))
            + f"  {s['cv_pct']:7.1f}"
        )
    return text


def line(row: Row) -> str:
    """One row of the table."""
    text = f"{row.size:12d}  {row.count:12d}  {row.dtype:>8}  {row.redop:>6}  {row.root:>6}"
    per_iteration = bool(row.out_of_place.each)
    text += _half(row.out_of_place, per_iteration) + _half(row.in_place, per_iteration)
    if row.against is not None:
        seconds, busbw = row.against
        text += f"  {_time(seconds)}  {busbw:6.2f}  {seconds / max(row.out_of_place.seconds, 1e-12):6.2f}"
    return text


def json_row(row: Row) -> dict[str, Any]:
    """A row as nccl-tests' -J has it."""

    def half(h: Half | None) -> dict[str, Any] | None:
        if h is None:
            return None
        return {
            "time": h.seconds * 1e6,
            "alg_bw": h.algbw,
            "bus_bw": h.busbw,
            "nwrong": "N/A" if h.wrong is None else h.wrong,
        }

    document = {
        "size": row.size,
        "count": row.count,
        "type": row.dtype,
        "redop": row.redop,
        "root": f"{row.root:>6}",
        "out_of_place": half(row.out_of_place),
        "in_place": half(row.in_place),
    }
    for name, h in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        if h is not None and h.each:
            document[f"{name}_per_iter"] = {**spread(h.each), "times_us": [1e6 * s for s in h.each]}
    return document
