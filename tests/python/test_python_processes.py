"""Ranks as processes: death, Ctrl-C, forks, and stores, rules and memory that fail."""

from __future__ import annotations

import os
import signal
import time

import pytest
from local_ranks import ProcessRanks, run_processes
from rank_programs import VICTIM

NOTICED_SECONDS = 2.0


def test_processes(tmp_path: object) -> None:
    for size in (1, 2, 4):
        assert run_processes(size, "sum_of_ranks") == [size * (size + 1) / 2] * size


@pytest.mark.parametrize(
    "collective, how",
    [
        ("all_reduce", "inside"),
        ("all_gather", "inside"),
        ("broadcast", "inside"),
        ("async", "inside"),
        ("all_reduce", "absent"),
        ("barrier", "absent"),
        ("recv", "absent"),
    ],
)
def test_a_killed_peer_is_named_within_two_seconds(collective: str, how: str) -> None:
    ranks = ProcessRanks(3, "victim", collective, how)
    try:
        pid_file = ranks.directory / "pid"
        deadline = time.monotonic() + 15
        while not pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.15)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        killed = time.monotonic()
        results = ranks.results(20, killed=[VICTIM])
    finally:
        ranks.stop()
    for result in (results[0], results[2]):
        assert result["noticed"] - killed < NOTICED_SECONDS
        assert f"Rank {VICTIM} died" in result["message"]
        assert result["total"] == 2  # in a new communicator, in the same processes


def test_death_while_joining() -> None:
    results = ProcessRanks(3, "killed_while_joining").results(20, killed=[2])
    for result in results[:2]:
        assert result["kind"] == "PeerError", result
        assert "Rank 2" in result["message"]
        assert result["seconds"] < 8


def test_a_store_that_goes_away() -> None:
    results = run_processes(2, "store_removed")
    assert results[0]["kind"] == results[1]["kind"] == "StoreError", results
    assert "is gone" in results[0]["message"] and results[0]["seconds"] < 2
    assert "is no directory" in results[1]["message"]


def test_a_store_is_needed_to_join_only() -> None:
    assert run_processes(2, "store_removed_later") == [2, 2]


@pytest.mark.parametrize("how", ["differ, argument", "differ, environment"])
def test_rules_that_differ(how: str) -> None:
    for result in run_processes(3, "rules_differ", how):
        assert result["kind"] == "MismatchError", result
        assert "rules digest" in result["message"] and "same rules file" in result["message"]
        assert result["seconds"] < 2 and result["total"] == 3


@pytest.mark.parametrize("where", ["argument", "environment"])
@pytest.mark.parametrize("how", ["missing", "wrong", "folder"])
def test_rules_that_cannot_be_read(how: str, where: str) -> None:
    results = run_processes(3, "rules_differ", f"{how}, {where}")
    for rank, result in enumerate(results):
        assert result["kind"] == ("RulesError" if rank == 1 else "PeerError"), result
        assert "rules-1.csv" in result["message"]
        assert result["seconds"] < 2 and result["total"] == 3
    if how == "wrong":
        assert "teleport" in results[0]["message"]


def test_sizes_that_differ() -> None:
    for result in run_processes(2, "other_size", [2, 3], [0, 1]):
        assert result["kind"] == "MismatchError" and "number of ranks" in result["message"], result
        assert result["seconds"] < 1.5


def test_a_rank_that_is_there_twice() -> None:
    results = run_processes(3, "other_size", [3, 3, 3], [0, 1, 1])
    assert all(result["kind"] in {"TimeoutError", "PeerError"} for result in results), results
    assert any("Rank 2" in result["message"] for result in results)
    assert all(result["seconds"] < 4 for result in results)


@pytest.mark.parametrize("where", ["joining", "call", "work", "prepared"])
def test_ctrl_c(where: str) -> None:
    seconds = run_processes(2, "interrupted", where)[0]
    assert 0.2 < seconds < 1.5


def test_forked_children() -> None:
    for result in run_processes(2, "forked"):
        *refusals, own = result["texts"]
        assert own == "1.0" and len(refusals) == 3
        assert all("cannot be used in a forked child" in text for text in refusals)
        assert result["status"] == 0 and result["total"] == 2


def test_programs_may_end_with_calls_under_way() -> None:
    for _ in range(3):
        run_processes(2, "left_under_way", seconds=15)


# ---- shared memory, in a mount namespace of our own ----

_PRIVATE = 'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"'


def _namespace(size: str) -> list[str]:
    return ["unshare", "-m", "sh", "-c", _PRIVATE.format(size=size), "sh"]


def _needs_namespaces() -> None:
    import subprocess

    answer = subprocess.run([*_namespace("1m"), "true"], capture_output=True, text=True)
    if answer.returncode != 0:
        pytest.skip(f"no private mount of /dev/shm: {answer.stderr.strip()}")


def test_a_full_shared_memory() -> None:
    """One rank alone sees a full /dev/shm: it says so, and the other hears of it."""
    _needs_namespaces()
    for size in ("4k", "64k"):
        results = run_processes(1, "full_memory", 1, wrap=_namespace(size))
        # One rank may need next to nothing; what counts is that it is no crash (SIGBUS).
        assert results[0]["kind"] in {"", "AcclSystemError"}, results
    # Room for nobody, and room for the first one only.
    for size in ("64k", "2m"):
        results = run_processes(1, "full_ranks", wrap=_namespace(size))[0]
        refused = [r for r in results if r["kind"] == "AcclSystemError"]
        assert refused and all(r["code"] == 28 for r in refused), results  # ENOSPC
        assert all("/dev/shm" in r["message"] for r in results), results
        told = [r for r in results if r not in refused]
        assert all(r["kind"] == "PeerError" and "could not join" in r["message"] for r in told)


def test_nothing_is_left_in_shared_memory() -> None:
    _needs_namespaces()
    result = run_processes(1, "left_memory", wrap=_namespace("512m"))[0]
    assert result["used"] > 0  # it is there that the memory lies
    assert result["after"] == [[], 0], result
