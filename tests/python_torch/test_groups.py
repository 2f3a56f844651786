"""Making, splitting, naming and ending process groups."""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, refused

CPU = torch.device("cpu")


def total(size: int, group: dist.ProcessGroup | None = None) -> float:
    x = torch.ones(2, 2)[:, 0]
    dist.all_reduce(x, group=group)
    return x[1].item()


def check_name(rank: int, size: int) -> None:
    assert dist.get_backend() == "accl" and dist.Backend.ACCL == "accl"  # type: ignore[attr-defined]
    assert dist.get_backend_config() == "cpu:accl,cuda:accl"
    backend = dist.group.WORLD._get_backend(CPU)  # type: ignore[union-attr]
    assert backend.name() == "accl" and backend.rank() == rank and backend.size() == size
    assert type(backend).__name__ == "ProcessGroupACCL"
    assert backend.supports_splitting and backend.supports_coalescing


def check_new_group(rank: int, size: int) -> None:
    whole = dist.new_group(list(range(size)))
    assert total(size, whole) == size
    pair = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        assert total(size, pair) == 2
        box = torch.zeros(1)
        if rank == 0:
            dist.send(torch.ones(1), size - 1, group=pair)
        else:
            assert dist.recv(box, group=pair) == 0 and box == 1
    alone = dist.new_group([rank], use_local_synchronization=True)
    assert total(size, alone) == 1
    dist.barrier(group=alone)
    for group in (whole, pair, alone):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    assert total(size) == size


def check_split(rank: int, size: int) -> None:
    world = dist.group.WORLD
    assert world is not None
    halves = world.split_group(
        [0, 1] if rank < 2 else [2], timeout=timedelta(seconds=7), group_name=f"half{rank // 2}"
    )
    members = 2 if rank < 2 else 1
    assert halves.size() == members and total(size, halves) == members
    child, parent = halves._get_backend(CPU), world._get_backend(CPU)
    assert child.options.group_name == f"half{rank // 2}" and child.options._timeout == timedelta(
        seconds=7
    )
    assert child.options.global_ranks_in_group == ([0, 1] if rank < 2 else [2])
    assert child is halves._get_backend(torch.device("cuda"))  # one object for both devices
    assert (
        parent.options.group_name != child.options.group_name
    )  # torch writes into what options returns
    assert parent.options._timeout == timedelta(seconds=20)
    again = world.split_group(list(range(size)), group_name="all again")
    assert total(size, again) == size
    grandchild = again.split_group(list(range(size)))
    assert total(size, grandchild) == size
    backwards = halves.split_group(list(range(members)))
    assert total(size, backwards) == members
    for group in (grandchild, backwards, again, halves):
        group.shutdown()
    # The same name again, while the old group's handle is still held.
    renewed = world.split_group(list(range(size)), group_name="all again")
    assert renewed._get_backend(CPU) is not again._get_backend(CPU)
    assert total(size, renewed) == size
    renewed.shutdown()
    assert total(size) == size


def check_options(rank: int, size: int) -> None:
    import accl_py.torch

    backend = dist.group.WORLD._get_backend(CPU)  # type: ignore[union-attr]
    options = backend.options
    assert options is not backend.options and options.backend == "accl"
    options.rules = "changed"
    assert backend.options.rules == ""
    twin = copy.deepcopy(options)
    twin.timeout = timedelta(seconds=3)
    assert twin.rules == "changed" and options.timeout == timedelta(seconds=20) == options._timeout
    copied = copy.copy(options)
    assert copied.global_ranks_in_group == backend.options.global_ranks_in_group
    assert copied.group_name == backend.options.group_name
    group = dist.new_group(
        list(range(size)), pg_options=accl_py.torch.Options(), timeout=timedelta(seconds=9)
    )
    assert group._get_backend(CPU).options.timeout == timedelta(seconds=9)
    dist.barrier()
    dist.destroy_process_group(group)


def check_wrong_options(rank: int, size: int) -> None:
    import accl_py.torch

    refused(
        lambda: dist.new_group(list(range(size)), pg_options=object()),
        "accl_py.torch.Options",
        error=TypeError,
    )
    missing = accl_py.torch.Options(rules="/no/such/rules.csv")
    refused(lambda: dist.new_group(list(range(size)), pg_options=missing), "/no/such/rules.csv")
    assert total(size) == size


def check_rules(rank: int, size: int) -> None:
    """A group's rules file changes what its calls really do."""
    import accl_py.torch

    x = torch.ones(1000)
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in ("ring", "direct"):
            path = Path(folder) / "rules.csv"
            path.write_text(f"allreduce,0,-1,{algorithm},bulk,-1,-1,-1,-1,-1,cpu,-1\n")
            group = dist.new_group(
                list(range(size)), pg_options=accl_py.torch.Options(rules=str(path))
            )
            work = dist.all_reduce(x, group=group, async_op=True)
            assert work is not None
            work.wait()
            report = work.reports()[0]  # type: ignore[attr-defined]
            assert (report["algorithm"], report["protocol"]) == (algorithm, "bulk"), report
            dist.destroy_process_group(group)


def check_set_timeout(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    group.set_timeout(timedelta(milliseconds=500))
    assert group._get_backend(CPU).options.timeout == timedelta(milliseconds=500)
    refused(lambda: group._get_backend(CPU).set_timeout(timedelta(0)), "more than 0")
    if rank == 0:
        start = time.monotonic()
        refused(lambda: total(size, group), " Timed out ", "500 ms")
        assert time.monotonic() - start < 3
    dist.barrier()
    dist.destroy_process_group(group)


def check_monitored_barrier(rank: int, size: int) -> None:
    world = dist.group.WORLD
    assert world is not None
    for wait_all in (False, True):
        world.monitored_barrier(timedelta(seconds=5), wait_all)
    group = dist.new_group(list(range(size)))
    if rank == 0:
        refused(
            lambda: group.monitored_barrier(timedelta(0)), "Rank 0 timed out in monitoredBarrier"
        )
    dist.barrier()
    if rank != size - 1:
        words = [f"Rank {size - 1} failed to pass monitoredBarrier in 700 ms"]
        if rank != 0:
            words = [f"Rank {rank} successfully reached monitoredBarrier", "rank 0 did not answer"]
        refused(lambda: group.monitored_barrier(timedelta(milliseconds=700), True), *words)
    dist.barrier()
    dist.destroy_process_group(group)
    everybody_late = dist.new_group(list(range(size)))
    if rank == 0:
        missing = refused(
            lambda: everybody_late.monitored_barrier(timedelta(milliseconds=300), True),
            "failed to pass",
        )
        assert all(str(r) in missing for r in range(1, size))
    dist.barrier()
    dist.destroy_process_group(everybody_late)


def check_device_spellings(rank: int, size: int) -> None:
    for spelling in ("cpu:accl", "cpu:accl,cuda:accl"):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch up to 2.13 leaves the default backend of such groups unset
            group = dist.new_group(list(range(size)), backend=spelling)
            assert total(size, group) == size
            dist.barrier(group=group)
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            dist.destroy_process_group(group)


def check_coalescing(rank: int, size: int) -> None:
    """The manager with a device (start and end) and without (the coalesced calls), both ways of
    waiting.
    """
    for device in (CPU, None):
        for is_async in (False, True):
            xs = [torch.full((n + 1,), float(n)) for n in range(6)]
            with dist._coalescing_manager(device=device, async_ops=is_async) as manager:  # type: ignore[attr-defined]
                for x in xs:
                    dist.all_reduce(x)
            if is_async:
                manager.wait()
            assert [x[0].item() for x in xs] == [float(n * size) for n in range(6)]
            outs = [torch.zeros(size * (n + 1)) for n in range(3)]
            with dist._coalescing_manager(device=device, async_ops=is_async) as manager:  # type: ignore[attr-defined]
                for n, out in enumerate(outs):
                    dist.all_gather_into_tensor(out, torch.full((n + 1,), float(rank)))
            if is_async:
                manager.wait()
            assert [out[-1].item() for out in outs] == [size - 1.0] * 3
            outs = [torch.zeros(n + 1) for n in range(3)]
            with dist._coalescing_manager(device=device, async_ops=is_async) as manager:  # type: ignore[attr-defined]
                for n, out in enumerate(outs):
                    dist.reduce_scatter_tensor(out, torch.ones(size * (n + 1)))
            if is_async:
                manager.wait()
            assert [out[-1].item() for out in outs] == [size] * 3


def check_coalesced_calls(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(CPU)  # type: ignore[union-attr]
    xs = [torch.ones(3, 2)[:, 1], torch.ones(2, dtype=torch.int64), torch.tensor(1.0)]
    backend.allreduce_coalesced(xs).wait()
    assert [x.flatten()[0].item() for x in xs] == [size] * 3
    inputs = [torch.full((2,), float(rank)), torch.full((3, 2), rank)[:, 0]]
    outs = [[torch.zeros(2), torch.zeros(3, dtype=torch.int64)] for _ in range(size)]
    backend.allgather_coalesced(outs, inputs).wait()
    for r in range(size):
        assert outs[r][0].tolist() == [r] * 2 and outs[r][1].tolist() == [r] * 3
    refused(
        lambda: backend.allgather_coalesced([o[:1] for o in outs], inputs),
        "output list 0",
        "expected 2",
    )
    backend.allreduce_coalesced([]).wait()


def check_mesh(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("a", "b"))
    assert total(size, mesh.get_group("a")) == size and total(size, mesh.get_group("b")) == 1


def check_object_collectives(rank: int, size: int) -> None:
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(size)]
    box = [("root", 17), None] if rank == 0 else [None, None]
    dist.broadcast_object_list(box, 0)
    assert box == [("root", 17), None]
    got: list[object] = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert got == [f"for {rank}"]
    collected: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank * 11, collected, 0)
    assert collected is None or collected == [11 * r for r in range(size)]
    if rank == 0:
        dist.send_object_list(["hello", 3], 1)
    elif rank == 1:
        items: list[object] = [None, None]
        dist.recv_object_list(items, 0)
        assert items == ["hello", 3]


def check_destroyed_group(rank: int, size: int) -> None:
    """A destroyed group says so; the others work on; memory of works may outlive it."""
    group = dist.new_group(list(range(size)))
    backend = group._get_backend(CPU)
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    assert work is not None
    work.wait()
    dist.destroy_process_group(group)
    refused(
        lambda: backend.allreduce([torch.ones(1)]).wait(), "shut down", error=dist.DistBackendError
    )
    assert work.is_success() and total(size) == size


def check_abort(rank: int, size: int) -> None:
    """One rank aborts: its own work and that of the others end with an error at once."""
    group = dist.new_group(list(range(size)))
    dist.barrier()
    start = time.monotonic()
    if rank == 0:
        box = torch.zeros(1)
        work = dist.irecv(box, 1, group=group)
        assert work is not None
        group._get_backend(CPU).abort()
        refused(work.wait, "abort", error=dist.DistBackendError)
    else:
        refused(lambda: total(size, group), "abort", error=dist.DistBackendError)
    assert time.monotonic() - start < 5
    dist.barrier()
    dist.destroy_process_group(group)


def check_many_groups(rank: int, size: int) -> None:
    """Groups come and go; nothing piles up in shared memory."""
    before = len(list(Path("/dev/shm").iterdir()))
    for _ in range(10):
        group = dist.new_group(list(range(size)))
        assert total(size, group) == size
        dist.destroy_process_group(group)
    dist.barrier()
    assert len(list(Path("/dev/shm").iterdir())) <= before + 2


def check_barrier(rank: int, size: int) -> None:
    """Nobody leaves before everybody has come; device numbers mean nothing here."""
    for keywords in ({}, {"device_ids": [0]}, {"async_op": True}):
        if rank == size - 1:
            time.sleep(0.2)
        start = time.monotonic()
        work = dist.barrier(**keywords)
        if work is not None:
            work.wait()
        assert rank == size - 1 or time.monotonic() - start > 0.1
        dist.barrier()


def check_nocolor(rank: int, size: int) -> None:
    assert dist.group.WORLD._get_backend(CPU).perform_nocolor_split(CPU) is None  # type: ignore[union-attr]


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_groups(ranks: Ranks, check: Callable[..., None]) -> None:
    ranks.run(check)


def check_init_again(rank: int, size: int, folder: str) -> None:
    """The default group is destroyed and made again, over each kind of store."""
    dist.destroy_process_group()
    for n, store in enumerate([None, dist.FileStore(f"{folder}/store", size)]):
        for again in range(2):
            if store is None:
                method = f"file://{folder}/init{n}{again}"
                dist.init_process_group("accl", init_method=method, rank=rank, world_size=size)
            else:
                own = dist.PrefixStore(str(again), store)
                dist.init_process_group("accl", store=own, rank=rank, world_size=size)
            assert total(size) == size
            dist.barrier()
            dist.destroy_process_group()
    own = dist.PrefixStore("last", dist.FileStore(f"{folder}/last", size))
    dist.init_process_group(
        "accl", store=own, rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )


def test_init_again(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(check_init_again, str(tmp_path))
    ranks.stop()  # the group is of another kind now
