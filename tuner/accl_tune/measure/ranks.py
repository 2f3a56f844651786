"""Starting local ranks, or joining those that a launcher started.

Started bare, this process is rank 0 and the others are processes of its own, which find each other
through files. They stay for the whole run, and die with it, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import accl_py
from accl_py import Communicator, FileStore, Rules
from accl_py.errors import AcclError

import accl_tune
from accl_tune.errors import ArgumentError, MeasureError
from accl_tune.measure.bench import Bench, Connect
from accl_tune.measure.lead import Lead

__all__ = ["launched_ranks", "lead_launched", "lead_local", "serve_launched"]

# Making a communicator takes milliseconds, but a machine may be busy and Python slow to start.
_CONNECT_SECONDS = 120.0

_LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def launched_ranks(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """(rank, ranks) where torchrun, mpirun or srun started several; None where we are alone."""
    for size, rank in zip(_LAUNCHERS, _RANKS, strict=True):
        if environment.get(size, "1") != "1" and rank in environment:
            try:
                return int(environment[rank]), int(environment[size])
            except ValueError:
                raise ArgumentError(
                    f"{rank} is '{environment[rank]}' and {size} is '{environment[size]}'; "
                    "expected integers."
                ) from None
    return None


# ---- under a launcher ----


def _connect_launched(name: str, rules: Rules) -> Communicator:
    return accl_py.init(name=name, rules=rules, timeout=_CONNECT_SECONDS)


@contextmanager
def lead_launched(dtype: str) -> Iterator[Lead]:
    """Rank 0 among the ranks of a launcher. Raises MeasureError."""
    lead = Lead(_bench(_connect_launched), dtype)
    try:
        yield lead
    finally:
        lead.stop()


def serve_launched() -> None:
    """Any other rank: does what rank 0 says, until the end. Raises MeasureError."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when to stop
    asked: list[int] = []  # the launcher asks every rank; whoever has lost rank 0 then leaves

    def connect(name: str, rules: Rules) -> Communicator:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # rank 0 may never come
        communicator = _connect_launched(name, rules)
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        return communicator

    _serve(connect, lambda: bool(asked))


def _bench(connect: Connect) -> Bench:
    try:
        return Bench(connect)
    except AcclError as error:
        raise MeasureError(f"The ranks could not join: {error}") from error


def _serve(connect: Connect, leave: Callable[[], bool] = lambda: False) -> None:
    bench = _bench(connect)
    try:
        bench.serve(leave)
    except AcclError as error:
        raise MeasureError(f"This rank could not go on: {error}") from error
    bench.close()


# ---- started bare ----


@contextmanager
def lead_local(ranks: int, dtype: str) -> Iterator[Lead]:
    """Starts ranks 1 to ranks - 1 as processes and is rank 0. Raises MeasureError."""
    with tempfile.TemporaryDirectory(prefix="accl-tune-") as directory:
        processes = [_start(directory, rank, ranks) for rank in range(1, ranks)]
        try:
            bench = _bench(_connect_files(directory, 0, ranks))
            lead = Lead(bench, dtype, alive=lambda: _check_alive(processes))
            lead.pids = (os.getpid(), *(process.pid for process in processes))
            try:
                yield lead
            finally:
                lead.stop()
        finally:
            _end(processes)


def _connect_files(directory: str, rank: int, ranks: int) -> Connect:
    store = FileStore(directory)

    def connect(name: str, rules: Rules) -> Communicator:
        return Communicator.from_store(
            store, rank, ranks, name=name, rules=rules, timeout=_CONNECT_SECONDS
        )

    return connect


def _start(directory: str, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    """A rank as a process; it finds the packages where this one did."""
    homes = [str(Path(str(package.__file__)).parents[1]) for package in (accl_tune, accl_py)]
    path = os.pathsep.join(dict.fromkeys([*homes, *filter(None, [os.environ.get("PYTHONPATH")])]))
    command = [
        sys.executable,
        "-m",
        "accl_tune.measure.ranks",
        directory,
        str(rank),
        str(ranks),
        str(os.getpid()),
    ]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL
    )


def _check_alive(processes: list[subprocess.Popen[bytes]]) -> None:
    for rank, process in enumerate(processes, start=1):
        status = process.poll()
        if status is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise MeasureError(f"Rank {rank} {how} while it measured.")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, even by SIGKILL."""
    import ctypes

    pr_set_pdeathsig = 1
    try:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    except (AttributeError, OSError):
        return  # not on Linux; the peer's end is noticed by the engine
    if os.getppid() != parent:
        raise SystemExit(1)


def main(arguments: list[str]) -> int:
    """One rank of a local run: DIRECTORY RANK RANKS PARENT."""
    directory, rank, ranks, parent = arguments
    _die_with(int(parent))
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the group; rank 0 decides when to stop
        signal.signal(number, signal.SIG_IGN)
    try:
        _serve(_connect_files(directory, int(rank), int(ranks)))
    except MeasureError as error:
        print(f"accl-tune: rank {rank}: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
