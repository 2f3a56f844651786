"""What torch builds on a backend: DDP, FSDP2, DTensor, functional collectives, compile,
checkpoints, pipelines.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)
    ).double()


def data(size: int, rows: int = 4) -> Tensor:
    return torch.randn(
        size, rows, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )


def train(net: nn.Module, batches: Tensor, steps: int = 5, lr: float = 0.1) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (net(batches + step) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained_alone(size: int, steps: int = 5) -> nn.Module:
    """The same training in one process on all data."""
    net = model()
    train(net, data(size).flatten(0, 1), steps)
    return net


def assert_close(a: nn.Module, b: nn.Module, tolerance: float = 1e-12) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=tolerance), (p - q).abs().max()


def check_ddp(rank: int, size: int) -> None:
    for keywords in (
        {},
        {"bucket_cap_mb": 0.0001},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
    ):
        net = model()
        if rank:
            for p in net.parameters():
                nn.init.zeros_(p)  # DDP sends rank 0's
        ddp = DistributedDataParallel(net, **keywords)
        train(ddp, data(size)[rank])
        assert_close(net, trained_alone(size))


def check_ddp_hooks(rank: int, size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    reference = trained_alone(size)
    net = model()
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    train(ddp, data(size)[rank])
    assert_close(net, reference)
    net = model().float()
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(ddp, data(size)[rank].float())
    assert_close(net, reference.float(), 1e-2)
    net = nn.Linear(64, 64)
    ddp = DistributedDataParallel(net)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    ddp.register_comm_hook(
        state, powerSGD_hook.powerSGD_hook
    )  # waits for collectives inside its callbacks
    for _ in range(4):
        ddp(torch.randn(3, 64)).sum().backward()
    same = [torch.zeros_like(net.weight.grad) for _ in range(size)]  # type: ignore[arg-type]
    dist.all_gather(same, net.weight.grad)  # type: ignore[arg-type]
    assert all(torch.equal(same[0], other) for other in same)


def check_ddp_join(rank: int, size: int) -> None:
    """Ranks with fewer batches join in; parameters that a rank does not use."""
    net = model()
    ddp = DistributedDataParallel(net)
    with ddp.join():
        for _ in range(2 + rank):
            ddp(data(size)[rank]).sum().backward()

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(6, 1).double() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[min(rank, 1)](x)

    torch.manual_seed(0)
    two = DistributedDataParallel(Two(), find_unused_parameters=True)
    for _ in range(3):
        two(data(size)[rank]).sum().backward()
    assert two.module.parts[1 - min(rank, 1)].weight.grad is not None


def check_fsdp(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cpu", (size,))
    for factor in (None, float(size)):
        net = model()
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        if factor:
            for module in net.modules():
                if hasattr(module, "set_gradient_divide_factor"):
                    module.set_gradient_divide_factor(factor)
        train(net, data(size)[rank])
        for p, q in zip(net.parameters(), trained_alone(size).parameters(), strict=True):
            assert isinstance(p, DTensor)
            assert torch.allclose(p.full_tensor(), q, rtol=0, atol=1e-12)


def check_dtensor(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    a, b = (
        torch.arange(30.0).reshape(5, 6),
        torch.arange(24.0).reshape(6, 4),
    )  # 5 rows: uneven shards
    left, right = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()])
    assert torch.equal((left @ right).full_tensor(), a @ b)
    left, right = distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    assert torch.equal((left @ right).full_tensor(), a @ b)
    moved = left.redistribute(mesh, [Shard(0)])
    assert torch.equal(moved.full_tensor(), a)


def check_functional(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD
    assert group is not None
    x = torch.full((2, 3), float(rank))
    assert funcol.all_reduce(x, "sum", group)[0, 0] == sum(range(size)) and x[0, 0] == rank
    assert funcol.all_reduce(torch.tensor([2 * rank, 3]), "avg", group).tolist() == [size - 1, 3]
    assert funcol.all_gather_tensor(x, 0, group).shape == (2 * size, 3)
    assert torch.equal(funcol.all_gather_tensor(x, 1, group)[0, ::3], torch.arange(float(size)))
    wide = torch.arange(4.0 * size).reshape(2 * size, 2)
    assert torch.equal(
        funcol.reduce_scatter_tensor(wide, "sum", 0, group), wide[2 * rank : 2 * rank + 2] * size
    )
    assert funcol.broadcast(x, size - 1, group)[0, 0] == size - 1
    splits = [1] * size
    out = funcol.all_to_all_single(torch.full((size,), float(rank)), splits, splits, group)
    assert out.tolist() == list(range(size))
    both = funcol.all_reduce_coalesced([x, x + 1], "sum", group)
    assert [t[0, 0].item() for t in both] == [sum(range(size)), sum(range(size)) + size]
    pair = funcol.all_gather_into_tensor_coalesced([x, x[0]], group)
    assert [t.shape[0] for t in pair] == [2 * size, 3 * size]
    pair = funcol.reduce_scatter_tensor_coalesced([wide, wide], "sum", [0, 0], group)
    assert torch.equal(pair[1], wide[2 * rank : 2 * rank + 2] * size)


def check_functional_grad(rank: int, size: int) -> None:
    import torch.distributed.nn.functional as differentiable

    x = torch.full((3,), float(rank), requires_grad=True)
    (differentiable.all_reduce(x) * (rank + 1)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [float(sum(range(1, size + 1)))] * 3
    x.grad = None
    sum(differentiable.all_gather(x)).sum().backward()  # type: ignore[union-attr]
    assert x.grad is not None and x.grad.tolist() == [float(size)] * 3


def check_compile(rank: int, size: int) -> None:
    def step(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    x = torch.full((4,), float(rank))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), torch.full((4,), 2.0 * sum(range(size)) + 1))


def check_checkpoint(rank: int, size: int, folder: str) -> None:
    import torch.distributed.checkpoint as checkpoint

    state = {"w": torch.arange(10.0) * (1 if rank == 0 else 0), "n": torch.tensor(4)}
    checkpoint.save(state, checkpoint_id=folder)
    loaded = {"w": torch.zeros(10), "n": torch.tensor(0)}
    checkpoint.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["w"], torch.arange(10.0)) and loaded["n"] == 4


def check_pipeline(rank: int, size: int) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(1)
    layers = [nn.Linear(5, 5) for _ in range(size)]
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(
        stage, n_microbatches=2 * size, loss_fn=lambda out, target: ((out - target) ** 2).mean()
    )
    x = torch.randn(4 * size, 5, generator=torch.Generator().manual_seed(2))
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        out = schedule.step(target=torch.zeros(4 * size, 5))
        assert torch.allclose(out, nn.Sequential(*layers)(x), atol=1e-6)
    else:
        schedule.step()
    assert layers[rank].weight.grad is not None


def check_data_loader(rank: int, size: int) -> None:
    """Forked workers inherit the group and may not disturb it."""
    from torch.utils.data import DataLoader

    dist.all_reduce(torch.ones(1))
    loader = DataLoader(list(range(8)), num_workers=2, multiprocessing_context="fork")
    assert sorted(int(x) for x in loader) == list(range(8))
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size


def check_forked_child(rank: int, size: int) -> None:
    """A forked child that uses the group is told so; the parent goes on."""
    import multiprocessing as mp

    context = mp.get_context("fork")
    queue = context.Queue()

    def child() -> None:
        try:
            dist.all_reduce(torch.ones(1))
            queue.put("accepted")
        except RuntimeError as error:
            queue.put(str(error))

    process = context.Process(target=child)
    process.start()
    said = queue.get(timeout=10)
    process.join(10)
    assert "fork" in said and process.exitcode == 0, said
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size


CHECKS = [
    value
    for name, value in list(globals().items())
    if name.startswith("check_") and "checkpoint" not in name
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_programs(ranks: Ranks, check: Callable[..., None]) -> None:
    ranks.run(check, seconds=60)


def test_checkpoint(ranks: Ranks) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ranks.run(check_checkpoint, str(Path(folder) / "saved"))
