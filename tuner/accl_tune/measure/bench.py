"""What every rank does: executes the jobs that rank 0 broadcasts, in lockstep.

A job is a small dict that travels as JSON through the very communicator that is measured. Its
result is a vector of numbers, the maximum over the ranks of each. If the communicator ends (a
candidate hung, or its data disagreed), all ranks make a new one and the next job is taken there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from accl_py import Communicator, PreparedCall, Rules
from accl_py.errors import AbortedError, AcclError, InvalidArgument, PeerError

from accl_tune.measure.data import Buffers, Memory, dtype_of
from accl_tune.model import Cell

__all__ = ["Bench", "Connect", "Job"]

Job = dict[str, Any]


class Connect(Protocol):
    """Makes a communicator of all ranks; they call it with the same arguments."""

    def __call__(self, name: str, rules: Rules) -> Communicator:
        """name: one that was not used before."""


class Bench:
    """One rank's side. `refusal`: what the engine said of the last choice that it refused on this
    rank.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._generation = 0
        self._memory = Memory()
        self._tuned: Communicator | None = None
        self._tuned_rules: Rules | None = None
        self.at = -1  # which choice of the job is being run
        self.refusal = ""
        self.reported: dict[str, Any] = {}
        self.communicator = self._new("default", Rules.defaults())

    def _new(self, kind: str, rules: Rules) -> Communicator:
        return self._connect(f"tune-{kind}-{self._generation}", rules)

    # ---- the job channel ----

    def lead(self, job: Job) -> list[float]:
        """On rank 0: has every rank execute a job; returns its result."""
        text = np.frombuffer(json.dumps(job).encode(), np.uint8).copy()
        self.communicator.broadcast(np.array([len(text)], np.int64))
        self.communicator.broadcast(text)
        return self._execute(job)

    def serve(self) -> None:
        """On the others: executes jobs until told to stop. Raises AcclError where no new
        communicator can be made.
        """
        while True:
            try:
                job = self._receive()
                if job["do"] == "stop":
                    return
                self._execute(job)
            except AcclError:
                self.reconnect()

    def _receive(self) -> Job:
        length = np.zeros(1, np.int64)
        self.communicator.broadcast(length)
        text = np.zeros(int(length[0]), np.uint8)
        self.communicator.broadcast(text)
        job: Job = json.loads(text.tobytes())
        return job

    def reconnect(self) -> None:
        """Leaves a communicator that has ended and makes the next; every rank does so."""
        self.abort()
        self._generation += 1
        self.communicator = self._new("default", Rules.defaults())
        if self._tuned_rules is not None:
            self._tuned = self._new("tuned", self._tuned_rules)

    def abort(self) -> None:
        """Ends the communicators, for all ranks."""
        for communicator in (self.communicator, self._tuned):
            if communicator is not None:
                communicator.abort("a candidate failed, or accl-tune was interrupted")

    def close(self) -> None:
        """Leaves."""
        for communicator in (self._tuned, self.communicator):
            if communicator is None:
                continue
            try:
                communicator.shutdown()
            except (AbortedError, PeerError):
                pass  # it has ended already

    # ---- the jobs ----

    def _execute(self, job: Job) -> list[float]:
        actions: dict[str, Callable[[Job], Sequence[float]]] = {
            "check": self._check,
            "time": self._time,
            "run": self._run_once,
            "use": self._use,
            "stop": lambda _: (),
        }
        result = np.array([0.0, *actions[job["do"]](job)])
        if job["do"] != "stop":
            self.communicator.all_reduce(result, op="max")
        return [float(value) for value in result[1:]]

    def _use(self, job: Job) -> Sequence[float]:
        """Makes the second communicator, which obeys rules."""
        self._tuned_rules = Rules.parse(job["text"], job["name"])
        self._tuned = self._new("tuned", self._tuned_rules)
        return ()

    def _buffers(self, job: Job) -> Buffers:
        name, size = job["cell"]
        cell = Cell(name, size)
        own = self.communicator
        return Buffers(self._memory, cell, own.rank, own.size, dtype_of(job["dtype"]))

    def prepare(self, job: Job, buffers: Buffers, choice: Sequence[Any]) -> PreparedCall:
        """A call with a choice of a job: [] the default, ["rules"] what the rules say, else what is
        forced.
        """
        options: dict[str, Any] = {"timeout": job["timeout"]}
        communicator = self.communicator
        if list(choice) == ["rules"]:
            assert self._tuned is not None
            communicator = self._tuned
        elif choice:
            options.update(algorithm=choice[0], protocol=choice[1], chunk_bytes=choice[2] or None)
        x, out = buffers.x, buffers.out
        if buffers.cell.collective == "broadcast":
            return communicator.prepare("broadcast", x, **options)
        if buffers.cell.collective == "reduce" and out is None:
            return communicator.prepare("reduce", x, **options)
        return communicator.prepare(buffers.cell.collective, x, out, **options)

    def _check(self, job: Job) -> Sequence[float]:
        """The number of wrong elements of each choice, over two calls; inf where the engine refuses
        it.
        """
        buffers = self._buffers(job)
        expected = buffers.expected()
        buffers.fill()
        result = []
        for self.at, choice in enumerate(job["choices"]):
            buffers.poison()
            try:
                prepared = self.prepare(job, buffers, choice)
                self.communicator.barrier()
                prepared.run()
                prepared.run()
            except InvalidArgument as error:  # the same on every rank, before anything is sent
                self.refusal = str(error)
                result.append(float("inf"))
                continue
            wrong = buffers.wrong(expected)
            if wrong:
                buffers.fill()
            result.append(float(wrong))
        return result

    def _time(self, job: Job) -> Sequence[float]:
        """Seconds of a batch of each entry of `order`, which counts the choices."""
        buffers = self._buffers(job)
        calls = [self.prepare(job, buffers, choice) for choice in job["choices"]]
        iterations = job["iterations"]
        result = []
        for self.at in job["order"]:
            self.communicator.barrier()
            calls[self.at].time(1 + iterations // 8)
            self.communicator.barrier()
            result.append(calls[self.at].time(iterations))
        return result

    def _run_once(self, job: Job) -> Sequence[float]:
        """Makes one call; `reported` then has what the executor really did on this rank."""
        self.at = 0
        self.reported = self.prepare(job, self._buffers(job), job["choices"][0]).run()
        return ()
