"""One rank's part: buffers, calls, checks and times of one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from accl_py.communicator import Communicator
from accl_py.perf import data
from accl_py.perf.sizes import Shape

__all__ = ["Plan", "Timed", "check", "prepare"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured at one size."""

    shape: Shape
    count: int
    dtype: str
    op: str
    root: int
    forced: dict[str, Any]


@dataclass
class Timed:
    """A call that can be timed. run() makes it once; time(n) gives seconds of n calls; result is what it wrote."""

    run: Callable[[], Any]
    time: Callable[[int], float]
    result: Array | None
    right: Array | None
    reset: Callable[[], None]


def _inputs(plan: Plan, comm: Communicator, seed: int) -> tuple[Array, Array | None]:
    """This rank's input and the right output (None where it has none)."""
    n, me = comm.size, comm.rank
    blocks = n if plan.shape.blocks and plan.shape.method in ("reduce_scatter", "all_to_all", "scatter") else 1
    op = plan.op if plan.shape.reducing else "sum"
    values = [data.random_values(seed, r, plan.count * blocks, op) for r in range(n)]
    mine = slice(me * plan.count, (me + 1) * plan.count)
    is_root = me == plan.root
    right: Array | None
    match plan.shape.method:
        case "all_reduce":
            right = data.reduced(values, op, plan.dtype)
        case "reduce":
            right = data.reduced(values, op, plan.dtype) if is_root else None
        case "reduce_scatter":
            right = data.reduced(values, op, plan.dtype)[mine]
        case "broadcast":
            right = data.as_array(values[plan.root], plan.dtype)
        case "all_gather":
            right = data.as_array(np.concatenate(values), plan.dtype)
        case "gather":
            right = data.as_array(np.concatenate(values), plan.dtype) if is_root else None
        case "scatter":
            right = data.as_array(values[plan.root][mine], plan.dtype)
        case "all_to_all":
            right = data.as_array(np.concatenate([v[mine] for v in values]), plan.dtype)
        case _:  # sendrecv: from the rank before
            right = data.as_array(values[(me - 1) % n], plan.dtype)
    return data.as_array(values[me], plan.dtype), right


def prepare(plan: Plan, comm: Communicator, seed: int, in_place: bool) -> Timed | None:
    """The timed call; None where the collective has no such placement."""
    source, right = _inputs(plan, comm, seed)
    method = plan.shape.method
    if method == "sendrecv":
        return None if in_place else _sendrecv(plan, comm, source, right)
    if in_place and method == "all_to_all":
        return None
    x, out, result = _placed(plan, comm, source, right, in_place)
    arguments: dict[str, Any] = dict(plan.forced)
    if plan.shape.reducing:
        arguments.update(op=data.OPERATIONS[plan.op], factor=data.FACTOR)
    if plan.shape.rooted:
        arguments["root"] = plan.root
    call = comm.prepare(method, x, out, **arguments)
    original = x.copy()

    def reset() -> None:
        x[...] = original

    return Timed(call.run, call.time, result, right, reset)


def _placed(
    plan: Plan, comm: Communicator, source: Array, right: Array | None, in_place: bool
) -> tuple[Array, Array | None, Array | None]:
    """Input, output and where the result shows, as nccl-tests places them."""
    n, me, count = comm.size, comm.rank, plan.count
    is_root = me == plan.root
    own = slice(me * count, (me + 1) * count)
    match plan.shape.method:
        case "all_reduce":
            out = source if in_place else np.zeros_like(source)
            return source, None if in_place else out, out
        case "reduce":
            out = source if in_place else np.zeros_like(source)
            return source, None if in_place else out, out if is_root else None
        case "broadcast":
            if not is_root:
                source = np.zeros_like(source)
            return source, None, source
        case "all_gather" | "gather":
            whole = np.zeros(n * count, source.dtype)
            if in_place and (is_root or plan.shape.method == "all_gather"):
                whole[own] = source
                source = whole[own]
            shows = is_root or plan.shape.method == "all_gather"
            return source, whole if shows else None, whole if shows else None
        case "scatter" if not is_root:
            out = np.zeros(count, source.dtype)
            return source, out, out
        case "reduce_scatter" | "scatter":
            out = source[own] if in_place else np.zeros(count, source.dtype)
            return source, out, out
    assert right is not None
    out = np.zeros_like(right)
    return source, out, out


def _sendrecv(plan: Plan, comm: Communicator, source: Array, right: Array | None) -> Timed:
    import time

    out = np.zeros_like(source)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def run() -> None:
        with comm.group() as group:
            group.send(source, after)
            group.recv(out, before)

    def timed(iterations: int) -> float:
        begin = time.perf_counter()
        for _ in range(iterations):
            run()
        return time.perf_counter() - begin

    return Timed(run, timed, out, right, lambda: None)


def check(timed: Timed) -> int:
    """Runs the call once on fresh data; elements that are wrong on this rank."""
    timed.reset()
    timed.run()
    if timed.result is None or timed.right is None:
        return 0
    return data.wrong_elements(timed.result, timed.right)
