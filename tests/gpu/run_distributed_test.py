#!/usr/bin/env python3
"""Runs the distributed tests that torch ships (torch.testing._internal.distributed) on GPUs.

    tests/gpu/run_distributed_test.py [--backend accl] [--shards 8] [--limit 150] [-k WORD]

The suite is imported as if the backend were nccl, so that it offers what it has for GPUs; then the
name is exchanged. Where there are fewer GPUs than ranks, all ranks use the first (one_device.py).
Every test that the suite offers must pass, but those that distributed_test_left_out.tsv names with
a reason: a skip is a failure, and so is a test that the time limit left no time for. ``--backend
nccl`` tries the runner itself; ``--cpu`` runs what the suite offers for CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (ROOT / "python", HERE):
    sys.path.insert(0, str(folder))

LEFT_OUT = HERE / "distributed_test_left_out.tsv"
TEST_SECONDS = "60"

# Tests that need more than two ranks. All others take two.
MORE_RANKS = {
    "test_all_to_all_group_cuda": 3,
    "test_all_to_all_single_equal_split_group_cuda": 3,
    "test_all_to_all_single_unequal_split_group_cuda": 3,
    "test_barrier_full_group_cuda": 3,
    "test_barrier_group_cuda": 3,
    "test_batch_isend_irecv_no_rank_zero_nccl": 3,
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd": 4,
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view": 4,
}

# Set by main() for the shards, whose ranks import this file again.
BACKEND, PERSONA = "ACCL_SUITE_BACKEND", "ACCL_SUITE_PERSONA"


class Alias(str):
    """The backend under test for all who use the name; equal to the persona for who compares it."""

    persona: str

    def __new__(cls, name: str, persona: str) -> Alias:
        made = super().__new__(cls, name)
        made.persona = persona
        return made

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or self.persona == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def imported_suite() -> Any:
    """torch's module, with the persona's tests and the backend's name."""
    backend, persona = os.environ[BACKEND], os.environ[PERSONA]
    os.environ["BACKEND"] = persona
    import accl_py.torch  # noqa: F401  # registers the backend
    import torch.testing._internal.common_distributed as common

    if backend != persona:
        for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
            common.DistTestCases.backend_feature.setdefault(feature, set()).update(
                {backend, persona}
            )
        for refusals in common.DistTestCases.skip_collective.values():
            refusals.discard(persona)
    import torch.testing._internal.distributed.distributed_test as suite

    suite.BACKEND = Alias(backend, persona)
    # The suite skips tests of small groups below 8 ranks, unless this says mpi.
    os.environ["BACKEND"] = "mpi" if int(os.environ["WORLD_SIZE"]) > 2 else backend
    return suite


if BACKEND in os.environ:
    suite = imported_suite()

    class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
        """The suite; its processes find it under this name."""

        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **named: Any) -> None:
            import torch

            if os.environ[PERSONA] != "nccl":
                super()._run(rank, *arguments, **named)
                return
            import one_device
            import pool

            ranks = int(os.environ["WORLD_SIZE"])
            gpus = torch.cuda.device_count()
            os.environ.update(pool.environment(rank, ranks, gpus))
            if gpus >= ranks:
                super()._run(rank, *arguments, **named)
                return
            suite.init_multigpu_helper = lambda ranks, _: {r: [0] for r in range(ranks)}
            with one_device.sharing(ranks):
                super()._run(rank, *arguments, **named)


def offered() -> list[str]:
    """The tests that the suite has for the persona."""
    return sorted(
        name
        for name in dir(Suite)
        if name.startswith("test_")
        and not getattr(getattr(Suite, name), "__unittest_skip__", False)
    )


def left_out() -> dict[str, str]:
    """Tests that are not run, and why."""
    lines = LEFT_OUT.read_text().splitlines()
    return dict(line.split("\t") for line in lines)


# --- one shard ---------------------------------------------------------------------------------


class Rows(unittest.TextTestResult):
    """Collects (verdict, reason) of each test."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.verdict = ("passed", "")

    def addFailure(self, test: Any, error: Any) -> None:
        super().addFailure(test, error)
        self.verdict = ("failed", str(error[1]))

    def addError(self, test: Any, error: Any) -> None:
        super().addError(test, error)
        self.verdict = ("failed", str(error[1]))

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self.verdict = ("skipped", reason)


def run_test(name: str, ranks: int) -> tuple[str, str]:
    """The verdict on one test."""
    os.environ["WORLD_SIZE"] = str(ranks)
    result = Rows(unittest.runner._WritelnDecorator(sys.stdout), False, 0)
    unittest.TestSuite([Suite(name)]).run(result)
    return result.verdict


def serve(names: list[str], ranks: int, out: Path) -> None:
    """Runs the tests of a shard; a line of JSON for each."""
    with out.open("a") as file:
        for name in names:
            start = time.monotonic()
            verdict, reason = run_test(name, MORE_RANKS.get(name, ranks))
            row = {"test": name, "verdict": verdict, "reason": reason[-3000:]}
            row["seconds"] = round(time.monotonic() - start, 1)
            print(json.dumps(row), file=file, flush=True)


# --- all shards --------------------------------------------------------------------------------


def environment(backend: str, persona: str, ranks: int, folder: str) -> dict[str, str]:
    """Of a shard and its ranks."""
    return {
        **os.environ,
        BACKEND: backend,
        PERSONA: persona,
        "BACKEND": persona,
        "WORLD_SIZE": str(ranks),
        "TEMP_DIR": folder,
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": TEST_SECONDS,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
    }


def names_of_tests(variables: dict[str, str]) -> list[str]:
    """What the suite offers, asked of a process of its own."""
    listed = subprocess.run(
        [sys.executable, __file__, "--list"],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        raise SystemExit(f"torch's suite cannot be imported: {listed.stderr.strip()[-2000:]}")
    return listed.stdout.split()


def run_shards(names: list[str], arguments: Any, variables: dict[str, str], folder: Path) -> None:
    """Shares the tests out, and ends every shard at the time limit."""
    end = time.monotonic() + arguments.limit
    shards = []
    for index in range(arguments.shards):
        own = names[index :: arguments.shards]
        if not own:
            continue
        mine = folder / f"shard{index}"
        (mine / "barrier").mkdir(parents=True)
        command = [sys.executable, __file__, "--serve", str(mine / "rows"), *own]
        with (mine / "log").open("w") as log:
            shards.append(
                subprocess.Popen(
                    command,
                    env={**variables, "TEMP_DIR": str(mine), "TMPDIR": str(mine)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    for shard in shards:
        try:
            shard.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(shard.pid, signal.SIGKILL)  # also ranks that it left running
        except ProcessLookupError:
            pass
        shard.wait()


def collected(names: list[str], folder: Path) -> list[dict[str, Any]]:
    """A row for each test, also for those that did not come to run."""
    rows = {}
    for path in sorted(folder.glob("shard*/rows")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[row["test"]] = row
    missing = {"verdict": "not reached", "reason": "", "seconds": 0.0}
    return [rows.get(name, {"test": name, **missing}) for name in names]


def report(rows: list[dict[str, Any]], spared: dict[str, str], seconds: float) -> bool:
    """Prints what did not pass, and a count; true where all passed."""
    bad = [row for row in rows if row["verdict"] != "passed"]
    for row in bad:
        print(f"{row['verdict'].upper()} {row['test']}")
        if row["reason"]:
            print("    " + row["reason"].strip().replace("\n", "\n    "))
    for name, reason in sorted(spared.items()):
        print(f"left out: {name}: {reason}")
    counts = Counter(row["verdict"] for row in rows)
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"distributed_test: {told or 'no test ran'}, {len(spared)} left out, {seconds:.0f} s")
    return bool(rows) and not bad


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="accl")
    parser.add_argument("--cpu", action="store_true", help="what the suite has for gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--limit", type=float, default=150, help="seconds, of all")
    parser.add_argument("-k", action="append", default=[], help="names that hold one of the words")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    parser.add_argument("--keep", type=Path, help="leave the shards' logs in this folder")
    return parser.parse_args()


def main() -> int:
    """Runs the shards; 0 where every test passed, 1 where one did not, 2 without a GPU."""
    arguments = parsed()
    if not arguments.cpu:
        import torch

        if not torch.cuda.is_available():
            print("torch sees no GPU here; --cpu runs the suite's tests for CPUs.", file=sys.stderr)
            return 2
    start = time.monotonic()
    persona = "gloo" if arguments.cpu else "nccl"
    folder = Path(tempfile.mkdtemp(prefix="accl-suite-"))
    try:
        variables = environment(arguments.backend, persona, arguments.ranks, str(folder))
        names = names_of_tests(variables)
        words = arguments.k
        names = [n for n in names if not words or any(word in n for word in words)]
        spared = {name: why for name, why in left_out().items() if name in names}
        names = [name for name in names if name not in spared]
        run_shards(names, arguments, variables, folder)
        rows = collected(names, folder)
        if arguments.keep:
            shutil.copytree(folder, arguments.keep, dirs_exist_ok=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if report(rows, spared, time.monotonic() - start) else 1


if __name__ == "__main__":
    if BACKEND not in os.environ:
        sys.exit(main())
    if sys.argv[1] == "--list":
        print(*offered(), sep="\n")
    else:
        serve(sys.argv[3:], int(os.environ["WORLD_SIZE"]), Path(sys.argv[2]))
