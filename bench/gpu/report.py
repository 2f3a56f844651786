#!/usr/bin/env python3
"""Tables in Markdown of what the GPU benchmarks measured, and whether the targets are reached.

    bench/gpu/report.py out/gpu_check

The folder holds host_cost.json, kernels.json and sizes.json, and bench.log with the line of
flag_round_trip; what is missing is said and left out. Ends with 1 where a target is missed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Verdicts = list[tuple[str, bool]]

HOST_RATIO = 0.7
KERNEL_GAIN = 4.0
KERNEL_LARGEST = 64 << 10
ROUND_TRIPS = 2.0
LARGE, LARGE_RATIO = 16 << 20, 1.02


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns to the right, readable as text."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "| " + " | ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return "\n".join([text[0], rule, *text[1:]])


def size_name(size: int) -> str:
    """As in 8 B, 64 KiB, 16 MiB."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def spread(cell: Sequence[float]) -> str:
    """A median and half the distance of the quartiles."""
    return f"{cell[0]:.2f} ± {cell[1]:.2f}"


def host_cost(rows: list[dict[str, Any]]) -> tuple[str, Verdicts]:
    """Target 1."""
    header = ["async_op", "accl, us", "nccl, us", "fake, us", "(accl - fake) / (nccl - fake)"]
    cells = [
        [
            str(row["async_op"]),
            *[spread(row["us"][name]) for name in ("accl", "nccl", "fake")],
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    verdicts: Verdicts = []
    for row in rows:
        text = f"host cost, async_op={row['async_op']}: {row['ratio']:.2f} of nccl's"
        verdicts.append((f"{text}, at most {HOST_RATIO}", row["ratio"] <= HOST_RATIO))
    title = "Host cost of one 8-byte all_reduce through torch, one rank, above torch's fake backend"
    return f"{title}\n\n{table(header, cells)}", verdicts


def kernels(rows: list[dict[str, Any]], round_trip: float | None) -> tuple[str, Verdicts]:
    """Target 2."""
    header = ["ranks", "size", "accl, us", "nccl over loopback sockets, us", "nccl / accl"]
    cells = []
    verdicts: Verdicts = []
    for row in rows:
        gain = row["nccl"] / row["accl"]
        size = size_name(row["bytes"])
        cells.append(
            [str(row["ranks"]), size, f"{row['accl']:.2f}", f"{row['nccl']:.1f}", f"{gain:.1f}"]
        )
        what = f"own kernels, {row['ranks']} ranks, {size}"
        if row["bytes"] <= KERNEL_LARGEST:
            text = f"{what}: {gain:.1f} times as fast as NCCL there, at least {KERNEL_GAIN:g}"
            verdicts.append((text, gain >= KERNEL_GAIN))
        if row["bytes"] == 8 and round_trip is not None:
            trips = row["accl"] / round_trip
            text = f"{what}: {trips:.2f} flag round trips of {round_trip:.2f} us"
            verdicts.append((f"{text}, at most {ROUND_TRIPS:g}", trips <= ROUND_TRIPS))
    title = "all_reduce in a CUDA graph of 100 calls, us a call less an empty kernel"
    return f"{title}\n\n{table(header, cells)}", verdicts


def sizes(rows: list[dict[str, Any]]) -> tuple[str, Verdicts]:
    """Target 3. Small sizes count as slower only where the spread of the ratio is above 1, too."""
    header = ["ranks", "size", "accl, us", "nccl, us", "accl / nccl"]
    cells = []
    verdicts: Verdicts = []
    for row in rows:
        middle, half = row["ratio"]
        size = size_name(row["bytes"])
        times = [f"{row['us'][name][0]:.1f}" for name in ("accl", "nccl")]
        cells.append([str(row["ranks"]), size, *times, f"{middle:.3f} ± {half:.3f}"])
        bound = LARGE_RATIO if row["bytes"] >= LARGE else 1.0
        text = f"NCCL serves, {row['ranks']} ranks, {size}: {middle:.3f} ± {half:.3f} of nccl's"
        good = middle <= bound or (bound == 1.0 and middle - half <= bound)
        verdicts.append((f"{text}, at most {bound:g}", good))
    title = "all_reduce where NCCL serves (own kernels off), calls of both in turns"
    return f"{title}\n\n{table(header, cells)}", verdicts


def round_trip_in(log: Path) -> float | None:
    """What flag_round_trip printed, if it did."""
    if not log.is_file():
        return None
    found = re.search(r"flag round trip: ([0-9.]+) us", log.read_text())
    return float(found.group(1)) if found else None


def main() -> int:
    """The command line."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: report.py FOLDER, which holds what the benchmarks wrote", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    round_trip = round_trip_in(folder / "bench.log")
    parts = {
        "host_cost.json": host_cost,
        "kernels.json": lambda rows: kernels(rows, round_trip),
        "sizes.json": sizes,
    }
    verdicts: Verdicts = []
    for name, part in parts.items():
        path = folder / name
        if not path.is_file():
            print(f"{name} is not in {folder}: that benchmark did not end.\n")
            verdicts.append((f"{name}: not measured", False))
            continue
        text, told = part(json.loads(path.read_text()))
        print(text + "\n")
        verdicts += told
    if round_trip is None:
        print("The flag round trip was not measured: bench.log does not have its line.\n")
        verdicts.append(("flag round trip: not measured", False))
    missed = [text for text, good in verdicts if not good]
    print(f"targets: {len(verdicts) - len(missed)} of {len(verdicts)} reached")
    print(*[f"  missed: {text}" for text in missed], sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
