"""What torch's entry points call to make the backend name ``accl`` known.

Torch up to 2.13 calls this at the end of every ``import torch`` in every program of the
environment. So it lies outside of ``accl_py``: an ACCL-N that cannot be imported (a library is
missing, numpy is broken) costs a warning, and not everybody's ``import torch``.
"""

from __future__ import annotations

import logging

__all__ = ["register"]


def register() -> None:
    """Registers the backend, once. Never raises."""
    try:
        from accl_py.torch import register as hook

        hook.register()
    except Exception:
        logging.getLogger("accl_py.torch").warning(
            "ACCL-N cannot be imported, so torch.distributed does not know the backend accl.",
            exc_info=True,
        )
