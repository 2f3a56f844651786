"""accl_py on "GPUs" without a GPU: over the fakes of tests/fakes, with ranks as threads.

Run in a process of its own, since a process keeps the CUDA driver and the NCCL that it loads first.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

if "accl_py" in sys.modules:
    raise pytest.UsageError("tests/python_device must be run in a process of its own.")

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / folder) for folder in ("fakes", "python", "python_device")]

import build  # noqa: E402

DEVICES = 4
os.environ.update(build.build().environment(DEVICES))
os.environ.setdefault("ACCL_LOG", "error")
_traces = tempfile.TemporaryDirectory(prefix="accl-traces-")  # goes with this process
os.environ["ACCL_TRACE_DIR"] = _traces.name
os.environ.pop("ACCL_RULES", None)

import gpu_arrays  # noqa: E402


@pytest.fixture(params=(1, 2, 3), ids=lambda size: f"{size}ranks")
def size(request: pytest.FixtureRequest) -> int:
    """How many ranks there are; each has a GPU of its own."""
    return int(request.param)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> gpu_arrays.Cupy:
    """A stand-in for CuPy, as far as accl_py needs it."""
    module = gpu_arrays.Cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module
