"""Corners of the collectives, messages, groups and handles; run by each rank.

Nothing here is of one backend, but what stands under "Ours alone".
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

CUDA = "cuda"
MOVED = [
    torch.float64,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint8,
    torch.int64,
    torch.bool,
]
MOVED_AS_BYTES = [torch.int16, torch.complex64, torch.complex128]  # torch's nccl refuses them


def total(size: int) -> float:
    """The sum of 1 to ``size``."""
    return size * (size + 1) / 2


def full(count: int, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), value, device=CUDA).to(dtype)


def near(box: torch.Tensor, value: float) -> None:
    """Up to rounding: NCCL multiplies by 1/n before it adds."""
    torch.testing.assert_close(box, torch.full_like(box, value))


def finish(work: Any) -> None:
    if work is not None:
        work.wait()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For dtypes that cannot be compared."""
    return tensor.contiguous().view(torch.uint8)


# --- collectives -------------------------------------------------------------------------------


def gathers_in_place(rank: int, size: int) -> None:
    """The input is the own block of the output."""
    for count in (1, size + 1, 4099, 100_003):
        for async_op in (False, True):
            out = full(size * count, -1.0)
            own = out[rank * count : (rank + 1) * count]
            own.fill_(rank)
            finish(dist.all_gather_into_tensor(out, own, async_op=async_op))
            want = torch.arange(size, device=CUDA).repeat_interleave(count).float()
            assert torch.equal(out, want), (count, async_op)

            out.fill_(-1.0)
            own.fill_(rank)
            blocks = list(out.split(count))
            finish(dist.all_gather(blocks, own, async_op=async_op))
            assert torch.equal(out, want), (count, async_op)


def stacked_shapes(rank: int, size: int) -> None:
    """Outputs of one more dimension, and tensors without any."""
    out = torch.empty(size, 3, 2, device=CUDA)
    dist.all_gather_into_tensor(out, torch.full((3, 2), float(rank), device=CUDA))
    assert all((out[r] == r).all() for r in range(size))
    single = torch.empty(size, device=CUDA)
    dist.all_gather_into_tensor(single, torch.tensor(float(rank), device=CUDA))
    assert single.tolist() == [float(r) for r in range(size)]
    scalar = torch.tensor(float(rank + 1), device=CUDA)
    dist.all_reduce(scalar)
    assert scalar.item() == total(size)
    part = torch.empty(3, 2, device=CUDA)
    dist.reduce_scatter_tensor(part, torch.full((size, 3, 2), float(rank + 1), device=CUDA))
    assert (part == total(size)).all()


def averages(rank: int, size: int) -> None:
    """AVG and PREMUL_SUM in all collectives that compute; a factor may be a tensor."""
    mean = total(size) / size
    for count in (3, 20_000):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            box = full(count, rank + 1, dtype)
            dist.all_reduce(box, op=dist.ReduceOp.AVG)
            near(box, mean)
            box = full(count, rank + 1, dtype)
            dist.reduce(box, size - 1, op=dist.ReduceOp.AVG)
            near(box, mean if rank == size - 1 else rank + 1)
            out = torch.empty(count, dtype=dtype, device=CUDA)
            dist.reduce_scatter_tensor(out, full(size * count, rank + 1, dtype), dist.ReduceOp.AVG)
            near(out, mean)
        for factor in (0.25, torch.tensor([0.25], device=CUDA)):
            box = full(count, rank + 1)
            dist.all_reduce(box, op=dist._make_nccl_premul_sum(factor))
            assert (box == total(size) / 4).all(), (count, factor)
            out = torch.empty(count, device=CUDA)
            op = dist._make_nccl_premul_sum(factor)
            dist.reduce_scatter_tensor(out, full(size * count, rank + 1), op)
            assert (out == total(size) / 4).all(), (count, factor)


def no_numbers(rank: int, size: int) -> None:
    """NaN and infinities arrive as such, where they are summed and where they are moved."""
    for count in (5, 100_000):
        box = full(count, 1.0)
        if rank == 0:
            box[0], box[1], box[2] = float("nan"), float("inf"), float("-inf")
        dist.all_reduce(box)
        assert box[0].isnan() and box[1] == float("inf") and box[2] == float("-inf")
        assert (box[3:] == size).all()
        box = full(count, float("nan") if rank == size - 1 else 0.0)
        dist.broadcast(box, size - 1)
        assert box.isnan().all()


def refused_operations(rank: int, size: int) -> None:
    """Operations that a dtype has not are errors before anything is sent; the group lives on."""
    boxes = [
        (torch.ones(3, dtype=torch.complex64, device=CUDA), dist.ReduceOp.MAX),
        (torch.ones(3, dtype=torch.complex64, device=CUDA), dist.ReduceOp.PRODUCT),
        (torch.ones(3, dtype=torch.int32, device=CUDA), dist.ReduceOp.BXOR),
    ]
    for box, op in boxes:
        try:
            dist.all_reduce(box, op=op)
        except (RuntimeError, ValueError):
            continue
        raise AssertionError(f"{op} of {box.dtype} was accepted")
    box = full(7, rank + 1)
    dist.all_reduce(box)
    assert (box == total(size)).all()


# --- messages ----------------------------------------------------------------------------------


def messages_of_all_dtypes(rank: int, size: int) -> None:
    """Around the ring, what NCCL has a type for."""
    _around(rank, size, MOVED)


def _around(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in dtypes:
        for count in (1, 33, 5001):
            own = (torch.arange(count, device=CUDA) % 2 + rank % 2).to(dtype)
            want = (torch.arange(count, device=CUDA) % 2 + before % 2).to(dtype)
            got = torch.empty(count, dtype=dtype, device=CUDA)
            ops = [dist.P2POp(dist.isend, own, after), dist.P2POp(dist.irecv, got, before)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert torch.equal(bits(got), bits(want)), (dtype, count)


def rings(rank: int, size: int) -> None:
    """Many short batches, one after the other, without the host in between."""
    after, before = (rank + 1) % size, (rank - 1) % size
    box = full(257, rank)
    for _ in range(100 * size):
        got = torch.empty_like(box)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, box, after)]
        ):
            work.wait()
        box = got
    assert (box == rank).all()


def large_batches(rank: int, size: int) -> None:
    """512 operations in one batch, in a random order that keeps the order of each pair."""
    if size == 1:
        return
    each = 512 // (2 * (size - 1))
    queues = []
    got = {}
    for peer in range(size):
        if peer == rank:
            continue
        sent = [full(16, 1000 * rank + i) for i in range(each)]
        got[peer] = [torch.empty(16, device=CUDA) for _ in range(each)]
        queues.append([dist.P2POp(dist.isend, box, peer) for box in sent])
        queues.append([dist.P2POp(dist.irecv, box, peer) for box in got[peer]])
    order = random.Random(rank)
    ops = []
    while queues:
        queue = order.choice(queues)
        ops.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for peer, boxes in got.items():
        for i, box in enumerate(boxes):
            assert (box == 1000 * peer + i).all(), (peer, i)


def asymmetric_batches(rank: int, size: int) -> None:
    """Rank 0 only sends, and different numbers of messages to each; the others only receive."""
    if size == 1:
        return
    if rank == 0:
        ops = [
            dist.P2POp(dist.isend, full(100 * peer, peer), peer)
            for peer in range(1, size)
            for _ in range(peer)
        ]
        boxes = []
    else:
        boxes = [torch.empty(100 * rank, device=CUDA) for _ in range(rank)]
        ops = [dist.P2POp(dist.irecv, box, 0) for box in boxes]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert all((box == rank).all() for box in boxes)


def large_sends_do_not_wait(rank: int, size: int) -> None:
    """isend of a large tensor returns, and what follows it on the host goes on."""
    if size == 1:
        return
    count = 4_000_000
    if rank == 0:
        works = [dist.isend(full(count, 5.0), peer) for peer in range(1, size)]
        assert all(work is not None for work in works)
        for work in works:
            work.wait()
    else:
        box = torch.empty(count, device=CUDA)
        work = dist.irecv(box, 0)
        assert work is not None
        work.wait()
        assert (box == 5.0).all()


# --- coalescing, graphs ------------------------------------------------------------------------


def coalesced_reduce_scatters(rank: int, size: int) -> None:
    """As FSDP does it."""
    counts = (1, 4, 10_001)
    outputs = [torch.empty(count, device=CUDA) for count in counts]
    inputs = [full(size * count, rank + 1) for count in counts]
    with dist._coalescing_manager(device=torch.device(CUDA), async_ops=True) as manager:
        for output, given in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, given)
    manager.wait()
    assert all((output == total(size)).all() for output in outputs)


def graphs_of_the_rest(rank: int, size: int) -> None:
    """Lists, roots, messages and coalesced calls in a graph that is replayed with other data."""
    count = 300
    after, before = (rank + 1) % size, (rank - 1) % size
    source = full(count, 1.0)
    listed = [torch.empty(count, device=CUDA) for _ in range(size)]
    rooted = [torch.empty(count, device=CUDA) for _ in range(size)] if rank == 0 else None
    spread, message = torch.empty(count, device=CUDA), torch.empty(count, device=CUDA)
    boxes = [torch.empty(n, device=CUDA) for n in (2, 700)]

    def body() -> None:
        mine = source * rank
        dist.all_gather(listed, mine)
        dist.gather(mine, rooted, 0)
        dist.scatter(spread, [source * r for r in range(size)] if rank == 0 else None, 0)
        ops = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, message, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for box in boxes:
            box.copy_(source[0].expand_as(box))
        with dist._coalescing_manager(device=torch.device(CUDA), async_ops=True) as manager:
            for box in boxes:
                dist.all_reduce(box)
        manager.wait()

    body()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    for value in (2.0, -1.0):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert all((box == value * r).all() for r, box in enumerate(listed))
        assert rooted is None or all((box == value * r).all() for r, box in enumerate(rooted))
        assert (spread == value * rank).all()
        assert (message == value * before).all()
        assert all((box == value * size).all() for box in boxes)
    dist.barrier()
    del graph


def captures_beside_eager_calls(rank: int, size: int) -> None:
    """Replays and eager calls in turns, small ones (kernels of ours) and larger ones (NCCL's)."""
    for count in (64, 300_000):
        box = full(count, 0.0)
        dist.all_reduce(box)
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(box)
        for turn in range(20):
            box.fill_(rank + turn)
            graph.replay()
            other = full(count, rank + 1)
            dist.all_reduce(other)
            assert (box == sum(r + turn for r in range(size))).all(), (count, turn)
            assert (other == total(size)).all(), (count, turn)
        dist.barrier()
        del graph


# --- handles -----------------------------------------------------------------------------------


def handles(rank: int, size: int) -> None:
    """A handle is not complete while the GPU is at other work, and is in the end."""
    box = full(300_000, rank + 1)
    dist.all_reduce(box.clone())
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)
    work = dist.all_reduce(box, async_op=True)
    assert not work.is_completed()
    future = work.get_future()
    assert work.wait()
    torch.cuda.synchronize()
    assert work.is_completed()
    assert (future.value()[0] == total(size)).all()
    assert work.wait(timedelta(seconds=20))


def chained_futures(rank: int, size: int) -> None:
    """A callback makes a call of its own, and waits for it."""

    def again(done: Any) -> torch.Tensor:
        box = done.value()[0] * 2
        dist.all_reduce(box)
        return box

    for count in (10, 200_000):
        work = dist.all_reduce(full(count, rank + 1), async_op=True)
        result = work.get_future().then(again).wait()
        assert (result == 2 * size * total(size)).all(), count


def dropped_handles(rank: int, size: int) -> None:
    """Nobody waits; the next call of the same group comes after."""
    for i in range(50):
        box = full(20_000, rank + 1)
        dist.all_reduce(box, async_op=True)
        dist.all_reduce(full(20_000, 1.0), async_op=True).wait()
        assert i % 10 or (box == total(size)).all()


def profiled(rank: int, size: int) -> None:
    """The profiler's rows carry the backend's name."""
    box = full(1000, 1.0)
    on_host = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=on_host, record_shapes=True) as profile:
        dist.all_reduce(box)
        dist.broadcast(box, 0, async_op=True).wait()
    names = {event.name for event in profile.events()}
    name = dist.get_backend()
    assert f"{name}:all_reduce" in names and f"{name}:broadcast" in names, sorted(names)


# --- groups ------------------------------------------------------------------------------------


def groups_in_turns(rank: int, size: int) -> None:
    """Two groups of the same ranks at once, each on a stream of its own."""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in groups]
    for group in groups:
        dist.all_reduce(full(1, 1.0), group=group)
    torch.cuda.synchronize()
    for count in (32, 100_000):
        results = []
        for i in range(60):
            with torch.cuda.stream(streams[i % 2]):
                box = full(count, rank + i)
                dist.all_reduce(box, group=groups[i % 2])
                results.append(box[-1].clone())
        torch.cuda.synchronize()
        got = torch.stack(results).tolist()
        assert got == [float(sum(r + i for r in range(size))) for i in range(60)]
    for group in groups:
        dist.destroy_process_group(group)


def local_groups(rank: int, size: int) -> None:
    """Members alone make a group; neighbours have one of two, and the last may be by itself."""
    members = [r for r in range(size) if r // 2 == rank // 2]
    group = dist.new_group(members, use_local_synchronization=True)
    box = full(100, rank + 1)
    dist.all_reduce(box, group=group)
    assert (box == sum(r + 1 for r in members)).all()
    dist.destroy_process_group(group)


def backwards(rank: int, size: int) -> None:
    """A group whose ranks stand in another order."""
    order = list(range(size))[::-1]
    group = dist.new_group(order, sort_ranks=False) if _sorts() else dist.new_group(order)
    box = full(100, rank)
    dist.broadcast(box, size - 1, group=group)
    assert (box == size - 1).all()
    out = torch.empty(size, device=CUDA)
    dist.all_gather_into_tensor(out, full(1, rank), group=group)
    assert out.tolist() == [float(r) for r in dist.get_process_group_ranks(group)]
    dist.destroy_process_group(group)


def barrier_first(rank: int, size: int) -> None:
    """The first call of all is a barrier, which has no tensor to tell the GPU by."""
    dist.barrier(device_ids=[torch.cuda.current_device()])
    dist.barrier()
    box = full(100, rank + 1)
    dist.all_reduce(box)
    assert (box == total(size)).all()


def made_again(rank: int, size: int, backend: str, folder: str) -> None:
    """The default group is left and made anew, for a device and not, in one process."""
    import pool

    device = torch.device(CUDA, torch.cuda.current_device())
    for turn, eager in enumerate((True, False, False, True)):
        dist.destroy_process_group()
        pool.join(backend, rank, size, str(Path(folder) / f"store{turn}"), device, eager)
        for count in (8, 200_000):
            box = full(count, rank + 1)
            dist.all_reduce(box)
            assert (box == total(size)).all(), (turn, count)


def _sorts() -> bool:
    import inspect

    return "sort_ranks" in inspect.signature(dist.new_group).parameters


# --- training ----------------------------------------------------------------------------------


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(CUDA)


def _train(net: nn.Module, rank: int, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    batch = torch.randn(16, 64, generator=generator).to(CUDA)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compressing_hook(rank: int, size: int) -> None:
    """PowerSGD chains collectives by futures; all ranks end with the same weights."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(_model())
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = _train(net, rank)
    assert losses[-1] < losses[0], losses
    for parameter in net.parameters():
        every = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(every, parameter.detach())
        assert all(torch.equal(one, every[0]) for one in every)


def divided_gradients(rank: int, size: int) -> None:
    """FSDP with a divide factor of its own sums with PREMUL_SUM."""
    from torch.distributed.fsdp import fully_shard

    nets = [_model(), _model()]
    for net in nets:
        fully_shard(net)
    nets[1].set_gradient_divide_factor(2.0 * size)
    batch = torch.ones(4, 64, device=CUDA) * (rank + 1)
    for net in nets:
        net(batch).square().mean().backward()
    for whole, half in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(half.grad.full_tensor() * 2, whole.grad.full_tensor())


# --- Ours alone --------------------------------------------------------------------------------


def messages_as_bytes(rank: int, size: int) -> None:
    """Around the ring, what NCCL has no type for."""
    _around(rank, size, MOVED_AS_BYTES)


def rules_of_a_group(rank: int, size: int) -> None:
    """A group's own rules decide which engine serves it, and by which algorithm."""
    import accl_py.torch

    cells = "-1,-1,-1,-1,-1,-1"
    texts = {
        "two_shot": f"allreduce,0,-1,two_shot,{cells},cuda\n",
        "direct": f"allreduce,0,-1,direct,{cells},cuda\n",
        "": "# no rule\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        for algorithm, text in texts.items():
            path = Path(folder) / "rules.csv"
            path.write_text(text)
            options = accl_py.torch.Options(rules=str(path))
            options.on_fault = "raise"
            group = dist.new_group(list(range(size)), pg_options=options)
            box = full(1000, rank + 1)
            work = dist.all_reduce(box, group=group, async_op=True)
            work.wait()
            assert (box == total(size)).all(), algorithm
            report = work.reports()[0]
            wanted = ("cuda", algorithm) if algorithm and size > 1 else ("nccl", "")
            assert (report["engine"], report["algorithm"]) == wanted, (report, algorithm)
            dist.destroy_process_group(group)


def one_rank_reaches_nccl(rank: int, size: int) -> None:
    """There is no short cut past NCCL where a rank is alone; captured calls count, too."""
    if size > 1:
        return
    backend = dist.group.WORLD._get_backend(torch.device(CUDA))
    box = full(2, 1.0)
    dist.all_reduce(box)
    before = backend.device_statistics()
    for _ in range(5):
        dist.all_reduce(box)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(box)
    after = backend.device_statistics()
    assert after["nccl_calls"] - before["nccl_calls"] == 6
    assert after["captured"] - before["captured"] == 1
    assert after["kernel_launches"] == before["kernel_launches"]
    del graph


# --- lists of all ------------------------------------------------------------------------------

ANY_BACKEND: list[Callable[[int, int], None]] = [
    gathers_in_place,
    stacked_shapes,
    averages,
    no_numbers,
    refused_operations,
    messages_of_all_dtypes,
    rings,
    large_batches,
    asymmetric_batches,
    large_sends_do_not_wait,
    coalesced_reduce_scatters,
    graphs_of_the_rest,
    captures_beside_eager_calls,
    handles,
    chained_futures,
    dropped_handles,
    profiled,
    groups_in_turns,
    local_groups,
    backwards,
    compressing_hook,
    divided_gradients,
]
OURS_ALONE: list[Callable[[int, int], None]] = [
    messages_as_bytes,
    rules_of_a_group,
    one_rank_reaches_nccl,
]
