"""accl beside nccl through torch where NCCL serves: our kernels switched off, calls in turns.

Times are of one call with a synchronised device before and after, so that they hold host and GPU.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from common import on_ranks, parser, summary, write

SIZES = [8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20, 256 << 20]


def measure(rank: int, size: int, seconds: float) -> list[dict[str, Any]]:
    """The rows of one number of ranks."""
    import accl_py.torch
    import torch
    import torch.distributed as dist

    options = accl_py.torch.Options(timeout=timedelta(seconds=60))
    options.kernels = False
    everybody = list(range(size))
    groups = {
        "accl": dist.new_group(everybody, backend="accl", pg_options=options),
        "nccl": dist.new_group(everybody, backend="nccl"),
    }
    rows = []
    for size_bytes in SIZES:
        box = torch.zeros(size_bytes // 4, device="cuda")
        repeats = 20 if size_bytes <= 65536 else 1

        def once(group: Any, box: Any = box, repeats: int = repeats) -> float:
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                dist.all_reduce(box, group=group)
            torch.cuda.synchronize()
            return (time.perf_counter() - start) / repeats * 1e6

        for group in groups.values():
            once(group)
        single = max(once(groups["nccl"]), 1.0) * repeats / 1e6
        share = torch.tensor([seconds / len(SIZES) / 2 / single], device="cuda")
        dist.all_reduce(share, op=dist.ReduceOp.MIN)
        turns = int(min(max(share.item(), 5), 40))
        times: dict[str, list[float]] = {name: [] for name in groups}
        for turn in range(turns):
            for name in sorted(groups, reverse=bool(turn % 2)):
                times[name].append(once(groups[name]))
        middle = {name: summary(values) for name, values in times.items()}
        pairs = [a / b for a, b in zip(times["accl"], times["nccl"], strict=True)]
        rows.append({"ranks": size, "bytes": size_bytes, "us": middle, "ratio": summary(pairs)})
    return rows


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options.add_argument("--seconds", type=float, default=25, help="for each number of ranks")
    arguments = options.parse_args()
    print(
        "all_reduce through torch where NCCL serves (own kernels off): median us, and of the pairs"
    )
    print(f"{'ranks':>5} {'bytes':>10} {'accl':>11} {'nccl':>11} {'accl/nccl':>10} {'+-':>6}")
    rows = []
    for size in arguments.ranks:
        for row in on_ranks(measure, size, 120, seconds=arguments.seconds):
            rows.append(row)
            print(
                f"{row['ranks']:>5} {row['bytes']:>10} {row['us']['accl'][0]:>11.1f} "
                f"{row['us']['nccl'][0]:>11.1f} {row['ratio'][0]:>10.3f} {row['ratio'][1]:>6.3f}",
                flush=True,
            )
    write(arguments.json, rows)


if __name__ == "__main__":
    main()
