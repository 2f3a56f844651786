"""What the processes of local_ranks.ProcessRanks run: f(rank, size, directory, *more)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from accl_py import Communicator, FileStore
from accl_py.errors import AbortedError, AcclError, PeerError

VICTIM = 1


def _join(
    directory: Path, rank: int, size: int, name: str = "world", **options: Any
) -> Communicator:
    store = FileStore(directory / "store")
    return Communicator.from_store(store, rank, size, name=name, **{"timeout": 30, **options})


def sum_of_ranks(rank: int, size: int, directory: Path) -> float:
    """The simplest run."""
    with _join(directory, rank, size) as c:
        return float(c.all_reduce(np.full(1000, rank + 1.0))[999])


def _wait_for(path: Path, seconds: float = 10) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.002)
    return path.read_text()


def _note(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def victim(rank: int, size: int, directory: Path, collective: str, how: str) -> Any:
    """One rank is killed; the others say what they saw and go on without it."""
    c = _join(directory, rank, size)
    x = np.ones(1 << 18, np.float32)
    c.barrier()
    if rank == VICTIM:
        _note(directory / "pid", str(os.getpid()))
        if how == "absent":  # it is killed before it makes the call that the others wait in
            time.sleep(60)
    calls = {
        "all_reduce": lambda: c.all_reduce(x, op="max"),
        "all_gather": lambda: c.all_gather(x),
        "broadcast": lambda: c.broadcast(x, root=VICTIM),
        "barrier": c.barrier,
        "recv": lambda: c.recv(x, VICTIM) if rank != VICTIM else time.sleep(60),
        "async": lambda: c.all_reduce(x, op="max", async_op=True).wait(),
    }
    try:
        for _ in range(1_000_000):
            calls[collective]()
        raise AssertionError("nobody was killed")
    except PeerError as error:
        noticed, message = time.monotonic(), str(error)
    try:
        c.barrier()
        raise AssertionError("a communicator that has ended took a call")
    except AbortedError:
        pass
    survivors = [r for r in range(size) if r != VICTIM]
    with _join(directory, survivors.index(rank), len(survivors), "after") as again:
        total = float(again.all_reduce(np.ones(10))[9])
    return {"noticed": noticed, "message": message, "total": total}


def killed_while_joining(rank: int, size: int, directory: Path) -> Any:
    """The last rank publishes itself and dies."""
    if rank == size - 1:

        class Slow(FileStore):
            def get(self, key: str, *_: Any) -> bytes:
                os.kill(os.getpid(), signal.SIGKILL)
                raise AssertionError

        Communicator.from_store(Slow(directory / "store"), rank, size)
    begin = time.monotonic()
    try:
        _join(directory, rank, size)
    except AcclError as error:
        return {
            "kind": type(error).__name__,
            "message": str(error),
            "seconds": time.monotonic() - begin,
        }
    raise AssertionError("joined")


def store_removed(rank: int, size: int, directory: Path) -> Any:
    """The directory of the store goes while rank 0 waits for the others, who come later."""
    if rank != 0:
        _wait_for(directory / "gone")
    else:

        def remove() -> None:
            time.sleep(0.3)
            shutil.rmtree(directory / "store")
            _note(directory / "gone", "")

        threading.Thread(target=remove).start()
    begin = time.monotonic()
    try:
        _join(directory, rank, size)
    except AcclError as error:
        return {
            "kind": type(error).__name__,
            "message": str(error),
            "seconds": time.monotonic() - begin,
        }
    raise AssertionError("joined")


def store_removed_later(rank: int, size: int, directory: Path) -> float:
    """A store is needed to join only."""
    with _join(directory, rank, size) as c:
        c.barrier()
        if rank == 0:
            shutil.rmtree(directory / "store")
        c.barrier()
        return float(c.all_reduce(np.ones(3))[0])


def full_memory(rank: int, size: int, directory: Path, megabytes: int) -> Any:
    """/dev/shm is too small for what the ranks need."""
    try:
        with _join(directory, rank, size, timeout=10) as c:
            for count in (1, 1 << 16, 1 << 22):
                x = np.ones(count, np.float32)
                assert (c.all_reduce(x) == size).all()
        return {"kind": "", "message": "", "code": 0}
    except AcclError as error:
        return {
            "kind": type(error).__name__,
            "message": str(error),
            "code": getattr(error, "code", 0),
        }


def interrupted(rank: int, size: int, directory: Path, where: str) -> Any:
    """Rank 0 waits for a rank that does not come, until Ctrl-C."""
    if where == "joining":
        if rank != 0:
            return _wait_for(directory / "done")
        c = None
    else:
        c = _join(directory, rank, size)
        c.barrier()
        if rank != 0:
            _wait_for(directory / "done")
            c.barrier()
            return float(c.all_reduce(np.ones(2))[0])
    x = np.ones(2)
    waits = {
        "joining": lambda: _join(directory, rank, size),
        "call": lambda: c.barrier(),  # type: ignore[union-attr]
        "work": lambda: c.barrier(async_op=True).wait(),  # type: ignore[union-attr]
        "prepared": lambda: c.prepare("barrier").time(1),  # type: ignore[union-attr]
    }

    def press() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    begin = time.monotonic()
    try:
        waits[where]()
        raise AssertionError("the wait ended by itself")
    except KeyboardInterrupt:
        seconds = time.monotonic() - begin
    _note(directory / "done", "")
    if c is not None:
        # The call went on; the communicator serves as before.
        assert (c.all_reduce(x) == size).all()
    return seconds


def forked(rank: int, size: int, directory: Path) -> Any:
    """A forked child may not use the parent's communicator, and does not harm it."""
    c = _join(directory, rank, size)
    c.barrier()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for call in (c.barrier, lambda: c.all_reduce(np.ones(2)), lambda: c.send(np.ones(1), 0)):
            try:
                call()
                texts.append("accepted")
            except AbortedError as error:
                texts.append(str(error))
        c.shutdown()
        c.abort()
        # A communicator of its own works.
        from accl_py import HashStore

        with Communicator.from_store(HashStore(), 0, 1) as own:
            texts.append(str(own.all_reduce(np.ones(1))[0]))
        os.write(writing, json.dumps(texts).encode())
        sys.exit(0)
    os.close(writing)
    texts = json.loads(os.read(reading, 100_000))
    status = os.waitpid(child, 0)[1]
    total = float(c.all_reduce(np.ones(3))[0])
    c.shutdown()
    return {"texts": texts, "status": status, "total": total}


def left_under_way(rank: int, size: int, directory: Path) -> None:
    """The program ends with calls under way and nothing shut down."""
    c = _join(directory, rank, size)
    for _ in range(10):
        c.all_reduce(np.ones((1000, 2))[:, 0], async_op=True)
    if rank == 0:
        kept = c.barrier(async_op=True)  # noqa: F841  # alive at exit
        globals()["kept"] = c
    return


def _shared_memory() -> tuple[list[str], int]:
    """Names in /dev/shm, and the bytes that are used there."""
    about = os.statvfs("/dev/shm")
    return sorted(os.listdir("/dev/shm")), (about.f_blocks - about.f_bfree) * about.f_frsize


def killed_with_memory(rank: int, size: int, directory: Path) -> Any:
    """All ranks die by SIGKILL in a collective."""
    c = _join(directory, rank, size)
    x = np.ones(1 << 20, np.float32)
    c.all_reduce(x, op="max")
    _note(directory / f"ready-{rank}", "")
    while True:
        c.all_reduce(x, op="max")


def full_ranks(rank: int, size: int, directory: Path) -> Any:
    """Several ranks under one small /dev/shm, which this process sees too."""
    from local_ranks import run_processes

    return run_processes(3, "full_memory", 1)


def left_memory(rank: int, size: int, directory: Path) -> Any:
    """Kills ranks in a collective, starts others, and looks at what is left."""
    from local_ranks import ProcessRanks, run_processes

    ranks = ProcessRanks(2, "killed_with_memory")
    for r in range(2):
        _wait_for(ranks.directory / f"ready-{r}")
    time.sleep(0.05)
    used = _shared_memory()[1]
    for process in ranks.processes:
        process.kill()
    ranks.stop()
    run_processes(2, "sum_of_ranks")
    return {"used": used, "after": _shared_memory()}


def rules_differ(rank: int, size: int, directory: Path, how: str) -> Any:
    """Rank 1 has other rules, or none that can be read; by argument or by ACCL_RULES."""
    path = directory / f"rules-{rank}.csv"
    if how.startswith("differ"):
        path.write_text(f"allreduce,0,{4096 * (rank + 1)},ring,-1,-1,-1,-1,-1,-1,cpu\n")
    elif rank == 1 and "wrong" in how:
        path.write_text("allreduce,0,4096,teleport,-1,-1,-1,-1,-1,-1,cpu\n")
    elif rank == 1 and "folder" in how:
        path.mkdir()
    elif rank != 1:
        path.write_text("")
    options: dict[str, Any] = {}
    if how.endswith("argument"):
        options["rules"] = path
    else:
        os.environ["ACCL_RULES"] = str(path)
        from accl_py import _core

        _core.reload_environment()
    begin = time.monotonic()
    try:
        _join(directory, rank, size, **options)
    except AcclError as error:
        first = {
            "kind": type(error).__name__,
            "message": str(error),
            "seconds": time.monotonic() - begin,
        }
    else:
        raise AssertionError("joined")
    from accl_py import Rules

    with _join(directory, rank, size, "after", rules=Rules.defaults()) as c:
        first["total"] = float(c.all_reduce(np.ones(2))[0])
    return first


def other_size(rank: int, size: int, directory: Path, sizes: list[int], ranks: list[int]) -> Any:
    """Ranks that do not agree on who they are."""
    begin = time.monotonic()
    try:
        _join(directory, ranks[rank], sizes[rank], timeout=2)
    except AcclError as error:
        return {
            "kind": type(error).__name__,
            "message": str(error),
            "seconds": time.monotonic() - begin,
        }
    return {"kind": "", "message": "", "seconds": 0}


if __name__ == "__main__":
    name, me, all_ranks, folder, packed = sys.argv[1:]
    os.environ["ACCL_TRACE_DIR"] = folder
    answer = globals()[name](int(me), int(all_ranks), Path(folder), *json.loads(packed))
    (Path(folder) / f"result-{me}").write_text(json.dumps(answer))
