"""torch CUDA tensors, which are taken by their own attributes; and how NCCL is found."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import accl_py
import numpy as np
import pytest
from accl_py import Communicator, device
from accl_py.errors import InvalidArgument
from fake_torch import Device, Stream, Tensor, Torch, using
from gpu_arrays import gpu, settled
from local_ranks import run_threads

# Small numbers in bits: 1, 2 and 3 (or 4, where 3 is not there).
BITS = {
    "bfloat16": (0x3F80, 0x4000, 0x4040),
    "float8_e4m3fn": (0x38, 0x40, 0x44),
    "float8_e5m2": (0x3C, 0x40, 0x42),
}


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    """A stand-in for torch."""
    module = Torch()
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "complex64"])
def test_tensors(torch: Torch, size: int, dtype: str) -> None:
    def check(c: Communicator) -> None:
        rows = c.all_gather(Tensor([c.rank % 2, 1], dtype, c.rank))
        settled(device=c.rank)
        assert isinstance(rows, Tensor) and str(rows.dtype) == f"torch.{dtype}"
        assert rows.host.tolist() == [[rank % 2, 1] for rank in range(size)]
        x = Tensor([c.rank, 2], "float32", c.rank)
        assert c.all_reduce(x) is x
        settled(device=c.rank)
        assert x.host.tolist() == [sum(range(size)), 2 * size]
        assert not x.recorded  # of the current stream torch knows

    run_threads(size, check)
    assert set(torch.asked) == set(range(size))


@pytest.mark.parametrize("dtype", BITS)
def test_types_that_numpy_lacks(torch: Torch, dtype: str) -> None:
    one, two, three = BITS[dtype]

    def check(c: Communicator) -> None:
        x = Tensor([one if c.rank == 0 else two], dtype, c.rank)
        rows = c.all_gather(x)
        out = Tensor([0], dtype, c.rank)
        c.all_reduce(x, out)
        c.broadcast(x, root=1)
        settled(device=c.rank)
        assert rows.host.tolist() == [[one], [two]]
        assert out.host.tolist() == [three]
        assert x.host.tolist() == [two]

    run_threads(2, check)


def test_streams_of_torch(torch: Torch) -> None:
    with Communicator.from_store(accl_py.HashStore(), 0, 1, device=0) as c:
        gpu.use_device(0)
        side = gpu.new_stream()
        gpu.pause(side)
        x, out = Tensor([1], "float32"), Tensor([0], "float32")
        with using(Stream(side)):
            c.all_reduce(x, out)
        assert out.host[0] == 0
        gpu.resume(side)
        settled(side)
        assert out.host[0] == 1
        assert not x.recorded
        c.all_reduce(x, out, stream=Stream(side))
        assert x.recorded == out.recorded == [side]  # kept from being given to others too early
        with pytest.raises(
            InvalidArgument, match="stream is of GPU 1, but the arrays are on GPU 0"
        ):
            c.all_reduce(x, stream=Stream(0, 1))
        settled(side)
        gpu.destroy_stream(side)


def test_tensors_that_are_refused(torch: Torch) -> None:
    with Communicator.from_store(accl_py.HashStore(), 0, 1, device=0) as c:
        square = Tensor(np.ones((2, 2)), "float32")

        def refuse(words: str, *arguments: Any) -> None:
            with pytest.raises(InvalidArgument, match=words):
                c.all_reduce(*arguments)

        refuse(
            r"x is on a GPU and not contiguous in C order; copy it first, with .contiguous\(\)",
            square.t(),
        )
        refuse("x is on GPU 0, but out is in host memory", square, np.ones((2, 2), np.float32))
        refuse("x is on GPU 0, but out is on GPU 1", square, Tensor(np.ones((2, 2)), "float32", 1))
        refuse(
            "out has dtype float64, but x has float32", square, Tensor(np.ones((2, 2)), "float64")
        )
        elsewhere = Tensor([1], "float32")
        elsewhere.device = Device("xpu", 0)
        refuse("x is on xpu:0; expected a tensor of the CPU or of a CUDA GPU", elsewhere)
        sparse = Tensor([1], "float32")
        sparse.layout = "torch.sparse_coo"
        refuse("x is torch.sparse_coo; expected a dense tensor", sparse)
        assert c.statistics()["device"]["enqueued"] == 0


class Loads:
    """Stands in for ctypes, where no libnccl is in the process."""

    def __init__(self, present: bool) -> None:
        self.present = present
        self.loaded: list[str] = []

    def CDLL(self, name: str, mode: int = 0) -> None:  # noqa: N802
        if mode and not self.present:
            raise OSError("not there")
        if not mode:
            self.loaded.append(name)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library of an installed nvidia-nccl wheel."""
    library = tmp_path / "lib" / "libnccl.so.2"
    library.parent.mkdir()
    library.touch()
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(device, "find_spec", lambda name: spec if name == "nvidia.nccl" else None)
    return library


@pytest.mark.parametrize(
    ("named", "present", "loads"), [(True, False, 0), (False, True, 0), (False, False, 1)]
)
def test_the_wheels_nccl_is_loaded_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, wheel: Path, named: bool, present: bool, loads: int
) -> None:
    stand_in = Loads(present)
    monkeypatch.setattr(device, "ctypes", stand_in)
    if not named:
        monkeypatch.delenv("ACCL_NCCL_LIBRARY")
    device.load_nccl()
    assert stand_in.loaded == [str(wheel)] * loads


def test_no_wheel_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = Loads(False)
    monkeypatch.setattr(device, "ctypes", stand_in)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    monkeypatch.delenv("ACCL_NCCL_LIBRARY")
    device.load_nccl()
    assert stand_in.loaded == []
