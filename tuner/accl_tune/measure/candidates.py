"""What may compete in a cell: algorithm x protocol x chunk size from the schedule registry.

Choices that run exactly alike are one candidate. Whether they do is not guessed but compared: their
schedules, on every rank, transfer by transfer. So chunk sizes vanish below the chunk, inline
vanishes where every message is too long for it, and algorithms fall together where they coincide
(halving_doubling and two_shot on two ranks).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from accl_py import schedule
from accl_py.rules import protocol_words

from accl_tune.model import Candidate, Cell, Choice, Field

__all__ = ["CHUNKS", "field_of"]

CHUNKS = tuple(1 << power for power in (14, 15, 16, 17, 18, 19, 20, 22))

# docs/rules.md: messages of up to 256 bytes ride inline, larger ones go in bulk whatever the protocol.
INLINE_BYTES = 256

# Sampled ranks stand for all where there are many: plans are made for each.
_MOST_RANKS = 8


def field_of(cell: Cell, ranks: int, element_bytes: int, default: Choice) -> Field:
    """Groups all choices by what they run. default: what runs with no forced choice."""
    groups: dict[Hashable, list[Choice]] = {}
    for choice in _all_choices(cell):
        groups.setdefault(_behaviour(choice, cell, ranks, element_bytes), []).append(choice)
    own = groups.pop(_behaviour(default, cell, ranks, element_bytes), [])
    return Field(
        default=default,
        default_aliases=tuple(choice for choice in own if choice != default),
        candidates=tuple(Candidate(group[0], tuple(group[1:])) for group in groups.values()),
    )


def _all_choices(cell: Cell) -> Iterator[Choice]:
    """Simplest first, since the first of a group names it: the algorithm's own chunk size before
    explicit ones.
    """
    for chunk in (0, *CHUNKS):
        for algorithm in schedule.algorithms(cell.collective):
            if chunk == algorithm.default_chunk_bytes:
                continue
            for protocol in reversed(protocol_words("cpu")):
                yield Choice(algorithm.name, protocol, chunk)


def block_bytes(cell: Cell, ranks: int) -> int:
    """The bytes of one block as schedules count: the whole buffer, or one rank's part of it."""
    whole = cell.collective in ("all_reduce", "broadcast", "reduce")
    return cell.bytes if whole else cell.bytes // ranks


def _behaviour(choice: Choice, cell: Cell, ranks: int, element_bytes: int) -> Hashable:
    sampled = range(ranks) if ranks <= _MOST_RANKS else (0, 1, ranks // 2, ranks - 1)
    plans = [
        schedule.plan(
            choice.algorithm,
            cell.collective,
            rank,
            ranks,
            block_bytes(cell, ranks),
            element_bytes,
            chunk_bytes=choice.chunk_bytes,
        )
        for rank in sampled
    ]
    rounds = [one for plan in plans for loop in plan.loops for one in loop.rounds]
    sizes = [send.bytes for one in rounds for send in one.sends]
    longest = max(sizes, default=0)
    inline = choice.protocol == "inline" and min(sizes, default=0) <= INLINE_BYTES
    pieces = tuple(min(plan.piece_bytes, longest) for plan in plans)
    return tuple(_transfers(plan) for plan in plans), pieces, inline


def _transfers(plan: Any) -> Hashable:
    """A schedule as a value that can be compared. How far a loop moves says nothing if it runs
    once.
    """
    return tuple(
        (
            loop.repeat,
            loop.input_stride if loop.repeat > 1 else 0,
            loop.output_stride if loop.repeat > 1 else 0,
            tuple(map(_round, loop.rounds)),
        )
        for loop in plan.loops
    )


def _round(one: Any) -> Hashable:
    return (
        tuple((_place(copy.source), _place(copy.target), copy.bytes) for copy in one.copies),
        tuple((send.peer, _place(send.source), send.bytes) for send in one.sends),
        tuple((receive.peer, _place(receive.target), receive.bytes) for receive in one.receives),
        tuple(
            (tuple(step.peers), _place(step.own), _place(step.target), step.bytes, step.last)
            for step in one.reduces
        ),
    )


def _place(place: Any) -> Hashable:
    return place.buffer, place.offset
