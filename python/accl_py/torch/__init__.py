"""The torch.distributed backend ``accl``.

Importing this package registers the backend; with ACCL-N installed, ``import torch`` does that by
itself:

    import torch.distributed as dist
    dist.init_process_group("accl")

The compiled part is built for one torch version (``python -m accl_py.torch.build``, or by itself on
first use) and loaded when the first group is made. ``Options`` and ``ProcessGroupACCL`` load it
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accl_py.torch import register as _register

if TYPE_CHECKING:
    from accl_py.torch._backend import Options, ProcessGroupACCL, WorkACCL

__all__ = ["Options", "ProcessGroupACCL", "WorkACCL"]

_register.register()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from accl_py.torch.load import load_backend

    return getattr(load_backend(), name)
