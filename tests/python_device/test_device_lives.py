"""How the GPU half is made, split, looked at, and ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from typing import Any

import accl_py
import numpy as np
import pytest
from accl_py import Communicator, errors
from fakes import FakeNccl
from gpu_arrays import Cupy, Exported, gpu, ndarray, settled
from local_ranks import outcomes, run_threads


def test_split_of_both_halves(cupy: Cupy) -> None:
    def check(c: Communicator) -> Any:
        c.all_reduce(ndarray([1.0], c.rank))
        # Ranks 0 and 2 in reverse order; rank 1 alone.
        half = c.split(c.rank % 2, -c.rank)
        assert half is not None
        with half:
            assert half.device == c.rank and half.name == f"world/1.{c.rank % 2}"
            gathered = half.all_gather(ndarray([c.rank], c.rank))
            settled(device=c.rank)
            hosts = half.all_gather(np.array([c.rank]))
            assert gathered.host.ravel().tolist() == hosts.ravel().tolist()
            return half.rank, half.size, hosts.ravel().tolist()

    before = FakeNccl().calls("ncclCommSplit")
    assert run_threads(3, check) == [(1, 2, [2, 0]), (0, 1, [1]), (0, 2, [2, 0])]
    assert FakeNccl().calls("ncclCommSplit") == before + 3


def test_split_before_there_is_a_gpu_half(cupy: Cupy) -> None:
    def check(c: Communicator) -> None:
        half = c.split(0 if c.rank else -1, name="some")
        assert (half is None) == (c.rank == 0)
        if half is not None:
            with half:
                assert half.name == "some" and half.size == 2 and half.device is None
                x = half.all_reduce(ndarray([c.rank], c.rank))
                settled(device=c.rank)
                assert x.host[0] == 3
        with pytest.raises(errors.InvalidArgument, match="color is 'red'; expected an integer"):
            c.split("red")  # type: ignore[arg-type]

    run_threads(3, check)


def test_split_that_a_rank_takes_no_part_in(cupy: Cupy) -> None:
    def check(c: Communicator) -> bool:
        c.all_reduce(ndarray([1.0], c.rank))
        child = c.split(c.rank - 1)
        if child is not None:
            child.shutdown()
        return child is None

    assert run_threads(2, check) == [True, False]


def test_repeated_calls(cupy: Cupy, size: int) -> None:
    def check(c: Communicator) -> None:
        c.all_reduce(ndarray([1.0], c.rank))
        x, out = ndarray([1.0], c.rank), ndarray([0.0], c.rank)
        call = c.prepare("all_reduce", x, out)
        enqueued = c.statistics()["device"]["enqueued"]
        work = call.enqueue(300)
        work.wait()
        assert out.host[0] == size
        assert c.statistics()["device"]["enqueued"] == enqueued + 300
        assert call.enqueue(0) is None and call.time(0) >= 0
        assert len(call.time_each(3)) == 3 and call.time(3) > 0
        assert call.run()["engine"] == "nccl"
        with pytest.raises(errors.InvalidArgument, match="iterations is -1"):
            call.enqueue(-1)
        assert c.choice_for("all_reduce", x)["engine"] == "nccl"
        assert c.choice_for("all_reduce", np.ones(1))["algorithm"]
        operations = c.trace(device=True)["operations"]
        assert operations[-1]["collective"] == "all_reduce"
        assert c.kernels_unavailable

    run_threads(size, check)


def test_timeouts_are_of_both_halves(cupy: Cupy) -> None:
    def check(c: Communicator) -> None:
        c.timeout = 7
        c.all_reduce(ndarray([1.0], c.rank))
        c.timeout = 9
        assert c.timeout == 9

    run_threads(1, check)


def test_a_rank_that_does_not_come_is_named(cupy: Cupy) -> None:
    def work(rank: int) -> Any:
        c = Communicator.from_store(store, rank, 2, name="late", device=rank, timeout=20)
        c.timeout = 0.5
        if rank == 1:
            time.sleep(4)
            return None
        call = c.all_reduce(x, async_op=True)
        with pytest.raises(errors.TimeoutError, match="rank 1"):
            call.synchronize()
        assert isinstance(call.error, errors.TimeoutError)
        assert isinstance(c.error, errors.TimeoutError)
        with pytest.raises(errors.TimeoutError):
            c.all_reduce(x)
        return None

    store, x = accl_py.HashStore(), ndarray([1.0], 0)
    for _, error in outcomes(2, work):
        if error is not None:
            raise error


def test_abort_ends_both_halves_everywhere(cupy: Cupy) -> None:
    def work(rank: int) -> Any:
        c = Communicator.from_store(store, rank, 2, name="ends", device=rank, timeout=20)
        x = ndarray([1.0], rank)
        c.all_reduce(x)
        if rank == 0:
            c.abort("enough")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not (
            ended(c.all_reduce, x) and ended(c.all_reduce, np.ones(1))
        ):
            time.sleep(0.05)
        return type(c.error)

    def ended(call: Any, x: Any) -> bool:
        try:
            call(x, timeout=5)
        except errors.AcclError as error:
            return "enough" in str(error)
        return False

    store = accl_py.HashStore()
    results = outcomes(2, work)
    assert [error for _, error in results] == [None, None]
    assert results[0][0] is errors.AbortedError
    assert results[1][0] is errors.PeerError


def test_shutdown_is_idempotent_and_final(cupy: Cupy) -> None:
    with Communicator.from_store(accl_py.HashStore(), 0, 1, device=0) as c:
        c.all_reduce(x := ndarray([1.0]))
    c.shutdown()
    with pytest.raises(errors.AbortedError, match="was shut down"):
        c.all_reduce(x)


def test_nothing_is_left(cupy: Cupy) -> None:
    run_threads(2, lambda c: c.all_reduce(ndarray([1.0], c.rank)) and None)
    gc.collect()
    deadline = time.monotonic() + 10
    while FakeNccl().live_communicators() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert FakeNccl().live_communicators() == 0
    assert gpu.live_streams() == 0


def test_a_store_that_fails_later_ends_nothing() -> None:
    class Fragile(accl_py.HashStore):
        broken = False

        def get(self, key: str, *more: Any) -> bytes:
            if self.broken:
                raise OSError("the store has gone")
            return super().get(key, *more)

    store = Fragile()
    with Communicator.from_store(store, 0, 1, device=0) as c:
        store.broken = True
        time.sleep(1.5)  # the watchdog has looked
        c.all_reduce(x := Exported([5.0]))
        settled()
        assert x.host[0] == 5 and c.error is None


PROGRAM = """
import sys
sys.path[:0] = {path!r}
import accl_py
from gpu_arrays import Exported, gpu
c = accl_py.Communicator.from_store(accl_py.HashStore(), 0, 1, device=0)
work = c.all_reduce(Exported([1.0]), async_op=True)
{more}
print("end")
"""


@pytest.mark.parametrize(
    "more",
    [
        "",
        "c.shutdown()",
        "del c",
        "import time; time.sleep(1.2)",  # the watchdog is at work
        "import threading, time; threading.Thread(target=time.sleep, args=(1.2,)).start()",
        "raise SystemExit(0)",
    ],
)
def test_a_program_may_end_as_it_is(more: str) -> None:
    program = PROGRAM.format(path=sys.path, more=more)
    begin = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert time.monotonic() - begin < 10
