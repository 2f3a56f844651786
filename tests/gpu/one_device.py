"""Lets code that takes the GPU with its rank's number run on the first GPU, whatever its rank.

torch's own suites write ``tensor.cuda(rank)``, ``device=rank`` and ``device_ids=[rank]``. Inside of
``sharing()`` each such number means GPU 0, and torch counts as many GPUs as there are ranks, so that
the suites' own conditions hold.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

FIRST = torch.device("cuda", 0)
TAKE_A_DEVICE_FIRST = {"cuda", "to"}  # methods whose first argument may be a device's number


def on_first(value: Any) -> Any:
    """The first GPU for any GPU that has a number; other things as they are."""
    if isinstance(value, torch.device):
        return FIRST if value.type == "cuda" and value.index else value
    if isinstance(value, str) and value.startswith("cuda:"):
        return str(FIRST)
    return value


def on_first_by_number(value: Any) -> Any:
    """The same where a plain number is a device, too."""
    if isinstance(value, int) and not isinstance(value, bool):
        return FIRST
    return on_first(value)


class OnFirstDevice(TorchFunctionMode):
    """Rewrites the devices in the arguments of torch's functions."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = on_first_by_number(kwargs["device"])
        changed = [on_first(argument) for argument in args]
        if getattr(func, "__name__", "") in TAKE_A_DEVICE_FIRST and len(changed) > 1:
            changed[1] = on_first_by_number(changed[1])
        return func(*changed, **kwargs)


def _first_index(original: Callable[..., int]) -> Callable[..., int]:
    def index(*arguments: Any, **named: Any) -> int:
        return min(original(*arguments, **named), 0)  # -1 is the CPU

    return index


def _barrier_on_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def barrier(*arguments: Any, device_ids: list[int] | None = None, **named: Any) -> Any:
        return original(*arguments, device_ids=device_ids and [0], **named)

    return barrier


def _load_on_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(file: Any, map_location: Any = None, **named: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {place: on_first(target) for place, target in map_location.items()}
        return original(file, on_first(map_location), **named)

    return load


@contextlib.contextmanager
def sharing(ranks: int) -> Iterator[None]:
    """For the rest of a rank's process: the functions that are replaced stay so."""
    for module in list(sys.modules.values()):
        original = vars(module).get("_get_device_index") if module else None
        if callable(original):
            module._get_device_index = _first_index(original)
    torch.cuda.device_count = lambda: ranks
    torch.load = _load_on_first(torch.load)
    barrier = _barrier_on_first(dist.barrier)
    dist.barrier = dist.distributed_c10d.barrier = barrier
    with OnFirstDevice():
        yield
