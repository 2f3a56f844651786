"""Which stream a call goes to, what waits for what, and what is refused before anything starts."""

from __future__ import annotations

import threading
import time
import types
from typing import Any

import accl_py
import numpy as np
import pytest
from accl_py import Communicator, errors
from accl_py.errors import InvalidArgument
from fakes import FakeNccl
from gpu_arrays import Cupy, Exported, Stream, gpu, ndarray, settled, using
from local_ranks import run_threads

OTHER = 1  # a GPU that the single rank does not use


@pytest.fixture
def alone() -> Any:
    """A communicator of one rank on GPU 0."""
    with Communicator.from_store(accl_py.HashStore(), 0, 1, timeout=20, device=0) as c:
        yield c


@pytest.fixture
def side() -> Any:
    """A stream of GPU 0."""
    gpu.use_device(0)
    stream = gpu.new_stream()
    yield stream
    gpu.synchronize(stream)
    gpu.destroy_stream(stream)


@pytest.fixture
def paused(side: int) -> Any:
    """The same, held until the test lets it go on."""
    gpu.pause(side)
    yield side
    gpu.resume(side)


def copies(x: ndarray, out: ndarray) -> bool:
    """Whether the call from x to out has run."""
    return bool((x.host == out.host).all())


def test_calls_go_to_the_current_stream(alone: Communicator, cupy: Cupy, paused: int) -> None:
    x, out = ndarray([1.0]), ndarray([0.0])
    with using(paused):
        alone.all_reduce(x, out)
    time.sleep(0.05)
    assert not copies(x, out)  # nobody has waited
    gpu.resume(paused)
    settled(paused)
    assert copies(x, out)


@pytest.mark.parametrize(
    "wrap",
    [
        int,
        Stream,
        lambda handle: types.SimpleNamespace(cuda_stream=handle),
        lambda handle: types.SimpleNamespace(__cuda_stream__=lambda: (0, handle)),
        lambda handle: types.SimpleNamespace(__cuda_stream__=(0, handle)),
    ],
    ids=["int", "cupy", "torch", "protocol", "protocol_as_property"],
)
def test_a_stream_of_any_kind(alone: Communicator, cupy: Cupy, paused: int, wrap: Any) -> None:
    x, out = ndarray([2.0]), ndarray([0.0])
    work = alone.all_reduce(x, out, stream=wrap(paused), async_op=True)
    assert not work.done()
    gpu.resume(paused)
    assert work.synchronize() is out
    assert copies(x, out) and work.done() and work.error is None


def test_wait_orders_the_current_stream(alone: Communicator, cupy: Cupy, paused: int) -> None:
    x, out, after = ndarray([1.0]), ndarray([0.0]), ndarray([0.0])
    work = alone.all_reduce(x, out, stream=paused, async_op=True)
    assert work.wait() is out  # the host does not wait
    alone.all_reduce(out, after)  # on the null stream, which now does
    time.sleep(0.05)
    assert after.host[0] == 0
    gpu.resume(paused)
    settled()
    assert after.host[0] == 1


def test_wait_orders_a_stream_that_is_named(alone: Communicator, cupy: Cupy, side: int) -> None:
    gpu.pause(0)
    work = alone.all_reduce(ndarray([3.0]), out := ndarray([0.0]), async_op=True)
    after = ndarray([0.0])
    work.wait(stream=Stream(side))
    alone.all_reduce(out, after, stream=side)
    gpu.resume(0)
    settled(side)
    assert after.host[0] == 3


def test_wait_with_a_timeout_blocks_the_host(alone: Communicator, cupy: Cupy, paused: int) -> None:
    work = alone.all_reduce(ndarray([1.0]), ndarray([0.0]), stream=paused, async_op=True)
    for wait in (work.wait, work.synchronize):
        with pytest.raises(errors.TimeoutError, match=r"#1\) was not complete after 0.05 s"):
            wait(0.05)
    assert "under way" in repr(work)
    gpu.resume(paused)
    work.wait(10)
    assert "complete" in repr(work)
    assert work.report()["engine"] == "nccl" and work.sequence == 1


def test_new_arrays_are_made_on_the_stream_of_the_call(
    alone: Communicator, cupy: Cupy, side: int
) -> None:
    alone.all_gather(ndarray([1.0]), stream=side)
    alone.all_gather(ndarray([1.0]))
    assert cupy.made_on == [(0, side), (0, 0)]


def test_an_unknown_librarys_stream_is_used_and_waited_for(
    alone: Communicator, side: int, paused: int
) -> None:
    x = Exported([1.0], stream=paused)
    alone.all_reduce(x, out := Exported([0.0]))
    assert out.host[0] == 0
    gpu.resume(paused)
    settled(paused)
    assert out.host[0] == 1
    gpu.pause(paused)  # named by the array, so that another stream waits for it
    gpu.use_device(0)
    other = gpu.new_stream()
    alone.all_reduce(x, late := Exported([0.0]), stream=other)
    time.sleep(0.05)
    assert late.host[0] == 0
    gpu.resume(paused)
    settled(other)
    assert late.host[0] == 1
    gpu.destroy_stream(other)


def test_the_legacy_stream_has_three_names(alone: Communicator) -> None:
    for stream in (None, 0, 1):
        alone.all_reduce(Exported([1.0]), out := Exported([0.0]), stream=stream)
        settled()
        assert out.host[0] == 1
    alone.all_reduce(Exported([1.0], stream=1), out)


def test_barrier_on_a_stream(cupy: Cupy) -> None:
    reached = threading.Event()

    def check(c: Communicator) -> None:
        gpu.use_device(c.rank)
        stream = gpu.new_stream()
        if c.rank == 0:
            work = c.barrier(stream=stream, async_op=True)
            assert not work.done() and not reached.is_set()
            c.barrier()  # of the hosts
        else:
            c.barrier()
            reached.set()
            assert c.barrier(stream=stream) is None
        settled(stream, device=c.rank)
        assert reached.is_set()

    def with_gpu(c: Communicator) -> None:
        c.all_reduce(ndarray([1.0], c.rank))
        check(c)

    run_threads(2, with_gpu)


def test_captured_calls(alone: Communicator, cupy: Cupy, side: int) -> None:
    x = ndarray([1.0])
    gpu.set_capturing(side, True)
    work = alone.all_reduce(x, stream=side, async_op=True)
    gpu.set_capturing(side, False)
    assert not work.done()
    with pytest.raises(InvalidArgument, match="captured into a graph"):
        work.synchronize()
    assert alone.statistics()["device"]["captured"] == 1


# ---- refusals ----


def started(c: Communicator) -> int:
    counters = c.statistics()["device"]
    return int(counters["enqueued"] - counters["failed"])


def refuse(c: Communicator, words: str, *arguments: Any, **more: Any) -> None:
    before = started(c)
    with pytest.raises(InvalidArgument, match=words):
        c.all_reduce(*arguments, **more)
    assert started(c) == before


def test_places_that_differ(alone: Communicator, cupy: Cupy) -> None:
    x = ndarray([1.0])
    refuse(alone, "x is on GPU 0, but out is in host memory; expected all arrays", x, np.ones(1))
    refuse(alone, "x is in host memory, but out is on GPU 0; expected all", np.ones(1), x)
    refuse(alone, "x is on GPU 0, but out is on GPU 1; expected all", x, ndarray([1.0], OTHER))
    refuse(
        alone,
        "The arrays are on GPU 1, but communicator 'world' is bound to GPU 0",
        ndarray([1.0], OTHER),
    )


BAD_STREAMS = [
    (True, "stream is True; expected an integer handle, or a stream of CuPy or torch"),
    ("side", "stream is 'side'; expected an integer handle"),
    (-1, "stream is -1; expected a handle of 0 or more"),
    (Stream(0, OTHER), "stream is of GPU 1, but the arrays are on GPU 0"),
    (types.SimpleNamespace(__cuda_stream__=lambda: None), "expected an integer handle"),
]


@pytest.mark.parametrize("stream, words", BAD_STREAMS, ids=range(len(BAD_STREAMS)))
def test_bad_streams(alone: Communicator, stream: Any, words: str) -> None:
    refuse(alone, words, Exported([1.0]), stream=stream)


def test_a_stream_for_arrays_of_the_host(alone: Communicator) -> None:
    refuse(alone, "stream is given, but the arrays are in host memory", np.ones(1), stream=0)
    with pytest.raises(InvalidArgument, match="in host memory"):
        with alone.group(stream=0) as group:
            group.send(np.ones(1), 0)
            group.recv(np.ones(1), 0)


BAD_ARRAYS = [
    ({"strides": (8, 16)}, r"x is on a GPU and not contiguous in C order; copy it first"),
    ({"data": (0x1000, True)}, "x is read-only, but it would be written"),
    ({"mask": object()}, "x has a mask"),
    ({"shape": None}, "cannot be read: TypeError"),
    ({"strides": (8,)}, "cannot be read: ValueError"),
    ({"data": 5}, "cannot be read: TypeError"),
]


@pytest.mark.parametrize("interface, words", BAD_ARRAYS, ids=range(len(BAD_ARRAYS)))
def test_bad_arrays(alone: Communicator, interface: dict[str, Any], words: str) -> None:
    refuse(alone, words, Exported(np.ones((2, 2)), **interface))


def test_more_bad_arrays(alone: Communicator, cupy: Cupy) -> None:
    refuse(alone, "x has dtype complex256|clongdouble", Exported(np.ones(2, np.clongdouble)))
    refuse(alone, "x is on a GPU and not contiguous", ndarray(np.ones((4, 4)))[:, 1])
    alone.all_reduce(ndarray(np.ones((4, 4)))[1])
    with pytest.raises(InvalidArgument, match="out is missing, and a new Exported like x cannot"):
        alone.all_gather(Exported([1.0]))
    on_rocm = Exported([1.0])
    on_rocm.__dlpack_device__ = lambda: (10, 0)  # type: ignore[method-assign]
    refuse(alone, "DLPack's type 10; expected a CUDA GPU", on_rocm)
    no_device = types.SimpleNamespace(__cuda_array_interface__=on_rocm.__cuda_array_interface__)
    refuse(alone, "does not say which GPU it is on", no_device)


def test_what_nccl_cannot_do(alone: Communicator, cupy: Cupy) -> None:
    refuse(alone, "NCCL cannot do the operation sum on int16", ndarray(np.ones(2, np.int16)))
    refuse(alone, "Algorithm 'ring' cannot be forced", ndarray([1.0]), algorithm="ring")
    with pytest.raises(InvalidArgument, match="NCCL cannot receive from any source"):
        alone.recv(ndarray([1.0]))


def test_before_there_is_a_gpu_half() -> None:
    def check(c: Communicator) -> None:
        x = Exported([1.0], c.rank)
        needs = "needs the GPU half of communicator 'world', which all ranks make together: give device="
        for call in (
            lambda: c.send(x, 0),
            lambda: c.recv(x, 0),
            lambda: c.prepare("all_reduce", x),
            lambda: c.choice_for("all_reduce", x),
            lambda: c.barrier(stream=0),
            lambda: c.trace(device=True),
            lambda: c.kernels_unavailable,
        ):
            with pytest.raises(InvalidArgument, match=needs):
                call()
        with pytest.raises(InvalidArgument, match=needs):
            with c.group() as group:
                group.send(x, 0)
        with pytest.raises(InvalidArgument, match="stream is True"):
            c.all_reduce(x, stream=True)
        assert c.device is None and "device" not in c.statistics()
        c.barrier()

    run_threads(2, check)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": -1}, "device is -1; expected at least 0"),
        ({"device": 9}, "device 9; this process sees 4 GPUs, expected 0 to 3"),
        ({"device": 0.5}, "device is 0.5; expected an integer"),
        ({"device": 0, "device_options": {"chanels": 3}}, "device_options has 'chanels'; expected"),
        ({"device": 0, "device_options": {"kernels": "no"}}, "holds a value of a wrong type"),
        ({"device": 0, "device_options": 3}, "device_options is 3; expected a dict"),
        ({"device": 0, "device_options": {"on_fault": "cry"}}, "expected raise or exit"),
        ({"device": 0, "device_options": {"min_channels": 99}}, "99"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Communicator.from_store(accl_py.HashStore(), 0, 1, **options)


def test_options_reach_nccl() -> None:
    options: Any = {"min_channels": 2, "max_channels": 3, "network": "Socket"}
    store = accl_py.HashStore()
    with Communicator.from_store(store, 0, 1, name="opted", device=0, device_options=options):
        config = FakeNccl().last_config("opted", 0)
        assert config is not None
        assert (config.min_ctas, config.max_ctas, config.net_name) == (2, 3, b"Socket")
