"""Builds the torch part of ACCL-N: ``python -m accl_py.torch.build [--force]``.

The C++ interface of torch.distributed changes with each minor version, so the wheel ships sources
and this builds them for the torch that is installed: against torch's own headers and its own
pybind11, with the system's C++ compiler, in about a minute, under a file lock. The result lies in
``accl_py/torch/lib`` where that can be written, else in ``~/.cache/accl-n/torch``. Its name carries
the torch version, the Python version, and a digest of the sources and of ACCL-N's headers.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("accl_py.torch")

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "csrc"
OLDEST = (2, 11)
NEWEST = (2, 14)  # newer ones are tried, with a warning
STEM = "accl_torch"
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-DNDEBUG")


class BuildError(ImportError):
    """The torch part cannot be built here; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Torch:
    """What the build has to know of the installed torch."""

    version: (
        str  # "2.13.0", without the local part: CPU and CUDA wheels of a version have one interface
    )
    root: Path
    cxx11_abi: bool

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


@functools.cache
def installed_torch() -> Torch:
    """The torch of this interpreter. Raises ``BuildError`` if there is none, or one too old."""
    if importlib.util.find_spec("torch") is None:
        raise BuildError(
            "torch is not installed in this Python; install it (pip install torch), then build "
            "again."
        )
    import torch

    found = Torch(
        torch.__version__.split("+")[0],
        Path(torch.__file__).parent,
        torch.compiled_with_cxx11_abi(),
    )
    check_torch(found)
    return found


def check_torch(found: Torch) -> None:
    """Raises ``BuildError`` for a torch that the sources do not fit."""
    supported = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if found.release < OLDEST:
        raise BuildError(
            f"torch {found.version} is installed, but the accl backend needs torch {supported}; "
            "upgrade torch."
        )
    if found.release > NEWEST:
        logger.warning(
            "torch %s is newer than the accl backend knows (%s); trying.", found.version, supported
        )
    if not found.cxx11_abi:
        raise BuildError(
            f"torch {found.version} is built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), "
            "libaccl with the new one; install a torch from PyPI or download.pytorch.org."
        )


@functools.cache
def accl_directory() -> Path:
    """The directory that holds ``lib/libaccl.so`` and ``include/accl``.

    That is the package itself, or, in an editable install, where the core extension lies.
    """
    candidates = [PACKAGE.parent]
    core = importlib.util.find_spec("accl_py._core")
    if core and core.origin:
        candidates.append(Path(core.origin).resolve().parent)
    for candidate in candidates:
        if (candidate / "lib" / "libaccl.so").is_file():
            return candidate
    raise BuildError(
        f"libaccl.so is not in {' nor in '.join(str(c / 'lib') for c in candidates)}; install "
        "accl-n, or build it (make build), then try again."
    )


def source_files() -> list[Path]:
    """All sources and headers that determine the result, in a fixed order."""
    own = sorted(SOURCES.glob("*.cc")) + sorted(SOURCES.glob("*.h"))
    include = accl_directory() / "include" / "accl"
    headers = sorted(include.glob("*.h"))
    if not own or not headers:
        missing = include if own else SOURCES
        raise BuildError(
            f"The sources of the torch part are not in {missing}; install accl-n again."
        )
    return own + headers


def digest() -> str:
    """12 hex digits of the sources, ACCL-N's headers and the compiler flags."""
    total = hashlib.sha256(" ".join(FLAGS).encode())
    for path in source_files():
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def file_name(torch: Torch) -> str:
    """Name of the library, as in ``accl_torch-2.13.0-cp311-0123456789ab.so``."""
    tag = (sys.implementation.cache_tag or "python").replace("cpython-", "cp")
    return f"{STEM}-{torch.version}-{tag}-{digest()}.so"


def directories() -> list[Path]:
    """Where a built library may lie, the package's own first."""
    cache = Path(os.path.expanduser("~")) / ".cache" / "accl-n" / "torch"
    return [PACKAGE / "lib", cache]


def find_built(torch: Torch) -> Path | None:
    """The library that fits, if it has been built."""
    for directory in directories():
        path = directory / file_name(torch)
        if path.is_file():
            return path
    return None


def writable_directory() -> Path:
    """The first of ``directories()`` that can be written, made if need be."""
    reasons = []
    for directory in directories():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                return directory
        except OSError as error:
            reasons.append(f"{directory}: {error.strerror}")
    raise BuildError(f"No directory for the built library can be written ({'; '.join(reasons)}).")


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Holds the build lock of a directory; ranks that start together build once."""
    with open(directory / ".build-lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compiler() -> str:
    """The C++ compiler: the first that is found of ``g++``, ``c++`` and ``clang++``."""
    for name in ("g++", "c++", "clang++"):
        path = shutil.which(name)
        if path:
            return path
    raise BuildError(
        "The accl backend has to be compiled for this torch, but no C++ compiler is found (g++, "
        "c++ or clang++ on PATH); install g++ 12 or later, then run: python -m accl_py.torch.build"
    )


def include_flags(torch: Torch) -> list[str]:
    """Where the compiler finds headers: ours first, then torch's and Python's."""
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise BuildError(
            f"The headers of Python are not in {python}; install them (Debian: python3-dev), then "
            "run: python -m accl_py.torch.build"
        )
    return [
        f"-I{SOURCES}",
        f"-I{accl_directory() / 'include'}",
        "-isystem",
        str(torch.root / "include"),
        "-isystem",
        str(python),
    ]


def run(command: list[str]) -> None:
    """Runs one compiler command; its output is the reason of the ``BuildError`` if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [
            line for line in done.stderr.splitlines() if "error" in line
        ] or done.stderr.splitlines()
        raise BuildError(
            f"Compiling the torch part failed ({command[0]} ended with {done.returncode}): "
            + "; ".join(lines[:5])
            + f". The command was: {' '.join(command)}"
        )


def link_flags(torch: Torch, target: Path) -> list[str]:
    """What a library in ``target`` is linked with, and where it looks for libaccl at run time."""
    library = accl_directory() / "lib"
    # Relative where the two travel together, so that an installed tree may be moved.
    together = target == PACKAGE / "lib" and library == PACKAGE.parent / "lib"
    rpath = "$ORIGIN/../../lib" if together else str(library)
    return [
        f"-L{library}",
        "-laccl",
        f"-Wl,-rpath,{rpath}",
        f"-L{torch.root / 'lib'}",
        *(f"-l{name}" for name in ("torch_python", "torch_cpu", "torch", "c10")),
    ]


def build(*, force: bool = False) -> Path:
    """Builds the library for the installed torch, unless it is there, and returns its path.

    Raises ``BuildError`` with a sentence that says what is missing.
    """
    torch = installed_torch()
    built = find_built(torch)
    if built and not force:
        return built
    target = writable_directory()
    with lock(target):
        built = find_built(torch)
        if built and not force:  # another process was faster
            return built
        return _build_in(target, torch)


def _build_in(target: Path, torch: Torch) -> Path:
    logger.warning("Building the accl backend for torch %s (once, about a minute).", torch.version)
    command = [compiler(), *FLAGS, "-D_GLIBCXX_USE_CXX11_ABI=1", *include_flags(torch)]
    links = link_flags(torch, target)
    with tempfile.TemporaryDirectory(prefix="accl-torch-") as scratch:
        sources = sorted(SOURCES.glob("*.cc"))
        objects = [str(Path(scratch) / f"{source.stem}.o") for source in sources]
        jobs = [[*command, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, len(jobs))) as pool:
            list(pool.map(run, jobs))
        linked = Path(scratch) / "linked.so"
        run([command[0], "-shared", "-o", str(linked), *objects, *links])
        # Appears complete or not at all: others may be looking.
        staged = target / f".{os.getpid()}.so"
        shutil.copy2(linked, staged)
        path = target / file_name(torch)
        os.replace(staged, path)
    _remove_stale(target, torch, path)
    logger.warning("Built %s.", path)
    return path


def _remove_stale(directory: Path, torch: Torch, current: Path) -> None:
    """Libraries of the same torch and Python, but of other sources, are of no use any more."""
    stem = current.name.rsplit("-", 1)[0]
    for path in directory.glob(f"{stem}-*.so"):
        if path != current:
            path.unlink(missing_ok=True)


def main() -> int:
    """The command line. Returns 0, or 1 after printing one sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m accl_py.torch.build", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--force", action="store_true", help="build again, also where a fitting library is there"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(build(force=arguments.force))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
