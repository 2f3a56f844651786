"""Sizes past what 32 bits count."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

COUNT = (1 << 31) + 8


def check_large(rank: int, size: int) -> None:
    x = torch.zeros(COUNT, dtype=torch.uint8)
    if rank == 1:
        x[1 << 20 :: 1 << 20] = 3
        x[-8:] = torch.arange(8)
    dist.broadcast(x, 1)
    assert x[-8:].tolist() == list(range(8))
    assert (x[1 << 20 :: 1 << 20] == 3).sum() == 2047


def test_large(ranks2: Ranks) -> None:
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory < 8 << 30:
        pytest.skip(f"needs 8 GiB of free memory, {memory >> 30} are free")
    ranks2.run(check_large, seconds=60)
