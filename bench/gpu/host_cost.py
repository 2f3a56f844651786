"""Host cost of one 8-byte all_reduce through torch on one rank, above torch's fake backend.

Three groups in one process, in turns: accl, nccl and fake. The rank is alone, so that NCCL has
nothing to send; what is left is the way from Python to the GPU.
"""

from __future__ import annotations

import os
import time

from common import parser, summary, write

CALLS, ROUNDS = 300, 60


def main() -> None:
    """The command line."""
    arguments = parser(__doc__).parse_args()
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers "fake"

    torch.cuda.set_device(0)
    dist.init_process_group("accl", store=dist.HashStore(), rank=0, world_size=1)
    groups = {
        "accl": dist.group.WORLD,
        "nccl": dist.new_group([0], backend="nccl"),
        "fake": dist.new_group([0], backend="fake"),
    }
    box = torch.ones(2, device="cuda")
    rows = []
    for async_op in (False, True):

        def batch(group, async_op=async_op) -> float:
            start = time.perf_counter()
            for _ in range(CALLS):
                work = dist.all_reduce(box, group=group, async_op=async_op)
                if async_op:
                    work.wait()
            spent = time.perf_counter() - start
            torch.cuda.synchronize()
            return spent / CALLS * 1e6

        times: dict[str, list[float]] = {name: [] for name in groups}
        for turn in range(ROUNDS + 3):
            for name, group in groups.items():
                spent = batch(group)
                if turn >= 3:
                    times[name].append(spent)
        middle = {name: summary(values) for name, values in times.items()}
        ours = middle["accl"][0] - middle["fake"][0]
        theirs = middle["nccl"][0] - middle["fake"][0]
        rows.append({"async_op": async_op, "us": middle, "ratio": ours / theirs})
    print("host cost of one 8-byte all_reduce, 1 rank: median us (+- half the quartile distance)")
    print(f"{'async_op':>9} {'accl':>14} {'nccl':>14} {'fake':>14} {'(accl-fake)/(nccl-fake)':>24}")
    for row in rows:
        cells = [f"{m:.2f} +-{s:.2f}" for m, s in row["us"].values()]
        print(
            f"{row['async_op']!s:>9} {cells[0]:>14} {cells[1]:>14} {cells[2]:>14} {row['ratio']:>24.2f}"
        )
    write(arguments.json, rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
