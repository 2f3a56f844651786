"""A digits classifier, trained with DistributedDataParallel over the accl backend, and checked.

    torchrun --standalone --nproc-per-node=2 examples/digits_ddp.py

The data is the set of 1,797 handwritten digits that scikit-learn carries. The same training runs
three times from the same weights: over accl, over gloo, and in one process that sees the whole
batch. Losses and weights must agree within 1e-5 after every step; the program prints a table and
ends with 1 where they do not. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 192  # of all ranks together; divides by 2, 3, 4, 6 and 8
TOLERANCE = 1e-5


@dataclass
class Run:
    """What a training leaves: the loss over the whole batch at each step, and the weights after the
    last.
    """

    losses: list[float]
    weights: Tensor


def digits() -> tuple[Tensor, Tensor]:
    """Images of shape (1797, 64), from 0 to 1, and labels of shape (1797,)."""
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def train(net: nn.Module, steps: int, rank: int, size: int, group: dist.ProcessGroup | None) -> Run:
    """Trains on this rank's share of each batch; ``group`` None is the run in one process."""
    images, labels = digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(net, process_group=group) if group else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step in range(steps):
        batch = order.roll(-step * BATCH)[:BATCH].tensor_split(size)[rank]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean = loss.detach().clone()
        if group:
            dist.all_reduce(mean, group=group)
            mean /= size
        losses.append(mean.item())
    return Run(losses, nn.utils.parameters_to_vector(net.parameters()).detach())


def accuracy(net: nn.Module) -> float:
    images, labels = digits()
    with torch.no_grad():
        return (net(images).argmax(1) == labels).float().mean().item()


def apart(a: Run, b: Run) -> float:
    """The largest difference of two runs, in any loss and any weight."""
    losses = max(abs(x - y) for x, y in zip(a.losses, b.losses, strict=True))
    return max(losses, (a.weights - b.weights).abs().max().item())


def table(runs: dict[str, Run], steps: int) -> str:
    """Losses side by side, about ten rows."""
    head = "step  " + "  ".join(f"{name:>12}" for name in runs)
    rows = [
        f"{step + 1:4d}  " + "  ".join(f"{run.losses[step]:12.8f}" for run in runs.values())
        for step in range(steps)
        if step % max(steps // 10, 1) == 0 or step == steps - 1
    ]
    return "\n".join(["loss over the whole batch", head, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="training steps (default 50)")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)

    dist.init_process_group("accl")
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        raise SystemExit(
            f"{size} ranks do not divide the batch of {BATCH} evenly; use 1, 2, 3, 4, 6 or 8."
        )
    gloo = dist.new_group(backend="gloo")
    start = classifier()
    over_accl = copy.deepcopy(start)
    runs = {
        "one process": train(copy.deepcopy(start), steps, 0, 1, None),
        "accl": train(over_accl, steps, rank, size, dist.group.WORLD),
        "gloo": train(copy.deepcopy(start), steps, rank, size, gloo),
    }
    differences = {name: apart(runs["accl"], runs[name]) for name in ("one process", "gloo")}
    worst = torch.tensor(max(differences.values()))
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    good = worst.item() <= TOLERANCE
    if rank == 0:
        print(table(runs, steps))
        print(f"\n{size} ranks, {steps} steps; accuracy on all digits {accuracy(over_accl):.3f}")
        for name, difference in differences.items():
            print(f"accl against {name}: largest difference of a loss or weight {difference:.2e}")
        print(
            f"largest on any rank {worst.item():.2e}, allowed {TOLERANCE:.0e}: "
            f"{'ok' if good else 'WRONG'}"
        )
    dist.barrier()
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
