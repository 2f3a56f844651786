"""accl-perf --device cuda, with ranks as threads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accl_py.errors import AcclSystemError, InvalidArgument
from accl_py.perf import cli, cuda, data
from accl_py.perf.cuda import Device, GpuArray, device_count
from accl_py.perf.sizes import COLLECTIVES
from accl_py.perf.world import parse_split
from fakes import FakeNccl
from gpu_arrays import gpu
from local_ranks import checked, outcomes


def run(ranks: int, folder: Path, *words: str, code: int = 0) -> None:
    def work(rank: int) -> int:
        place = ["--local-rank", str(rank), "--local-store", str(folder), "--ranks", str(ranks)]
        return cli.main([*words, "--device", "cuda", *place])

    assert checked(outcomes(ranks, work, 60)) == [code] * ranks


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective(
    collective: str, ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (collective, "-b", "12", "-e", "60K", "-f", "16", "-n", "3", "-r", str(ranks - 1))
    run(ranks, tmp_path, *words)
    text = capsys.readouterr().out
    got = rows(text)
    assert len(got) == 4
    for row in got:
        assert len(row) == 13
        assert row[8] == "0" and row[12] in ("0", "N/A")
    assert "nccl-library=22809" in text
    assert "# Out of bounds values : 0 OK" in text
    for rank in range(ranks):
        assert re.search(rf"#  Rank  {rank} Group  0 Pid +\d+ on .* device  {rank} \[.+\] .+", text)


def test_all_operations_and_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(2, tmp_path, "all_reduce", "-b", "64", "-e", "64", "-o", "all", "-d", "all", "-n", "1")
    got = rows(capsys.readouterr().out)
    assert len(got) == 72
    assert {row[8] for row in got} | {row[12] for row in got} == {"0"}


def test_wrong_results_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = data.reduced
    monkeypatch.setattr(data, "reduced", lambda *a: right(*a) + 1)
    run(2, tmp_path, "all_reduce", "-b", "12", "-e", "12", code=cli.EXIT_WRONG)
    assert "# Out of bounds values : 12 FAILED" in capsys.readouterr().out


def test_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(4, tmp_path, "all_gather", "-b", "64", "-e", "64", "--split", "MOD 2")
    text = capsys.readouterr().out
    assert re.findall(r"Rank +(\d) Group +(\d)", text) == [
        ("0", "0"),
        ("1", "1"),
        ("2", "0"),
        ("3", "1"),
    ]
    size, count = rows(text)[0][:2]
    assert (size, count) == ("64", "8")  # of 2 ranks, not 4


@pytest.mark.parametrize("more", [("-C", "1"), ("-z", "1"), ("-I",), ("-m", "3"), ("-c", "0")])
def test_other_ways_to_time(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = FakeNccl().calls("ncclAllReduce")
    run(2, tmp_path, "all_reduce", "-b", "4K", "-e", "4K", "-n", "5", *more)
    row = rows(capsys.readouterr().out)[0]
    assert float(row[5]) > 0
    assert len(row) == (21 if more == ("-I",) else 13)
    # Two ranks and placements; a warm-up call each, and one that is checked.
    times = (15 if "-m" in more else 5) + 1 + ("-c" not in more)
    assert FakeNccl().calls("ncclAllReduce") == calls + 4 * times


def test_shared_gpus_are_labelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"):
        monkeypatch.setenv(name, "set by the test, to be put back")
        monkeypatch.delenv(name)
    path = tmp_path / "out.json"
    (tmp_path / "store").mkdir()
    run(1, tmp_path / "store", "broadcast", "-b", "8", "-e", "8", "--share-gpu", "-J", str(path))
    assert "LOOPBACK SOCKETS" in capsys.readouterr().out
    document = json.loads(path.read_text())
    assert document["config"]["shared_gpus"] is True
    assert {"NCCL_HOSTID=accl-perf-0", "NCCL_SOCKET_IFNAME=lo"} <= set(document["env"])


def test_too_few_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["all_reduce", "--device", "cuda", "--ranks", "5"]) == cli.EXIT_USAGE
    assert "this process sees 4 GPU(s)" in capsys.readouterr().err


def test_a_driver_without_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(1, tmp_path, "all_reduce", "-b", "8", "-e", "8", "-G", "2", code=cli.EXIT_FAILED)
    assert "The CUDA driver has no cuStreamBeginCapture_v2" in capsys.readouterr().err


class WithGraphs:
    """The fake driver with graphs that do nothing when they are launched."""

    def __init__(self) -> None:
        self.launches = 0
        self._driver = gpu.library

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cuGraph"):
            return lambda *_: 0
        return getattr(self._driver, name)

    def cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> int:
        gpu.set_capturing(stream.value, True)
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        gpu.set_capturing(stream.value, False)
        return 0

    def cuGraphLaunch(self, graph: Any, stream: Any) -> int:
        self.launches += 1
        return 0


def test_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WithGraphs()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    words = ("all_reduce", "-b", "8", "-e", "8", "-G", "4", "-n", "5", "-w", "0")
    run(1, tmp_path, *words)
    text = capsys.readouterr().out
    assert "graph: 4" in text and rows(text)[0][8] == "0"
    assert driver.launches == 2 * (4 + 1)  # one before the timed ones
    log = [line for line in FakeNccl().log("accl-perf", 0) if "ncclAllReduce" in line]
    assert [("captured=1" in line) for line in log] == 2 * ([False] + 5 * [True])


def test_arrays_of_accl_perf() -> None:
    before = gpu.live_bytes()
    device = Device(1)
    x = GpuArray(device, 5, np.dtype(np.int32))
    x[...] = np.arange(5, dtype=np.int32)
    part = x[1:3]
    part[...] = np.array([7, 8], np.int32)
    other = x.copy()
    x[3:5] = part
    assert x.numpy().tolist() == [0, 7, 8, 7, 8] and other.numpy().tolist() == [0, 7, 8, 3, 4]
    assert part.__cuda_array_interface__["data"][0] == x.__cuda_array_interface__["data"][0] + 4
    assert x.__dlpack_device__() == (2, 1) and device_count() == 4
    for bad in (np.zeros(4, np.int32), np.zeros(5)):
        with pytest.raises(InvalidArgument, match="cannot go into <int32 x 5 on GPU 1>"):
            x[...] = bad
    with pytest.raises(InvalidArgument, match="step 2"):
        x[::2]
    del x
    assert part.numpy().tolist() == [7, 8]  # keeps the memory
    del part, other
    assert gpu.live_bytes() == before
    with pytest.raises(AcclSystemError, match=r"cuDeviceGet failed: .*\(101\)"):
        Device(9)


def test_splits() -> None:
    def groups(text: str | None) -> Any:
        return [parse_split(text)(rank) for rank in range(6)]

    assert groups(None) == groups("") == [0] * 6
    assert groups("AND 0x3") == groups("&3") == [0, 1, 2, 3, 0, 1]
    assert groups("mod 2") == groups("%2") == [0, 1] * 3
    assert groups("DIV 2") == groups("/ 2") == [0, 0, 1, 1, 2, 2]
    assert groups("OR 1") == [1, 1, 3, 3, 5, 5]
    for bad in ("MOD 0", "XOR 2", "2", "MOD", "MOD -1", "DIV 0x"):
        with pytest.raises(InvalidArgument, match=r"--split is '.*'; expected a word of AND"):
            parse_split(bad)
