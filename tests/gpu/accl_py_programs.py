"""accl_py.Communicator on arrays of GPUs, against numpy; run by each rank.

Each program makes a communicator of its own, over a folder that is fresh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import accl_py
import numpy as np
from accl_py import Communicator
from accl_py.errors import InvalidArgument
from array_libraries import DELAY, LIBRARIES


@contextmanager
def joined(
    rank: int, size: int, kind: str, folder: str, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """The array library, and a communicator."""
    library = LIBRARIES[kind](_device(rank, size))
    store = accl_py.FileStore(folder)
    with Communicator.from_store(store, rank, size, timeout=30, **options) as c:
        yield library, c


def _device(rank: int, size: int) -> int:
    """A GPU for each rank where there are enough, else the first for all, as the pool does."""
    import torch

    return rank if torch.cuda.device_count() >= size else 0


def counts(size: int) -> list[int]:
    """Awkward ones, and some that NCCL cuts."""
    return sorted({0, 1, size - 1, size, size + 1, 257, 70001})


def sample(rank: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Small whole numbers, exact in every type, others on each rank."""
    count = int(np.prod(shape, dtype=np.int64))
    values = (np.arange(count) * 5 + rank * 3 + 1) % 4
    if dtype.startswith("complex"):
        return (values + 1j * ((values + rank) % 3)).reshape(shape)
    return (values % 2 if dtype == "bool" else values).astype(np.float64).reshape(shape)


class Checks:
    """Makes calls and compares what they give."""

    def __init__(self, library: Any, c: Any, dtype: str, async_op: bool) -> None:
        self.library, self.c, self.dtype, self.async_op = library, c, dtype, async_op

    def make(self, values: Any) -> Any:
        return self.library.make(values, self.dtype)

    def call(self, name: str, *arrays: Any, **options: Any) -> Any:
        """The result, which the current stream may use."""
        if not self.async_op:
            return getattr(self.c, name)(*arrays, **options)
        return getattr(self.c, name)(*arrays, async_op=True, **options).synchronize()

    def same(self, got: Any, want: Any) -> None:
        values = self.library.read(got)
        assert values.shape == np.shape(want), (values.shape, np.shape(want))
        np.testing.assert_array_equal(values, np.asarray(want).astype(values.dtype))


def collectives(rank: int, size: int, kind: str, folder: str, async_op: bool) -> None:
    """Every collective, dtype and count."""
    with joined(rank, size, kind, folder) as (library, c):
        for dtype in (*library.reduced, *library.moved_only):
            checks = Checks(library, c, dtype, async_op)
            for count in counts(size):
                moves(checks, [sample(r, (count,), dtype) for r in range(size)])
                moves_in_blocks(checks, [sample(r, (size, count), dtype) for r in range(size)])
                if dtype in library.reduced:
                    reductions(checks, [sample(r, (count,), dtype) for r in range(size)])
        c.barrier()
        assert c.statistics()["device"]["nccl_calls"] > 0
        assert c.statistics()["device"]["failed"] == 0


def moves(t: Checks, inputs: list[Any]) -> None:
    """Calls to which every rank brings one part."""
    rank, size = t.c.rank, t.c.size
    mine, root = inputs[rank], size - 1
    t.same(t.call("all_gather", t.make(mine)), np.stack(inputs))
    out = t.make(np.zeros_like(np.concatenate(inputs)))
    assert t.call("all_gather", t.make(mine), out) is out
    t.same(out, np.concatenate(inputs))
    t.same(t.call("broadcast", t.make(mine), root=root), inputs[root])
    gathered = t.call("gather", t.make(mine), root=root)
    if rank == root:
        t.same(gathered, np.stack(inputs))
    lengths = [max(len(x) - r, 0) for r, x in enumerate(inputs)]
    parts = [x[:n] for x, n in zip(inputs, lengths, strict=True)]
    t.same(t.call("all_gather", t.make(parts[rank]), counts=lengths), np.concatenate(parts))


def moves_in_blocks(t: Checks, inputs: list[Any]) -> None:
    """Calls to which a rank brings a block for each."""
    rank, size = t.c.rank, t.c.size
    t.same(t.call("all_to_all", t.make(inputs[rank])), np.stack([x[rank] for x in inputs]))
    whole = t.make(inputs[0]) if rank == 0 else None
    out = t.make(np.zeros_like(inputs[0][0]))
    t.same(t.call("scatter", whole, out, root=0), inputs[0][rank])
    send = [(rank + r) % 2 + 1 for r in range(size)]  # uneven; the same seen from both sides
    rows = [np.repeat(x[:1], sum(send), axis=0) for x in inputs]
    got = t.call("all_to_all", t.make(rows[rank]), send_counts=send, receive_counts=send)
    t.same(got, np.concatenate([np.repeat(x[:1], n, axis=0) for x, n in zip(inputs, send)]))


def reductions(t: Checks, inputs: list[Any]) -> None:
    """Sums, in place and elsewhere; the largest; parts of a sum."""
    rank, size = t.c.rank, t.c.size
    total = np.sum(inputs, axis=0)
    x = t.make(inputs[rank])
    assert t.call("all_reduce", x) is x
    t.same(x, total)
    x, out = t.make(inputs[rank]), t.make(np.zeros_like(total))
    assert t.call("all_reduce", x, out) is out
    t.same(out, total)
    t.same(x, inputs[rank])
    if not t.dtype.startswith("complex"):
        t.same(t.call("all_reduce", x, op="max"), np.max(inputs, axis=0))
    x = t.make(inputs[rank])
    result = t.call("reduce", x, root=0)
    t.same(x, total if rank == 0 else inputs[rank])
    assert (result is x) == (rank == 0)
    wide = t.make(np.stack([inputs[rank]] * size))
    t.same(t.call("reduce_scatter", wide), total)


def messages(rank: int, size: int, kind: str, folder: str) -> None:
    """Groups, and single messages, also before any collective call."""
    with joined(rank, size, kind, folder, device=_device(rank, size)) as (library, c):
        left, right = (rank - 1) % size, (rank + 1) % size
        x = library.make(np.full(1000, rank), "int32")
        y = library.make(np.zeros(1000), "int32")
        with c.group() as group:
            group.send(x, right)
            group.recv(y, left)
        assert (library.read(y) == left).all()
        if size > 1 and rank == 0:
            c.send(x, 1)
            assert c.recv(y, 1) == 1
            assert (library.read(y) == 1).all()
        elif rank == 1:
            work = c.recv(y, 0, async_op=True)
            assert work.synchronize() is y and work.source_rank == 0
            assert (library.read(y) == 0).all()
            c.send(x, 0)
        c.barrier()


def streams(rank: int, size: int, kind: str, folder: str) -> None:
    """Calls run on the stream that is current, or named, after what is on it; the host goes on."""
    with joined(rank, size, kind, folder) as (library, c):
        x, out = library.make(np.zeros(70001), "uint8"), library.make(np.zeros(70001), "uint8")
        c.all_reduce(x, out)  # makes the GPU half
        side = library.stream()
        handle = getattr(side, "ptr", getattr(side, "cuda_stream", None))
        ways: list[Callable[[], Any]] = [
            lambda: c.all_reduce(x, out, stream=side),
            lambda: c.all_reduce(x, out, stream=handle),
            lambda: _within(library, side, lambda: c.all_reduce(x, out)),
            lambda: _within(library, side, lambda: c.all_reduce(x, out, async_op=True).wait()),
            lambda: c.all_reduce(x, out, async_op=True, stream=side).wait(stream=side),
        ]
        for number, way in enumerate(ways, 1):
            library.synchronize()
            c.barrier()
            library.delay(side)
            library.fill(x, number, side)
            begin = time.perf_counter()
            way()
            spent = time.perf_counter() - begin
            assert library.busy(side), f"way {number}: the GPU was waited for"
            assert spent < DELAY / 2, f"way {number}: the host was held for {spent:.3f} s"
            with library.using(side):
                assert (library.read(out) == number * size).all(), f"way {number}"


def _within(library: Any, stream: Any, call: Callable[[], Any]) -> Any:
    with library.using(stream):
        return call()


def works(rank: int, size: int, kind: str, folder: str) -> None:
    """What a work says while its call is held up, and afterwards."""
    with joined(rank, size, kind, folder) as (library, c):
        x, out = library.make(np.zeros(4096), "uint8"), library.make(np.zeros(4096), "uint8")
        c.all_reduce(x, out)
        side = library.stream()
        library.synchronize()
        c.barrier()
        library.delay(side)
        library.fill(x, 1, side)
        work = c.all_reduce(x, out, stream=side, async_op=True)
        assert not work.done() and work.error is None
        try:
            work.wait(0.01)
        except accl_py.errors.TimeoutError as error:
            assert "was not complete after 0.01 s; it goes on" in str(error)
        else:
            raise AssertionError("wait(0.01) returned before the GPU was done")
        work.wait()  # the current stream comes after it
        assert (library.read(out) == size).all()
        assert work.synchronize() is out and work.done() and work.sequence == 2
        assert work.report()["engine"] == "nccl"


def memory_freed_early(rank: int, size: int, kind: str, folder: str) -> None:
    """A tensor that is dropped while another stream uses it is not given to others meanwhile."""
    with joined(rank, size, "torch", folder) as (library, c):
        side = library.stream()
        c.all_reduce(library.make(np.zeros(1), "int32"))
        for _ in range(5):
            x = library.make(np.full(1 << 16, rank + 1), "int32")
            library.synchronize()
            library.delay(side)
            out = c.all_reduce(x, library.torch.empty_like(x), stream=side)
            del x
            for _ in range(8):  # would take the memory of x, and overwrite it
                library.make(np.full(1 << 16, -1), "int32")
            side.synchronize()
            assert (library.read(out) == size * (size + 1) // 2).all()


def graph(rank: int, size: int, kind: str, folder: str) -> None:
    """A call that was captured runs at each replay."""
    with joined(rank, size, "torch", folder) as (library, c):
        x = library.make(np.zeros(100), "float32")
        c.all_reduce(x)
        recorded = library.torch.cuda.CUDAGraph()
        with library.torch.cuda.graph(recorded):
            c.all_reduce(x)
        for value in (1, 2):
            x.fill_(value)
            recorded.replay()
            assert (library.read(x) == value * size).all()
        assert c.statistics()["device"]["captured"] == 1


def both_halves(rank: int, size: int, kind: str, folder: str) -> None:
    """Arrays of the host and of the GPU take turns; those of two libraries meet in one call."""
    with joined(rank, size, kind, folder) as (library, c):
        for _ in range(3):
            assert (c.all_reduce(np.ones(5)) == size).all()
            assert (library.read(c.all_reduce(library.make(np.ones(5), "float64"))) == size).all()
        cupy, torch = (LIBRARIES[name](c.device) for name in ("cupy", "torch"))
        x, out = cupy.make(np.full(7, 2), "float32"), torch.make(np.zeros(7), "float32")
        assert c.all_reduce(x, out) is out
        library.synchronize()
        assert (torch.read(out) == 2 * size).all()


def splits(rank: int, size: int, kind: str, folder: str) -> None:
    """Children in reverse order, and a rank that takes no part."""
    with joined(rank, size, kind, folder) as (library, c):
        c.all_reduce(library.make(np.ones(1), "int32"))
        child = c.split(0, -rank)
        assert child is not None and child.rank == size - 1 - rank
        got = child.all_gather(library.make([rank], "int32"))
        assert library.read(got).ravel().tolist() == list(reversed(range(size)))
        child.shutdown()
        child = c.split(0 if rank == 0 else -1)
        assert (child is None) == (rank != 0)
        if child is not None:
            assert library.read(child.all_reduce(library.make([3], "int32"))).tolist() == [3]
            child.shutdown()
        c.barrier()


def refusals(rank: int, size: int, kind: str, folder: str) -> None:
    """Bad arguments are sentences, and the communicator goes on."""
    with joined(rank, size, kind, folder) as (library, c):
        x = library.make(np.ones((4, 4)), "float32")
        c.all_reduce(x)
        refused = {
            "not contiguous in C order": lambda: c.all_reduce(library.column(x)),
            "out is in host memory": lambda: c.all_reduce(x, np.ones((4, 4), np.float32)),
            "out has dtype float64": lambda: c.all_reduce(x, library.make(x.shape, "float64")),
            "stream is 'side'": lambda: c.all_reduce(x, stream="side"),
            "NCCL cannot do": lambda: c.all_reduce(library.make(np.ones(2), "int16")),
            "cannot receive from any": lambda: c.recv(x),
        }
        for words, call in refused.items():
            try:
                call()
            except InvalidArgument as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{words!r} was not said")
        assert (library.read(c.all_reduce(library.make(np.ones(3), "float32"))) == size).all()


def repeated(rank: int, size: int, kind: str, folder: str) -> None:
    """Calls that are made again and again."""
    with joined(rank, size, kind, folder) as (library, c):
        x, out = (library.make(np.full(8, v), "float32") for v in (1, 0))
        c.all_reduce(x, out)
        call = c.prepare("all_reduce", x, out)
        assert call.run()["engine"] == "nccl"
        assert call.time(20) > 0 and len(call.time_each(3)) == 3
        assert (library.read(out) == size).all()
        assert c.trace(device=True)["operations"][-1]["collective"] == "all_reduce"
