"""Rank processes that live for many tests: starting torch with CUDA costs seconds each time.

Ranks get a GPU each where there are enough; else they share one. Then each has a ``NCCL_HOSTID`` of
its own, so that NCCL takes it for a host of its own and connects over loopback sockets.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

GROUP_TIMEOUT = timedelta(seconds=60)


def environment(rank: int, size: int, gpus: int) -> dict[str, str]:
    """What a rank's process needs before NCCL starts."""
    shared = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    if gpus >= size:
        return shared
    return {
        **shared,
        "NCCL_HOSTID": f"rank{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }


def join(backend: str, rank: int, size: int, path: str, device: Any, eager: bool) -> None:
    """Makes the default group. ``accl`` raises on faults, so that tests can look at them."""
    import torch.distributed as dist

    options = None
    if backend == "accl":
        import accl_py.torch

        options = accl_py.torch.Options()
        options.on_fault = "raise"
    dist.init_process_group(
        backend,
        init_method=f"file://{path}",
        rank=rank,
        world_size=size,
        timeout=GROUP_TIMEOUT,
        pg_options=options,
        device_id=device if eager else None,
    )


def _serve(
    rank: int, size: int, gpus: int, backend: str, path: str, eager: bool, jobs: Any, results: Any
) -> None:
    os.environ.update(environment(rank, size, gpus))
    # A rank that is told to end says where it was.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    try:
        import torch

        device = torch.device("cuda", rank if gpus >= size else 0)
        torch.cuda.set_device(device)
        join(backend, rank, size, path, device, eager)
        results.put((rank, None))
        while True:
            job = jobs.get()
            if job is None:
                break
            module, name, arguments = job
            function = getattr(importlib.import_module(module), name)
            function(rank, size, **arguments)
            torch.cuda.synchronize()
            results.put((rank, None))
        torch.distributed.destroy_process_group()
        results.put((rank, None))
    except BaseException:
        results.put((rank, traceback.format_exc()))


class Failed(AssertionError):
    """A rank raised, or did not answer; the message has the tracebacks."""


class Pool:
    """``size`` ranks of one default group, which run functions of importable modules."""

    def __init__(self, size: int, backend: str = "accl", *, eager: bool = True) -> None:
        import torch

        self.size = size
        self.broken = False
        self._folder = tempfile.TemporaryDirectory(prefix="accl-gpu-")
        context = multiprocessing.get_context("spawn")
        self._jobs = [context.SimpleQueue() for _ in range(size)]
        self._results: Any = context.Queue()
        path = str(Path(self._folder.name) / "store")
        gpus = torch.cuda.device_count()
        self._processes = [
            context.Process(
                target=_serve,
                args=(r, size, gpus, backend, path, eager, self._jobs[r], self._results),
                daemon=True,
            )
            for r in range(size)
        ]
        for process in self._processes:
            process.start()
        self._collect(120)

    def run(self, function: Callable[..., None], *, limit: float = 60, **arguments: Any) -> None:
        """Runs ``function(rank, size, **arguments)`` on every rank; raises ``Failed``."""
        if self.broken:
            raise Failed("The ranks are gone: an earlier call failed.")
        for jobs in self._jobs:
            jobs.put((function.__module__, function.__name__, arguments))
        self._collect(limit)

    def _collect(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        missing = set(range(self.size))
        errors: dict[int, str] = {}
        while missing:
            # One rank's error leaves the others waiting: they get a moment to say theirs.
            left = deadline - time.monotonic() if not errors else min(2.0, limit)
            try:
                rank, error = self._results.get(timeout=max(left, 0.01))
            except queue.Empty:
                break
            missing.discard(rank)
            if error:
                errors[rank] = error
        if missing or errors:
            self.kill()
            lines = [f"rank {rank}: {error}" for rank, error in sorted(errors.items())]
            if missing and not errors:
                lines.append(f"ranks {sorted(missing)} did not answer within {limit} s")
            raise Failed("\n".join(lines))

    def kill(self) -> None:
        """Ends the ranks, however they are."""
        self.broken = True
        for process in self._processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)

    def close(self) -> None:
        """Lets the ranks leave; raises ``Failed`` where one cannot."""
        if self.broken:
            return
        for jobs in self._jobs:
            jobs.put(None)
        self._collect(60)
        for process in self._processes:
            process.join(30)
            if process.exitcode != 0:
                raise Failed(f"A rank ended with {process.exitcode}.")


if __name__ == "__main__":
    sys.exit("This module is imported by the tests.")
