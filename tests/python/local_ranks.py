"""Ranks for tests: as threads over a HashStore, and as processes over a FileStore.

Each run has a hard limit, and a failure tells what every rank says.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import accl_py

GRACE_SECONDS = 3.0  # after one rank has failed, for the others to say what they saw

_names = (f"tests {number}" for number in itertools.count())


class RanksFailed(AssertionError):
    """One or more ranks failed; the message holds what each says."""


def outcomes(
    size: int, function: Callable[[int], Any], seconds: float = 30
) -> list[tuple[Any, BaseException | None]]:
    """Runs function(rank) on `size` threads; each rank's result, or its exception."""
    results: list[tuple[Any, BaseException | None]] = [(None, None)] * size

    def work(rank: int) -> None:
        try:
            results[rank] = (function(rank), None)
        except BaseException as error:
            results[rank] = (None, error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for rank, thread in enumerate(threads):
        thread.join(max(deadline - time.monotonic(), 0))
        if thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            raise RanksFailed(f"rank {rank} gave no answer within {seconds} s")
    return results


def checked(results: Sequence[tuple[Any, BaseException | None]]) -> list[Any]:
    """The results; RanksFailed with every rank's exception where one failed."""
    failed = {rank: error for rank, (_, error) in enumerate(results) if error is not None}
    if failed:
        told = "".join(
            f"\n--- rank {rank}:\n{''.join(traceback.format_exception(error))}"
            for rank, error in failed.items()
        )
        raise RanksFailed(f"failed on {sorted(failed)}{told}")
    return [result for result, _ in results]


def run_threads(
    size: int, function: Callable[[accl_py.Communicator], Any], seconds: float = 30, **options: Any
) -> list[Any]:
    """Runs function(communicator) on fresh ranks that are threads; returns what each returns."""
    store = accl_py.HashStore()

    def work(rank: int) -> Any:
        with accl_py.Communicator.from_store(
            store, rank, size, **{"timeout": 20, **options}
        ) as communicator:
            return function(communicator)

    return checked(outcomes(size, work, seconds))


class ThreadRanks:
    """Ranks whose communicators stay; made anew after a check that failed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._communicators: list[accl_py.Communicator] = []

    def run(
        self, function: Callable[[accl_py.Communicator], Any], seconds: float = 30
    ) -> list[Any]:
        """Runs function(communicator) on all ranks; returns what each returns."""
        if not self._communicators:
            store, name = accl_py.HashStore(), next(_names)
            make = accl_py.Communicator.from_store
            self._communicators = checked(
                outcomes(self.size, lambda r: make(store, r, self.size, timeout=20, name=name))
            )
        communicators = self._communicators

        def work(rank: int) -> Any:
            try:
                return function(communicators[rank])
            except BaseException as error:
                communicators[rank].abort(f"a check failed: {error}")
                raise

        try:
            return checked(outcomes(self.size, work, seconds))
        except BaseException:
            self._communicators = []
            raise

    def stop(self) -> None:
        """Leaves."""
        for communicator in self._communicators:
            communicator.shutdown()


class ProcessRanks:
    """Processes that run one function of rank_programs.py.

    It is called with rank, size, directory and the arguments.
    """

    def __init__(
        self,
        size: int,
        program: str,
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="accl-ranks-")
        self.directory = Path(self._temporary.name)
        (self.directory / "store").mkdir()
        script = str(Path(__file__).with_name("rank_programs.py"))
        self.processes = [
            subprocess.Popen(
                [
                    *(*wrap, sys.executable, script, program, str(rank), str(size)),
                    *(str(self.directory), json.dumps(arguments)),
                ],
                env={**os.environ, **(environment or {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]

    def results(self, seconds: float = 30, killed: Sequence[int] = ()) -> list[Any]:
        """What each rank's program returned; ranks in `killed` must have ended by SIGKILL: None."""
        deadline = time.monotonic() + seconds
        told: dict[int, str] = {}
        try:
            for rank, process in enumerate(self.processes):
                try:
                    told[rank] = process.communicate(timeout=max(deadline - time.monotonic(), 0))[0]
                except subprocess.TimeoutExpired:
                    told[rank] = f"no answer within {seconds} s"
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        finally:
            self.stop()
        codes = [process.returncode for process in self.processes]
        if any(code != (-9 if rank in killed else 0) for rank, code in enumerate(codes)):
            lines = "".join(f"\n--- rank {r}, exit code {codes[r]}:\n{told[r]}" for r in told)
            raise RanksFailed(f"ranks ended with {codes}{lines}")
        return [
            None if r in killed else json.loads((self.directory / f"result-{r}").read_text())
            for r in range(len(codes))
        ]

    def stop(self) -> None:
        """Ends those that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def run_processes(
    size: int, program: str, *arguments: Any, seconds: float = 30, **options: Any
) -> list[Any]:
    """Runs the program of that name on `size` processes; returns what each returns."""
    return ProcessRanks(size, program, *arguments, **options).results(seconds)
