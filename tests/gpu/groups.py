"""Groups: making, options, splitting, ending; run by each rank."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

CUDA = "cuda"


def on_gpu(group: Any = None) -> Any:
    """Our backend of a group."""
    return (group or dist.group.WORLD)._get_backend(torch.device(CUDA))


def summed(group: Any, size: int, count: int = 100_000) -> None:
    """An all_reduce of the group is right."""
    box = torch.full((count,), float(dist.get_rank(group) + 1), device=CUDA)
    dist.all_reduce(box, group=group)
    assert (box == size * (size + 1) / 2).all()


def subgroups(rank: int, size: int) -> None:
    """new_group: lazily made, overlapping, and several in one program."""
    groups = [dist.new_group(list(range(size)), backend="accl") for _ in range(2)]
    for group in groups:
        summed(group, size)
    if size > 2:
        mine = list(range(size - 1))
        part = dist.new_group(mine, backend="accl")
        if rank in mine:
            summed(part, size - 1)
            summed(part, size - 1, 3)
    for group in groups:
        dist.destroy_process_group(group)
    summed(None, size)


def shared_splits(rank: int, size: int) -> None:
    """Groups that share their parent's resources: NCCL's own split, also where a rank stays out."""
    from accl_py.torch import Options

    sharing = Options(timeout=timedelta(seconds=60))
    sharing.on_fault = "raise"
    sharing.split_share = True
    parent = dist.new_group(list(range(size)), backend="accl", pg_options=sharing)
    summed(parent, size)
    half = max(1, size // 2)
    parts = [list(range(half)), list(range(half, size))] if size > 1 else [[0]]
    part = dist.split_group(parent, split_ranks=parts)
    mine = next(p for p in parts if rank in p)
    summed(part, len(mine))
    summed(part, len(mine), 3)
    dist.destroy_process_group(part)
    if size > 1:
        some = dist.split_group(parent, split_ranks=[list(range(size - 1))])
        if rank < size - 1:
            summed(some, size - 1)
    summed(parent, size)


def splits(rank: int, size: int) -> None:
    """split_group and DeviceMesh give groups of their own."""
    half = max(1, size // 2)
    parts = [list(range(half)), list(range(half, size))] if size > 1 else [[0]]
    part = dist.split_group(split_ranks=[p for p in parts if p])
    mine = next(p for p in parts if rank in p)
    summed(part, len(mine))
    summed(part, len(mine), 3)
    assert on_gpu(part).device_statistics()["enqueued"] == 2
    dist.destroy_process_group(part)
    if size % 2 == 0:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(CUDA, (2, size // 2), mesh_dim_names=("outer", "inner"))
        summed(mesh.get_group("outer"), 2)
        summed(mesh.get_group("inner"), size // 2)
    if size > 2:  # a split that leaves a rank out
        some = dist.split_group(split_ranks=[list(range(size - 1))])
        if rank < size - 1:
            summed(some, size - 1)
        else:
            assert some is None or some == dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()


def options(rank: int, size: int) -> None:
    """Options of a group reach NCCL; wrong ones are sentences on every rank."""
    import pytest
    from accl_py.torch import Options

    made = Options(timeout=timedelta(seconds=60))
    made.on_fault = "raise"
    made.is_high_priority_stream = True
    made.min_channels, made.max_channels = 1, 2
    made.cga_cluster_size = 0
    made.traffic_class = 3
    made.kernels = False
    group = dist.new_group(list(range(size)), backend="accl", pg_options=made)
    summed(group, size)
    summed(group, size, 2)
    assert on_gpu(group).device_statistics()["kernel_launches"] == 0
    assert on_gpu(group).device_statistics()["nccl_calls"] == 2
    assert on_gpu(group).options.max_channels == 2
    for name, value in (("max_channels", 65), ("cga_cluster_size", 9), ("traffic_class", 256)):
        wrong = Options(timeout=timedelta(seconds=60))
        setattr(wrong, name, value)
        # A group that is made for a device connects at once.
        with pytest.raises(RuntimeError, match=f"{name} is {value}"):
            dist.new_group(list(range(size)), backend="accl", pg_options=wrong)
    slow = Options(timeout=timedelta(seconds=60))
    slow.blocking = False
    group = dist.new_group(list(range(size)), backend="accl", pg_options=slow)
    summed(group, size)


def kernels_serve(rank: int, size: int) -> None:
    """Small calls go to our kernels, large ones to NCCL, and one rank's calls to NCCL too."""
    before = on_gpu().device_statistics()
    summed(None, size, 8)
    summed(None, size, 1_000_000)
    after = on_gpu().device_statistics()
    launched = after["kernel_launches"] - before["kernel_launches"]
    called = after["nccl_calls"] - before["nccl_calls"]
    if size == 1:
        assert (launched, called) == (0, 2)
        assert "one rank" in on_gpu().kernels_unavailable()
    else:
        assert on_gpu().kernels_unavailable() == ""
        assert (launched, called) == (1, 1)
        work = dist.all_reduce(torch.ones(8, device=CUDA), async_op=True)
        work.wait()
        assert work.reports()[0] == {"engine": "cuda", "algorithm": "direct", "protocol": ""}


def barriers(rank: int, size: int) -> None:
    """All forms of a barrier hold the host until every rank is there."""
    import time

    for arguments in ({}, {"device_ids": [torch.cuda.current_device()]}, {"async_op": True}):
        dist.barrier()
        if rank == size - 1:
            time.sleep(0.3)
        start = time.monotonic()
        work = dist.barrier(**arguments)
        if work is not None:
            work.wait()
        assert size == 1 or rank == size - 1 or time.monotonic() - start > 0.15


def objects(rank: int, size: int) -> None:
    """Python objects over CUDA tensors."""
    seen: list[Any] = [None] * size
    dist.all_gather_object(seen, {"rank": rank})
    assert seen == [{"rank": r} for r in range(size)]
    box = [f"from {rank}"]
    dist.broadcast_object_list(box, src=size - 1, device=torch.device(CUDA))
    assert box == [f"from {size - 1}"]
