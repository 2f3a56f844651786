"""Builds the fakes with g++, for Python tests: no CMake, once for each state of the sources."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
_FAKES = _ROOT / "tests" / "fakes"
_CACHE = _ROOT / "build" / "fakes"
_FLAGS = ["-std=c++20", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
_INCLUDES = [
    f"-I{_ROOT / folder}" for folder in ("tests/fakes", "accl/src", "accl/include", "accl")
]
_HEADERS = [
    "accl/src/driver/driver.h",
    "accl/src/engine/nccl/api.h",
    "accl/plugin/nccl_tuner_abi.h",
]


@dataclass(frozen=True)
class Fakes:
    """Paths of the two libraries, for ACCL_CUDA_LIBRARY and ACCL_NCCL_LIBRARY."""

    cuda: Path
    nccl: Path

    def environment(self, devices: int = 2) -> dict[str, str]:
        """What a process needs in its environment to use them."""
        return {
            "ACCL_CUDA_LIBRARY": str(self.cuda),
            "ACCL_NCCL_LIBRARY": str(self.nccl),
            "FAKE_CUDA_DEVICES": str(devices),
        }


def compiler() -> str | None:
    """The C++ compiler; None where there is none, and no fakes can be had."""
    return shutil.which("g++")


def build() -> Fakes:
    """Compiles the fakes unless that was done before. Safe to call from several processes."""
    program = compiler()
    if program is None:
        raise FileNotFoundError("g++ was not found; the fakes of CUDA and NCCL need it.")
    folder = _CACHE / _digest()
    if not folder.is_dir():
        _CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=_CACHE))
        _compile(program, made)
        try:
            made.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return Fakes(folder / "libfake_cuda.so", folder / "libfake_nccl.so")


def _digest() -> str:
    sources = sorted([*_FAKES.glob("*.h"), *_FAKES.glob("*.cc")])
    text = b"".join(path.read_bytes() for path in [*sources, *(_ROOT / name for name in _HEADERS)])
    return hashlib.sha256(text + " ".join(_FLAGS).encode()).hexdigest()[:16]


def _compile(program: str, folder: Path) -> None:
    command = [program, *_FLAGS, *_INCLUDES]
    cuda = [_FAKES / "fake_cuda.cc", "-o", folder / "libfake_cuda.so"]
    nccl = [*(_FAKES / name for name in ("fake_nccl.cc", "team.cc", "tuner.cc"))]
    link = [f"-L{folder}", "-lfake_cuda", "-Wl,-rpath,$ORIGIN", "-ldl"]
    subprocess.run([*command, *cuda], check=True)
    subprocess.run([*command, *nccl, "-o", folder / "libfake_nccl.so", *link], check=True)


if __name__ == "__main__":
    built = build()
    print(*(f"{name}={value}" for name, value in built.environment().items()), sep="\n")
