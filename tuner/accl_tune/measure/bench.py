"""What every rank does: executes the jobs that rank 0 broadcasts, in lockstep.

A job is a small dict that travels as JSON through the very communicator that is measured. Its
result is a vector of numbers, the maximum over the ranks of each. If the communicator ends (a
candidate hung, or its data disagreed), all ranks make a new one and the next job is taken there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from accl_py import Communicator, PreparedCall, PreparedDeviceCall, Rules
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
        self._reconnected = 0
        self._memory = Memory()
        self._measured: dict[str, Communicator] = {}  # "default", and "rules" once there are some
        self._rules: Rules | None = None
        self.at = -1  # which choice of the job is being run
        self.refusal = ""
        self.reported: dict[str, Any] = {}
        self.control = connect("tune-control-0", Rules.defaults())

    # ---- the job channel ----

    def lead(self, job: Job) -> list[float]:
        """On rank 0: has every rank execute a job; returns its result."""
        text = np.frombuffer(json.dumps(job).encode(), np.uint8).copy()
        self.control.broadcast(np.array([len(text)], np.int64))
        self.control.broadcast(text)
        return self._execute(job)

    def serve(self, leave: Callable[[], bool] = lambda: False) -> None:
        """On the others: executes jobs until told to stop. Raises AcclError where no new
        communicator can be made, or where one has ended and `leave` says that none is wanted.
        """
        while True:
            try:
                job = self._receive()
                if job["do"] == "stop":
                    return
                self._execute(job)
            except AcclError:
                if leave():
                    raise
                self.reconnect()

    def _receive(self) -> Job:
        length = np.zeros(1, np.int64)
        self.control.broadcast(length)
        text = np.zeros(int(length[0]), np.uint8)
        self.control.broadcast(text)
        job: Job = json.loads(text.tobytes())
        return job

    def reconnect(self) -> None:
        """Leaves the communicators that have ended and makes a new channel; every rank does so.

        What is measured is made anew by the next "renew".
        """
        self.abort()
        self._measured = {}
        self._reconnected += 1
        self.control = self._connect(f"tune-control-{self._reconnected}", Rules.defaults())

    def _all(self) -> list[Communicator]:
        return [*self._measured.values(), self.control]

    def abort(self) -> None:
        """Ends the communicators, for all ranks."""
        for communicator in self._all():
            communicator.abort("a candidate failed, or accl-tune was interrupted")

    def close(self) -> None:
        """Leaves."""
        for communicator in self._all():
            with suppress(AbortedError, PeerError):  # it has ended already
                communicator.shutdown()

    # ---- the jobs ----

    def _execute(self, job: Job) -> list[float]:
        actions: dict[str, Callable[[Job], Sequence[float]]] = {
            "check": self._check,
            "time": self._time,
            "run": self._run_once,
            "use": self._use,
            "renew": self._renew,
            "stop": lambda _: (),
        }
        result = np.array([0.0, *actions[job["do"]](job)])
        if job["do"] != "stop":
            self.control.all_reduce(result, op="max")
        return [float(value) for value in result[1:]]

    def _use(self, job: Job) -> Sequence[float]:
        """Takes the rules that the second communicator obeys, from the next "renew" on."""
        self._rules = Rules.parse(job["text"], job["name"])
        return ()

    def _renew(self, job: Job) -> Sequence[float]:
        """New communicators and new buffers: times depend on how memory happened to fall, by up to
        a tenth.
        """
        for communicator in self._measured.values():
            communicator.shutdown()
        self._measured = {}
        self._memory = Memory()
        for kind in job["order"]:
            rules = self._rules if kind == "rules" else Rules.defaults()
            if rules is not None:
                self._measured[kind] = self._connect(f"tune-{kind}-{job['number']}", rules)
        return ()

    def _buffers(self, job: Job) -> Buffers:
        name, size = job["cell"]
        cell = Cell(name, size)
        here = self.control
        return Buffers(self._memory, cell, here.rank, here.size, dtype_of(job["dtype"]))

    def prepare(
        self, job: Job, buffers: Buffers, choice: Sequence[Any]
    ) -> PreparedCall | PreparedDeviceCall:
        """A call with a choice of a job: [] the default, ["rules"] what the rules say, else what is
        forced.
        """
        options: dict[str, Any] = {"timeout": job["timeout"]}
        communicator = self._measured["rules" if list(choice) == ["rules"] else "default"]
        if len(choice) > 1:
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
                self.control.barrier()
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
            self.control.barrier()
            calls[self.at].time(1 + iterations // 8)
            self.control.barrier()
            result.append(calls[self.at].time(iterations))
        return result

    def _run_once(self, job: Job) -> Sequence[float]:
        """Makes one call; `reported` then has what the executor really did on this rank."""
        self.at = 0
        self.reported = self.prepare(job, self._buffers(job), job["choices"][0]).run()
        return ()
