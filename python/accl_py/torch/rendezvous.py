"""torch's TCPStore for ranks that torchrun started."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

__all__ = ["tcp_store"]


def tcp_store(host: str, port: int, rank: int, size: int, seconds: float) -> Any:
    """Joins the store that torchrun's agent hosts (or hosts it on rank 0 where none does), with keys of our own."""
    from torch.distributed import PrefixStore, TCPStore

    agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        host,
        port,
        size,
        is_master=rank == 0 and not agent_hosts,
        timeout=timedelta(seconds=seconds),
        multi_tenant=True,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"accl_py/{attempt}", store)
