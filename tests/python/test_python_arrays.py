"""What may be an array: torch tensors, DLPack, the buffer protocol; and views at random."""

from __future__ import annotations

import array
import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from accl_py import Communicator
from accl_py.arrays import contiguous, copy_back, view
from accl_py.errors import InvalidArgument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from local_ranks import ThreadRanks


class OnlyDlpack:
    """An object that has DLPack and nothing else."""

    def __init__(self, a: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._a, self._device = a, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._a.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def test_dlpack_objects(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        for a in (np.ones(6, np.float32), np.ones((6, 2), np.float32)[:, 0]):
            x = OnlyDlpack(a)
            assert c.all_reduce(x) is x
            assert (a == 2).all()
            gathered = c.all_gather(x)
            assert isinstance(gathered, np.ndarray)
            assert gathered.dtype == np.float32 and (gathered == 2).all()
            out = np.zeros((2, 6), np.float32)
            assert (c.all_gather(x, OnlyDlpack(out))._a == 2).all()

    ranks2.run(check)


def test_buffers(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        x = array.array("i", [1, 2, 3])
        assert c.all_reduce(x) is x
        assert x == array.array("i", [2, 4, 6])
        memory = memoryview(bytearray([c.rank] * 8))
        c.broadcast(memory, root=1)
        assert memory == bytes([1] * 8)
        every_other = memoryview(bytearray(8))[::2]
        c.all_reduce(memoryview(b"\x01\x02\x03\x04"), every_other)
        assert every_other.tolist() == [2, 4, 6, 8]
        assert c.all_gather(bytes([c.rank])).tolist() == [[0], [1]]
        numbers = (ctypes.c_double * 3)(1, 2, 3)
        c.all_reduce(numbers)
        assert list(numbers) == [2, 4, 6]
        with mmap.mmap(-1, 16) as shared:
            c.broadcast(shared, root=0)
        c.all_reduce(np.float32(3), np.zeros((), np.float32))
        assert c.all_reduce(array.array("d")) == array.array("d")

    ranks2.run(check)


def test_subclasses_and_odd_dtypes(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        x = np.ones(3, np.longlong)
        assert (c.all_reduce(x) == 2).all()
        record = np.zeros(4, [("a", "<f4"), ("b", "<i8")])
        record["b"] = 1
        c.all_reduce(record["b"])
        assert record["b"].tolist() == [2] * 4 and not record["a"].any()
        matrix = np.ones((2, 2)).view(np.matrix)
        assert (c.all_reduce(matrix) == 2).all()

    ranks2.run(check)


def test_ml_dtypes(ranks2: ThreadRanks) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def check(c: Communicator) -> None:
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            x = np.ones(5, getattr(ml_dtypes, name))
            assert (c.all_reduce(x) == 2).all()

    ranks2.run(check)


# ---- torch ----

TORCH_DTYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int8 int16 int32 int64 uint8 "
    "uint16 uint32 uint64 bool complex64 complex128".split()
)


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_torch_dtypes(ranks: ThreadRanks, name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)

    def check(c: Communicator) -> None:
        for shape in ((), (0,), (3,), (4, 5)):
            ones = torch.ones(shape).to(dtype)
            total = torch.full(shape, c.size).to(dtype)
            x = ones.clone()
            assert c.all_reduce(x) is x
            assert x.dtype == dtype and x.shape == torch.Size(shape)
            # Not every dtype compares in torch.
            assert torch.equal(x.to(torch.complex128), total.to(torch.complex128))
            gathered = c.all_gather(ones, async_op=True).wait()
            assert gathered.shape == (c.size, *shape) and gathered.dtype == dtype
            assert torch.equal(
                gathered.to(torch.complex128), torch.ones(gathered.shape, dtype=torch.complex128)
            )
            part = c.reduce_scatter(torch.ones((c.size, *shape)).to(dtype))
            assert torch.equal(part.to(torch.complex128), total.to(torch.complex128))

    ranks.run(check)


def test_torch_layouts(ranks2: ThreadRanks) -> None:
    torch = pytest.importorskip("torch")

    def check(c: Communicator) -> None:
        base = torch.arange(24, dtype=torch.float64).reshape(4, 6)
        for make in (
            lambda t: t.t(),
            lambda t: t[:, ::2],
            lambda t: t[1:3, 2:4],
            lambda t: t[2, 3],
        ):
            for async_op in (False, True):
                own = base.clone()
                x = make(own)
                answer = c.all_reduce(x, async_op=async_op)
                assert (answer.wait() if async_op else answer) is x
                wanted = base.clone()
                make(wanted).mul_(2)
                assert torch.equal(own, wanted)  # what lies between is untouched
        z = torch.tensor([1 + 2j, 3 - 1j])
        conjugate = z.conj()
        c.all_reduce(conjugate)
        assert torch.equal(z, torch.tensor([2 + 4j, 6 - 2j]))
        assert torch.equal(
            c.all_gather(torch.tensor([1 + 2j]).conj()), torch.tensor([[1 - 2j]] * 2)
        )
        channels = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
        assert (c.all_reduce(channels) == 2).all()

    ranks2.run(check)


def test_torch_kinds(ranks2: ThreadRanks) -> None:
    torch = pytest.importorskip("torch")

    class Named(torch.Tensor):
        pass

    def check(c: Communicator) -> None:
        leaf = torch.ones(3, requires_grad=True)
        assert c.all_reduce(leaf) is leaf
        assert leaf.tolist() == [2, 2, 2]
        leaf = torch.ones(6, requires_grad=True)
        view_of_leaf = leaf.detach()[::2]
        c.all_reduce(view_of_leaf)
        assert leaf.tolist() == [2, 1, 2, 1, 2, 1]
        parameter = torch.nn.Parameter(torch.ones(2))
        assert c.broadcast(parameter) is parameter
        mine = torch.ones(2).as_subclass(Named)
        assert (c.all_reduce(mine) == 2).all()
        result = c.all_gather(leaf * 2)  # not a leaf, requires grad
        assert not result.requires_grad
        with torch.inference_mode():
            inferred = torch.ones(3)
            assert (c.all_reduce(inferred) == 2).all()

    ranks2.run(check)


def test_torch_and_numpy_mix(ranks2: ThreadRanks) -> None:
    torch = pytest.importorskip("torch")

    def check(c: Communicator) -> None:
        x = torch.ones(4) if c.rank == 0 else np.ones(4, np.float32)
        assert float(c.all_reduce(x)[3]) == 2.0
        out = np.zeros((2, 4), np.float32)
        c.all_gather(torch.ones(4), out)
        assert (out == 1).all()

    ranks2.run(check)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda t: t.ones(3).expand(2, 3), "share memory"),
        (
            lambda t: t.ones(3, device="meta"),
            "is on meta; expected a tensor of the CPU or of a CUDA GPU",
        ),
        (lambda t: t.eye(2).to_sparse(), "torch.sparse_coo; expected a dense tensor"),
        (
            lambda t: t.quantize_per_tensor(t.ones(2), 0.1, 0, t.quint8),
            "dtype torch.quint8; expected one of: ",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_torch_refused(ranks2: ThreadRanks, make: Any, words: str) -> None:
    torch = pytest.importorskip("torch")
    x = make(torch)

    def check(c: Communicator) -> None:
        with pytest.raises(InvalidArgument, match=words):
            c.all_reduce(x)
        c.barrier()

    ranks2.run(check)


def test_expanded_may_be_read(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        x = np.broadcast_to(np.float32(1), (3, 4))
        assert (c.all_reduce(x, np.zeros((3, 4), np.float32)) == 2).all()

    ranks2.run(check)


# ---- refused objects ----


def _readonly() -> Any:
    a = np.ones(3)
    a.flags.writeable = False
    return a


REFUSED = [
    (
        [1.0, 2.0],
        "x is a list; expected a numpy or CuPy array, a torch tensor, or anything with DLPack",
    ),
    (None, "x is a NoneType; expected a numpy or CuPy array"),
    (3.0, "x is a float; expected"),
    ("text", "x is a str; expected"),
    (_readonly(), "x is read-only, but it would be written"),
    (b"bytes", "x is read-only, but it would be written"),
    (np.float32(1), "x is read-only"),
    (np.broadcast_to(np.ones(1), (4,)), "read-only"),
    (np.lib.stride_tricks.as_strided(np.ones(4), (3, 2), (8, 8)), "share memory"),
    (np.lib.stride_tricks.as_strided(np.ones(4), (4,), (4,)), "share memory"),
    (np.lib.stride_tricks.as_strided(np.ones(9), (3, 2, 2), (16, 8, 8)), "share memory"),
    (np.ones(3, ">f4"), "x has dtype float32 of foreign byte order; expected one of: float64"),
    (np.ones(3, object), "x has dtype object; expected one of: "),
    (np.ones(3, "U2"), "x has dtype <U2; expected"),
    (np.ones(3, "M8[s]"), "x has dtype datetime64"),
    (np.ones(3, np.longdouble), "x has dtype (float128|longdouble)"),
    (np.zeros(2, [("a", "f4")]), "expected one of: "),
    (
        OnlyDlpack(np.ones(2), (2, 0)),
        "x is on a device of DLPack's type 2; expected",
    ),
    (array.array("u", "ab"), "expected one of: "),
    (memoryview(bytearray(4)).cast("c"), "expected one of: "),
]


@pytest.mark.parametrize("x, words", REFUSED, ids=range(len(REFUSED)))
def test_refused(ranks2: ThreadRanks, x: Any, words: str) -> None:
    def check(c: Communicator) -> None:
        with pytest.raises(InvalidArgument, match=words):
            c.all_reduce(x)
        c.barrier()  # nothing was started

    ranks2.run(check)


def test_odd_strides_that_do_not_meet_are_taken(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        # 3 elements 16 bytes apart, twice, 24 bytes apart: the rows interleave without meeting.
        base = np.zeros(20)
        x = np.lib.stride_tricks.as_strided(base, (2, 3), (24, 16))
        x[...] = 1
        c.all_reduce(x)
        assert (x == 2).all() and base.sum() == 12

    ranks2.run(check)


# ---- views at random ----

_ANY_DTYPE = st.sampled_from(
    ["float64", "float32", "float16", "int8", "uint64", "bool", "complex64"]
)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """A random view into a random array: basic indices and transposed axes."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    base = np.arange(int(np.prod(shape, dtype=np.int64))).astype(draw(_ANY_DTYPE)).reshape(shape)
    if shape:
        indices = hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)
        base = base[draw(indices)]
    return np.asarray(base).transpose(draw(st.permutations(range(np.ndim(base)))))


@settings(max_examples=200, deadline=None)
@given(a=views())
def test_random_views_round_trip(a: np.ndarray[Any, Any]) -> None:
    """Staged out and back again, any view keeps its values."""
    if not a.flags.writeable:
        a = a.copy()
    before = a.copy()
    v = view(a, "x", writable=True)
    assert v.shape == a.shape and v.count == a.size and v.itemsize == a.itemsize
    staged = contiguous(v)
    assert staged.flags.c_contiguous and staged.shape == a.shape
    assert (staged is a) == v.contiguous
    assert np.array_equal(staged, before)
    a[...] = 0
    copy_back(v, before.copy())
    assert np.array_equal(a, before)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(a=views())
def test_random_views_are_exchanged(ranks2: ThreadRanks, a: np.ndarray[Any, Any]) -> None:
    wanted = a.copy()

    def check(c: Communicator) -> None:
        own = np.zeros_like(a) if c.rank else a
        gathered = c.all_gather(own)
        assert np.array_equal(gathered[0, ...], wanted)
        x = np.zeros(a.shape[::-1], a.dtype).T if c.rank else a.copy().T.T
        c.broadcast(x)
        assert np.array_equal(x, wanted)

    ranks2.run(check)
