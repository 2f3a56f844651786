"""Ranks that die, sleep or abort: each case is a program of its own, without MPS, since a client of
MPS that is killed takes the others with it."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pool

CUDA = "cuda"
SHORT = timedelta(seconds=4)


def _run(
    function: Callable[[int, int], str], rank: int, size: int, gpus: int, path: str, results: Any
) -> None:
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        os.environ.pop(name, None)
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(Path(path).parent / "no-mps")
    os.environ.update(pool.environment(rank, size, gpus))
    try:
        import torch

        torch.cuda.set_device(rank if gpus >= size else 0)
        pool.join("accl", rank, size, path, torch.device(CUDA, torch.cuda.current_device()), True)
        results.put((rank, function(rank, size)))
    except BaseException:
        results.put((rank, "unexpected: " + traceback.format_exc()))
    results.close()
    results.join_thread()
    os._exit(0)  # what a hanging GPU leaves would keep the interpreter


def outcomes(
    function: Callable[[int, int], str],
    size: int,
    *,
    silent: tuple[int, ...] = (),
    limit: float = 60,
) -> tuple[dict[int, str], list[int | None]]:
    """Runs the function on ``size`` ranks; what each returned (but the silent ones), and how each
    process ended."""
    import torch

    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="accl-gpu-") as folder:
        path = str(Path(folder) / "store")
        arguments = (size, torch.cuda.device_count(), path, results)
        processes = [
            context.Process(target=_run, args=(function, r, *arguments)) for r in range(size)
        ]
        for process in processes:
            process.start()
        said: dict[int, str] = {}
        deadline = time.monotonic() + limit
        while len(said) < size - len(silent) and time.monotonic() < deadline:
            try:
                rank, text = results.get(timeout=0.5)
                said[rank] = text
            except queue.Empty:
                pass
        for process in processes:
            process.join(max(1.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        return said, [process.exitcode for process in processes]


def backend() -> Any:
    import torch
    import torch.distributed as dist

    return dist.group.WORLD._get_backend(torch.device(CUDA))


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "no error"


def absent(rank: int, size: int) -> str:
    """Rank 1 does not come to the second call."""
    import torch
    import torch.distributed as dist

    box = torch.ones(1_000_000, device=CUDA)
    dist.all_reduce(box)
    dist.barrier()
    backend()._set_default_timeout(SHORT)
    if rank == 1:
        time.sleep(12)
        return "slept"
    start = time.monotonic()
    work = dist.all_reduce(box, async_op=True)
    text = error_of(lambda: work.wait(timedelta(seconds=30)))
    after = error_of(lambda: dist.all_reduce(box))
    return f"{time.monotonic() - start:.1f} s|{text}|{after}"


def absent_from_kernel(rank: int, size: int) -> str:
    """The same for a call of our own kernels."""
    import torch
    import torch.distributed as dist

    box = torch.ones(8, device=CUDA)
    dist.all_reduce(box)
    dist.barrier()
    backend()._set_default_timeout(SHORT)
    if rank == 1:
        time.sleep(12)
        return "slept"
    work = dist.all_reduce(box, async_op=True)
    text = error_of(lambda: work.wait(timedelta(seconds=30)))
    torch.cuda.synchronize()  # the kernel has ended
    return text


def killed(rank: int, size: int) -> str:
    """Rank 1 is killed while the others wait for it."""
    import torch
    import torch.distributed as dist

    box = torch.ones(1_000_000, device=CUDA)
    dist.all_reduce(box)
    dist.barrier()
    backend()._set_default_timeout(timedelta(seconds=10))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    work = dist.all_reduce(box, async_op=True)
    text = error_of(lambda: work.wait(timedelta(seconds=40)))
    return f"{time.monotonic() - start:.1f} s|{text}"


def aborts(rank: int, size: int) -> str:
    """Three groups that hang are aborted one after the other."""
    import torch
    import torch.distributed as dist

    groups = [dist.new_group(list(range(size)), backend="accl") for _ in range(3)]
    box = torch.ones(1_000_000, device=CUDA)
    for group in groups:
        dist.all_reduce(box, group=group)
    dist.barrier()
    if rank == 1:
        time.sleep(8)
        texts = [error_of(lambda g=g: dist.all_reduce(box, group=g)) for g in groups]
        return "|".join(texts)
    streams = [torch.cuda.Stream() for _ in groups]
    for group, stream in zip(groups, streams, strict=True):
        with torch.cuda.stream(stream):
            dist.all_reduce(box.clone(), group=group)
    start = time.monotonic()
    for group in groups:
        group._get_backend(torch.device(CUDA)).abort()
    torch.cuda.synchronize()  # their kernels have ended
    spent = time.monotonic() - start
    return f"{spent:.2f}|" + error_of(lambda: dist.all_reduce(box, group=groups[0]))


def leaving(rank: int, size: int) -> str:
    """Groups are destroyed in different orders, and at different times."""
    import torch
    import torch.distributed as dist

    groups = [dist.new_group(list(range(size)), backend="accl") for _ in range(3)]
    box = torch.ones(1000, device=CUDA)
    for group in groups:
        dist.all_reduce(box, group=group)
    torch.cuda.synchronize()
    start = time.monotonic()
    for group in groups if rank % 2 else groups[::-1]:
        time.sleep(0.2 * rank)
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    return f"{time.monotonic() - start:.2f}"


def ends_the_process(rank: int, size: int) -> str:
    """on_fault="exit": nobody asks, and the process ends before it works on missing data."""
    import accl_py.torch
    import torch
    import torch.distributed as dist

    options = accl_py.torch.Options(timeout=SHORT)
    assert options.on_fault == "exit"
    group = dist.new_group(list(range(size)), backend="accl", pg_options=options, timeout=SHORT)
    box = torch.ones(1_000_000, device=CUDA)
    dist.all_reduce(box, group=group)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(30)
        return "slept"
    dist.all_reduce(box, group=group)
    torch.cuda.synchronize()  # never returns
    return "went on"
