"""Time and bus bandwidth over size, default against tuned, one row a collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accl_tune.errors import ArgumentError, EvidenceError
from accl_tune.evidence import Evidence
from accl_tune.report.curves import Curve, busbw, curves
from accl_tune.words import format_bytes

__all__ = ["SUFFIXES", "plot"]

SUFFIXES = (".png", ".svg", ".pdf")

# Two colours that stay apart for colour-blind eyes and in grey.
_DEFAULT = "#999999"
_TUNED = "#0072b2"


def plot(evidence: Evidence, path: Path, title: str) -> None:
    """Writes a picture; the suffix says of which kind. Raises ArgumentError, EvidenceError."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(
            f"'{path}' ends in '{path.suffix}'; expected one of: {', '.join(SUFFIXES)}."
        )
    shown = curves(evidence)
    if not shown:
        raise EvidenceError("The evidence has no samples: there is nothing to plot.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ArgumentError(
            "Plotting needs matplotlib, which is not installed: pip install matplotlib."
        ) from None
    columns = 2 if len(shown) > 1 else 1
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(7.2 * columns, 2.9 * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    ranks = int(evidence.header["parameters"]["ranks"])
    for index, curve in enumerate(shown):
        left = 2 * (index % columns)
        _times(axes[index // columns][left], curve)
        _bandwidths(axes[index // columns][left + 1], curve, ranks)
    for unused in range(len(shown), rows * columns):
        for side in (0, 1):
            axes[unused // columns][2 * (unused % columns) + side].set_visible(False)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise EvidenceError(f"'{path}' could not be written: {error.strerror}.") from error


def _draw(axis: Any, curve: Curve, default: list[float], tuned: list[float]) -> None:
    axis.plot(
        curve.sizes,
        default,
        color=_DEFAULT,
        marker="o",
        markersize=4,
        linewidth=2.5,
        label="default",
    )
    axis.plot(curve.sizes, tuned, color=_TUNED, linewidth=1.3, label="tuned")
    ruled = [index for index, has in enumerate(curve.has_rule) if has]
    axis.plot(
        [curve.sizes[index] for index in ruled],
        [tuned[index] for index in ruled],
        color=_TUNED,
        marker="D",
        markersize=4,
        linestyle="none",
        label="by a rule",
    )
    axis.set_xscale("log", base=2)
    ticks = curve.sizes[:: max(1, -(-len(curve.sizes) // 6))]
    axis.set_xticks(ticks, [format_bytes(size) for size in ticks], fontsize=7)
    axis.minorticks_off()
    axis.tick_params(axis="y", labelsize=7)
    axis.grid(visible=True, color="#e5e5e5")
    axis.set_axisbelow(True)


def _times(axis: Any, curve: Curve) -> None:
    _draw(axis, curve, list(curve.default_us), list(curve.tuned_us))
    axis.set_yscale("log")
    axis.set_title(f"{curve.collective}: time, us", fontsize=9)
    axis.legend(fontsize=7, frameon=False)


def _bandwidths(axis: Any, curve: Curve, ranks: int) -> None:
    default, tuned = (
        [
            busbw(curve.collective, size, us, ranks)
            for size, us in zip(curve.sizes, times, strict=True)
        ]
        for times in (curve.default_us, curve.tuned_us)
    )
    _draw(axis, curve, default, tuned)
    axis.set_ylim(bottom=0)
    axis.set_title(f"{curve.collective}: busbw, GB/s", fontsize=9)
