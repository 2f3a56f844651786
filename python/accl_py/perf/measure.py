"""One rank's part: buffers, calls, checks and times of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from accl_py.communicator import Communicator
from accl_py.errors import InvalidArgument
from accl_py.perf import data
from accl_py.perf.memory import Memory, Timed
from accl_py.perf.sizes import Shape

__all__ = ["Plan", "check", "prepare"]

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
    check: bool = True


def _inputs(plan: Plan, comm: Communicator, seed: int) -> tuple[Array, Array | None]:
    """This rank's input and the right output (None where it has none)."""
    n, me = comm.size, comm.rank
    if plan.shape.method == "all_to_all_v":
        return _uneven_inputs(plan, comm, seed)
    blocks = (
        n
        if plan.shape.blocks and plan.shape.method in ("reduce_scatter", "all_to_all", "scatter")
        else 1
    )
    op = plan.op if plan.shape.reducing else "sum"
    if not plan.check:
        return data.as_array(
            data.random_values(seed, me, plan.count * blocks, op, plan.dtype), plan.dtype
        ), None
    values = [data.random_values(seed, r, plan.count * blocks, op, plan.dtype) for r in range(n)]
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
        case "all_gather" | "hypercube":
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


def prepare(
    plan: Plan, comm: Communicator, memory: Memory, seed: int, in_place: bool
) -> Timed | None:
    """The timed call; None where the collective has no such placement."""
    method = plan.shape.method
    if in_place and (method in _PEER_TO_PEER or method == "all_to_all"):
        return None
    values, right = _inputs(plan, comm, seed)
    source = memory.put(values)
    if method in _PEER_TO_PEER:
        timed = _PEER_TO_PEER[method](plan, comm, memory, source)
        timed.right = right
        return timed
    x, out, result = _placed(plan, comm, memory, source, in_place)
    arguments: dict[str, Any] = {**plan.forced, **memory.options}
    if plan.shape.reducing:
        arguments.update(op=data.OPERATIONS[plan.op], factor=data.FACTOR)
    if plan.shape.rooted:
        arguments["root"] = plan.root
    timed = _prepared(memory, comm.prepare(method, x, out, **arguments))
    original = x.copy()

    def reset() -> None:
        x[...] = original

    timed.result, timed.right, timed.reset = result, right, reset
    return timed


def _prepared(memory: Memory, call: Any) -> Timed:
    return memory.prepared(call)


def _placed(
    plan: Plan, comm: Communicator, memory: Memory, source: Any, in_place: bool
) -> tuple[Any, Any, Any]:
    """Input, output and where the result shows, as nccl-tests places them."""
    n, me, count = comm.size, comm.rank, plan.count
    is_root = me == plan.root
    own = slice(me * count, (me + 1) * count)
    match plan.shape.method:
        case "all_reduce":
            out = source if in_place else memory.zeros(len(source), source.dtype)
            return source, None if in_place else out, out
        case "reduce":
            out = source if in_place else memory.zeros(len(source), source.dtype)
            return source, None if in_place else out, out if is_root else None
        case "broadcast":
            if not is_root:
                source = memory.zeros(len(source), source.dtype)
            return source, None, source
        case "all_gather" | "gather":
            whole = memory.zeros(n * count, source.dtype)
            if in_place and (is_root or plan.shape.method == "all_gather"):
                whole[own] = source
                source = whole[own]
            shows = is_root or plan.shape.method == "all_gather"
            return source, whole if shows else None, whole if shows else None
        case "scatter" if not is_root:
            out = memory.zeros(count, source.dtype)
            return source, out, out
        case "reduce_scatter" | "scatter":
            out = source[own] if in_place else memory.zeros(count, source.dtype)
            return source, out, out
    out = memory.zeros(len(source), source.dtype)  # all_to_all
    return source, out, out


def _uneven_inputs(plan: Plan, comm: Communicator, seed: int) -> tuple[Array, Array]:
    """all_to_all_v: what this rank sends, block after block, and what it must get."""
    n, me = comm.size, comm.rank

    def block(sender: int, receiver: int) -> Array:
        count = plan.shape.pair_count(plan.count, sender, receiver, n)
        return data.random_values(seed + receiver, sender, count, "sum", plan.dtype)

    sent = np.concatenate([block(me, r) for r in range(n)])
    return data.as_array(sent, plan.dtype), data.as_array(
        np.concatenate([block(r, me) for r in range(n)]), plan.dtype
    )


def _all_to_all_v(plan: Plan, comm: Communicator, memory: Memory, source: Any) -> Timed:
    n, me = comm.size, comm.rank
    receive = [plan.shape.pair_count(plan.count, r, me, n) for r in range(n)]
    out = memory.zeros(sum(receive), source.dtype)
    call = comm.prepare(
        "all_to_all",
        source,
        out,
        send_counts=[plan.shape.pair_count(plan.count, me, r, n) for r in range(n)],
        receive_counts=receive,
        **plan.forced,
        **memory.options,
    )
    timed = _prepared(memory, call)
    timed.result = out
    return timed


def _sendrecv(plan: Plan, comm: Communicator, memory: Memory, source: Any) -> Timed:
    """As nccl-tests: to the next rank and from the one before."""
    out = memory.zeros(len(source), source.dtype)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def run() -> None:
        with comm.group(**memory.options) as group:
            group.send(source, after)
            group.recv(out, before)

    timed = memory.repeated(run)
    timed.result = out
    return timed


def _hypercube(plan: Plan, comm: Communicator, memory: Memory, source: Any) -> Timed:
    """As nccl-tests: an all-gather by exchanges with the partners at distances 1, 2, 4, ..."""
    n, me, count = comm.size, comm.rank, plan.count
    if n & (n - 1):
        raise InvalidArgument(f"hypercube needs a power of two of ranks, not {n}.")
    out = memory.zeros(n * count, source.dtype)

    def run() -> None:
        out[me * count : (me + 1) * count] = source
        distance = 1
        while distance < n:
            mine, theirs = (r // distance * distance * count for r in (me, me ^ distance))
            with comm.group(**memory.options) as group:
                group.send(out[mine : mine + distance * count], me ^ distance)
                group.recv(out[theirs : theirs + distance * count], me ^ distance)
            distance *= 2

    timed = memory.repeated(run)
    timed.result = out
    return timed


_PEER_TO_PEER = {"sendrecv": _sendrecv, "hypercube": _hypercube, "all_to_all_v": _all_to_all_v}


def check(timed: Timed, memory: Memory) -> int:
    """Runs the call once on fresh data; elements that are wrong on this rank."""
    timed.reset()
    timed.run()
    if timed.result is None or timed.right is None:
        return 0
    return data.wrong_elements(memory.get(timed.result), timed.right)
