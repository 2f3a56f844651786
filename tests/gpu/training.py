"""Training on top of the backend equals training in one process; run by each rank."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

CUDA = "cuda"
STEPS = 4
BATCH = 8  # of all ranks together, a multiple of every size


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)
    ).to(CUDA)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 32, generator=generator).to(CUDA) for _ in range(STEPS)]


def train(net: nn.Module, rank: int, size: int, after: Any = None) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    share = BATCH // size
    for batch in batches():
        optimizer.zero_grad()
        net(batch[rank * share : (rank + 1) * share]).square().mean().backward()
        optimizer.step()


def alone() -> list[torch.Tensor]:
    net = model()
    train(net, 0, 1)
    return [p.detach() for p in net.parameters()]


def same(parameters: Any, tolerance: float = 1e-5) -> None:
    for got, want in zip(parameters, alone(), strict=True):
        torch.testing.assert_close(got.detach(), want, rtol=tolerance, atol=tolerance)


def ddp(rank: int, size: int) -> None:
    """DistributedDataParallel, plain and with a hook that casts."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    train(net, rank, size)
    same(net.module.parameters())
    hooked = DistributedDataParallel(model())
    hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(hooked, rank, size)
    same(hooked.module.parameters(), 1e-2)


def fsdp(rank: int, size: int) -> None:
    """fully_shard: all_gather, reduce_scatter, AVG."""
    from torch.distributed.fsdp import fully_shard

    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    train(net, rank, size)
    same([p.full_tensor() for p in net.parameters()])


def tensors(rank: int, size: int) -> None:
    """DTensor: shard, replicate, and back."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(CUDA, (size,))
    whole = torch.arange(8.0 * size, device=CUDA).reshape(size * 2, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(
        (sharded @ sharded.T.redistribute(mesh, [Replicate()])).full_tensor(), whole @ whole.T
    )
    assert sharded.sum().full_tensor() == whole.sum()


def compiled(rank: int, size: int) -> None:
    """Functional collectives inside one compiled graph."""
    import torch.distributed._functional_collectives as funcol

    def body(x: torch.Tensor) -> torch.Tensor:
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        return funcol.all_gather_tensor(y + 1, 0, dist.group.WORLD)

    box = torch.full((16,), float(rank), device=CUDA)
    want = torch.full((16 * size,), 2.0 * sum(range(size)) + 1, device=CUDA)
    assert torch.equal(body(copy.copy(box)), want)
    assert torch.equal(torch.compile(body, fullgraph=True)(box), want)
