"""What the measurements depend on: the machine and the versions."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import accl_py
import numpy as np

import accl_tune

__all__ = ["describe", "differences", "machine", "versions"]


def machine() -> dict[str, Any]:
    """CPU model, cores, kernel and frequency governor (None where the machine does not say)."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()}",
        "governor": _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
    }


def versions() -> dict[str, Any]:
    """Versions, and a digest of the engine's library: another build may have other times."""
    return {
        "accl_tune": accl_tune.__version__,
        "accl_py": accl_py.__version__,
        "library": _library_digest(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def describe(facts: dict[str, Any]) -> str:
    """One line for people."""
    governor = f", governor {facts['governor']}" if facts["governor"] else ""
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['kernel']}{governor}"


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """`kernel was 6.1 and is 6.2`, for each key whose values differ."""
    keys = dict.fromkeys([*old, *new])
    return [
        f"{key} was {old.get(key)} and is {new.get(key)}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _cpu_model() -> str:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _library_digest() -> str | None:
    library = Path(str(accl_py.__file__)).parent / "lib" / "libaccl.so"
    try:
        return hashlib.sha256(library.read_bytes()).hexdigest()[:12]
    except OSError:
        return None
