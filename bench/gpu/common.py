"""What the GPU benchmarks share: ranks on the GPUs at hand, timed graphs, and output."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

import pool


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the option that all have."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--json", type=Path, help="write the rows there, too")
    return made


def _serve(
    function: Callable[..., Any],
    rank: int,
    size: int,
    gpus: int,
    path: str,
    results: Any,
    more: Any,
) -> None:
    import os

    os.environ.update(pool.environment(rank, size, gpus))
    try:
        import torch

        device = torch.device("cuda", rank if gpus >= size else 0)
        torch.cuda.set_device(device)
        # Not bound to the device: torch would try to split an nccl group off this one.
        pool.join("accl", rank, size, path, device, False)
        torch.distributed.all_reduce(torch.zeros(1, device=device))  # connects
        answer = function(rank, size, **more)
        torch.distributed.destroy_process_group()
        results.put((rank, answer, None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))


def on_ranks(function: Callable[..., Any], size: int, limit: float, **more: Any) -> Any:
    """What ``function(rank, size, ...)`` returned on rank 0. Raises where a rank fails or is late."""
    import torch

    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="accl-bench-") as folder:
        path = str(Path(folder) / "store")
        gpus = torch.cuda.device_count()
        processes = [
            context.Process(target=_serve, args=(function, r, size, gpus, path, results, more))
            for r in range(size)
        ]
        for process in processes:
            process.start()
        answer = None
        try:
            for _ in processes:
                rank, value, error = results.get(timeout=limit)
                if error:
                    raise RuntimeError(f"rank {rank}: {error}")
                if rank == 0:
                    answer = value
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.terminate()
    return answer


def graph_of(call: Callable[[], None], calls: int) -> tuple[Any, Any]:
    """A captured graph of many calls, and its stream."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    return graph, stream


def replay_us(graph: Any, stream: Any) -> float:
    """Microseconds of one replay, by events.

    A replay that is not timed goes before: in it the ranks wait for who came late.
    """
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        graph.replay()
        start.record(stream)
        graph.replay()
        end.record(stream)
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def summary(values: list[float]) -> tuple[float, float]:
    """Median, and half the distance between the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, (high - low) / 2


def write(path: Path | None, rows: Any) -> None:
    """Writes the rows as JSON, where a path was given."""
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")
