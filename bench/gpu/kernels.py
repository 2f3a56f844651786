"""Our own kernels and NCCL, per call in a CUDA graph, less an empty kernel in the same kind of graph.

Ranks that share a GPU reach each other through NCCL over loopback sockets only: there the ratio says
what small messages cost without a shared path, and is no headline.
"""

from __future__ import annotations

from typing import Any

from common import graph_of, on_ranks, parser, replay_us, summary, write

SIZES = [8, 256, 1024, 4096, 16384, 65536, 262144]
CALLS, ROUNDS = 100, 9


def measure(rank: int, size: int) -> list[dict[str, Any]]:
    """The rows of one number of ranks."""
    import torch
    import torch.distributed as dist

    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    assert backend.kernels_unavailable() == "", backend.kernels_unavailable()
    nccl = dist.new_group(list(range(size)), backend="nccl")
    one = torch.ones(1, device="cuda")
    empty = graph_of(lambda: one.fill_(1.0), CALLS)
    rows = []
    for size_bytes in SIZES:
        box = torch.zeros(size_bytes // 4, device="cuda")
        before = backend.device_statistics()["kernel_launches"]
        graphs = {
            "accl": graph_of(lambda box=box: dist.all_reduce(box), CALLS),
            "nccl": graph_of(lambda box=box: dist.all_reduce(box, group=nccl), CALLS),
            "empty": empty,
        }
        launched = backend.device_statistics()["kernel_launches"] - before
        assert launched >= CALLS, f"{size_bytes} bytes: NCCL served what is compared with NCCL"
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for turn in range(ROUNDS + 1):
            for name, (graph, stream) in graphs.items():
                dist.barrier()
                spent = replay_us(graph, stream) / CALLS
                if turn > 0:
                    times[name].append(spent)
        middle = {name: summary(values) for name, values in times.items()}
        ours, theirs = (middle[name][0] - middle["empty"][0] for name in ("accl", "nccl"))
        rows.append(
            {"ranks": size, "bytes": size_bytes, "us": middle, "accl": ours, "nccl": theirs}
        )
        del graphs
    return rows


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    arguments = options.parse_args()
    import torch

    way = (
        "loopback sockets"
        if torch.cuda.device_count() < max(arguments.ranks)
        else "NCCL's own choice"
    )
    print(
        f"all_reduce of float32 in a CUDA graph, us a call less an empty kernel (nccl over {way})"
    )
    print(f"{'ranks':>5} {'bytes':>8} {'accl':>9} {'+-':>6} {'nccl':>9} {'+-':>7} {'nccl/accl':>9}")
    rows = []
    for size in arguments.ranks:
        for row in on_ranks(measure, size, 150):
            rows.append(row)
            print(
                f"{row['ranks']:>5} {row['bytes']:>8} {row['accl']:>9.2f} {row['us']['accl'][1]:>6.2f} "
                f"{row['nccl']:>9.2f} {row['us']['nccl'][1]:>7.2f} {row['nccl'] / row['accl']:>9.1f}",
                flush=True,
            )
    write(arguments.json, rows)


if __name__ == "__main__":
    main()
