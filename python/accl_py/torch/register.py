"""Makes the name ``accl`` known to torch.distributed.

Called through ``accl_torch_entry`` by two groups of entry points: ``torch.backends``, which torch
up to 2.13 calls at the end of every ``import torch``, and ``torch.distributed.backends``, which
torch 2.14 and later calls when the backend is first asked for. The compiled part is left alone
until a group is made.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accl_py.torch._backend import ProcessGroupACCL

logger = logging.getLogger("accl_py.torch")

DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Registers the backend, once. Never raises."""
    try:
        _register()
    except Exception:
        logger.warning(
            "The accl backend could not be registered with torch.distributed.", exc_info=True
        )


def _register() -> None:
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "ACCL"):
        dist.Backend.register_backend("accl", _create, extended_api=True, devices=list(DEVICES))


def _create(group: Any, pg_options: Any) -> ProcessGroupACCL:
    """Makes the backend of one group; torch calls it on each member.

    ``group`` is torch's ``_DistributedBackendOptions``; ``pg_options`` what the user gave to
    ``init_process_group`` or ``new_group``: None, or an ``accl_py.torch.Options``. Raises
    ``TypeError`` for other options, ``RuntimeError`` where the ranks do not find each other, and
    ``ImportError`` where the compiled part cannot be had.
    """
    from accl_py.torch.load import load_backend

    backend = load_backend()
    if pg_options is None:
        options = backend.Options()
    elif isinstance(pg_options, backend.Options):
        options = pg_options.__copy__()
    else:
        raise TypeError(
            f"pg_options is a {type(pg_options).__name__}, but the accl backend takes an "
            "accl_py.torch.Options or None."
        )
    options.timeout = group.timeout
    options.group_name = group.group_id
    options.global_ranks_in_group = group.global_ranks_in_group
    return backend.ProcessGroupACCL(group.store, group.group_rank, group.group_size, options)
