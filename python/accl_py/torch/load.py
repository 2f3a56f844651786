"""Loads the compiled part of the torch backend; builds it first where it is missing."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from accl_py.torch import build

if TYPE_CHECKING:
    from accl_py.torch import _backend


class Compiled(Protocol):
    """What the compiled module offers."""

    BUILT_FOR_TORCH: str
    Options: type[_backend.Options]
    ProcessGroupACCL: type[_backend.ProcessGroupACCL]
    WorkACCL: type[_backend.WorkACCL]


_NAME = "accl_py.torch._backend"
_lock = threading.Lock()


def load_backend() -> Compiled:
    """The module with ``Options``, ``ProcessGroupACCL`` and ``WorkACCL``.

    Raises ``ImportError`` (``build.BuildError``) with a sentence where it is not built for this
    torch and cannot be.
    """
    with _lock:
        loaded = sys.modules.get(_NAME)
        if loaded is None:
            loaded = load_file(library())
            sys.modules[_NAME] = loaded
    return cast(Compiled, loaded)


def library() -> Path:
    """The library for the installed torch, built now if there is none."""
    torch = build.installed_torch()
    found = build.find_built(torch)
    if found:
        return found
    try:
        return build.build()
    except build.BuildError as error:
        others = [version for version in built_for() if version != torch.version]
        if not others:
            raise
        raise build.BuildError(
            f"The accl backend is built for torch {', '.join(others)}, but torch {torch.version} "
            "is installed; rebuild it with: python -m accl_py.torch.build "
            f"(building it now failed: {error})"
        ) from error


def built_for() -> list[str]:
    """The torch versions for which a library lies around, of whatever sources."""
    names = [
        path.name
        for directory in build.directories()
        for path in directory.glob(f"{build.STEM}-*.so")
    ]
    return sorted({name.split("-")[1] for name in names})


def load_file(path: Path) -> ModuleType:
    """Loads one library; refuses one for another torch before its symbols are looked up."""
    torch = build.installed_torch()
    built = path.name.split("-")[1] if path.name.startswith(f"{build.STEM}-") else torch.version
    if built != torch.version:
        raise refusal(path, built, torch.version)
    importlib.import_module("torch._C._distributed_c10d")  # base classes, and torch's libraries
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    if torch.version != module.BUILT_FOR_TORCH:
        raise refusal(path, module.BUILT_FOR_TORCH, torch.version)
    return module


def refusal(path: Path, built: str, installed: str) -> build.BuildError:
    """The error for a library that was built for another torch."""
    return build.BuildError(
        f"{path.name} is built for torch {built}, but torch {installed} is installed; rebuild it "
        "with: python -m accl_py.torch.build"
    )
