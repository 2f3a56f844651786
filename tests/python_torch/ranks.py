"""Ranks for tests: processes that stay, and run one check after the other inside the same process
group.

Importing torch costs a second or two for each process, so a process for each test would take
minutes. A check is a plain module-level function ``check(rank, size, *arguments)``; it raises to
fail. When a check fails or hangs on any rank, all ranks are ended, and the next check gets fresh
ones.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import multiprocessing as mp
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

GROUP_TIMEOUT = timedelta(seconds=20)
GRACE_SECONDS = 2.0  # after one rank has failed, for the others to say what they saw

Check = Callable[..., Any]


class CheckFailed(AssertionError):
    """A check failed; the message holds what every rank says."""


def refused(
    call: Callable[[], object], *words: str, error: type[BaseException] = RuntimeError
) -> str:
    """Asserts that ``call`` raises ``error`` with all ``words`` in its message; returns the
    message.
    """
    try:
        call()
    except error as problem:
        for word in words:
            assert word in str(problem), f"{word!r} is not in: {problem}"
        return str(problem)
    raise AssertionError(f"accepted; expected {error.__name__} with {words}")


class Ranks:
    """``size`` processes in one process group of ``backend``."""

    def __init__(self, size: int, backend: str = "accl") -> None:
        self.size = size
        self.backend = backend
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._generation = 0
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, check: Check, *arguments: Any, seconds: float = 40) -> list[Any]:
        """Runs ``check(rank, size, *arguments)`` on all ranks; returns what each returns."""
        answers = self.answers(check, *arguments, seconds=seconds)
        failed = {rank: text for rank, (good, text) in answers.items() if not good}
        silent = [rank for rank in range(self.size) if rank not in answers]
        if failed or silent:
            for rank in silent:  # each writes where it stands to stderr
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
            time.sleep(0.2)
            self.stop()
            told = "".join(f"\n--- rank {rank}:\n{text}" for rank, text in failed.items())
            raise CheckFailed(
                f"{check.__name__}: failed on {sorted(failed)}, no answer from {silent}{told}"
            )
        return [answers[rank][1] for rank in range(self.size)]

    def answers(
        self, check: Check, *arguments: Any, seconds: float = 40
    ) -> dict[int, tuple[bool, Any]]:
        """Like ``run``, for checks that end a rank: by rank, True and what it returned, or False
        and why.
        """
        if not self._processes:
            self._start()
        order = (check.__code__.co_filename, check.__name__, arguments)
        try:
            for pipe in self._pipes:
                pipe.send(order)
            return self._collect(time.monotonic() + seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the processes, kindly where they listen."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                pass
        for process in self._processes:
            process.join(3)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self._generation += 1
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            where = (self._store.port, self._generation)
            process = context.Process(
                target=_serve, args=(rank, self.size, self.backend, where, theirs)
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _collect(self, deadline: float) -> dict[int, tuple[bool, Any]]:
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < self.size:
            left = deadline - time.monotonic()
            open_pipes = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            ready = wait(open_pipes, timeout=max(left, 0))
            if not ready:
                return answers
            for pipe in ready:
                rank = self._pipes.index(pipe)
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, OSError):
                    answers[rank] = (False, "the process died")
                if not answers[rank][0]:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        return answers


class _NoHelper:
    """Stands where torch has gloo: the suites must not pass because another backend did the work."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a gloo process group was made")


def _serve(rank: int, size: int, backend: str, where: tuple[int, int], pipe: Connection) -> None:
    import accl_py.torch  # noqa: F401  # registers; works also where the package is not installed

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch renames calls from version to version
    if backend == "accl":
        dist.distributed_c10d.ProcessGroupGloo = _NoHelper
    port, generation = where
    store = dist.PrefixStore(
        f"generation-{generation}", dist.TCPStore("127.0.0.1", port, is_master=False)
    )
    modules: dict[str, ModuleType] = {}
    started = False
    while True:
        try:
            order = pipe.recv()
        except EOFError:  # the tests are gone
            break
        if order is None:
            break
        file, name, arguments = order
        try:
            if not started:
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=size, timeout=GROUP_TIMEOUT
                )
                started = True
            result = getattr(_module(modules, file), name)(rank, size, *arguments)
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        else:
            pipe.send((True, result))
    os._exit(0)  # a broken group may not keep the process


def _module(modules: dict[str, ModuleType], file: str) -> ModuleType:
    if file not in modules:
        folder = str(Path(file).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert spec is not None and spec.loader is not None
        modules[file] = importlib.util.module_from_spec(spec)
        sys.modules[Path(file).stem] = modules[file]
        spec.loader.exec_module(modules[file])
    return modules[file]
