#!/usr/bin/env python3
"""Shows that stock NCCL obeys rules through the tuner plugin, in under a minute on one GPU.

    python tests/gpu/plugin_obeyed.py [--keep DIRECTORY]

Starts ranks of torch's own nccl backend on the first GPU, each a host of its own to NCCL, and holds
three things against each other for every call: what the rule says, what the plugin reports of its
answer (accl_tuner_report), and what NCCL's log says it ran. The data must be right too. Then it
checks that the plugin without rules changes nothing, and that ranks whose rules or digests differ
are stopped with a sentence.

Ends with 0 where all agree, else 1. Reads the log lines of NCCL 2.24 to 2.30.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import nccl_caller as nccl
import pool

RANKS = 4
CHANNELS = 4  # that communicators have at least, so that a rule can choose fewer
LIMIT_S = 45  # for the ranks of one start
REFUSED = 3  # exit status of a rank that has no communicator
K, M = 1 << 10, 1 << 20

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
IN_LOG = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
CHOICE = re.compile(
    r"(\w+): \d+ Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)
ALL_CHANNELS = re.compile(r"(\d+) coll channels")
OUTCOMES = ("none", "left", "applied", "ignored", "differ")


@dataclass(frozen=True)
class Step:
    """A call, and what should steer it: "" leaves algorithm or protocol, 0 the channels to NCCL."""

    collective: str
    bytes: int  # nccl-tests' size
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    source: str = "rule"  # rule, forced, given; none: nothing steers
    line: int = 0  # of the rule

    def row(self) -> str:
        """A rule for this size and up to half as much again."""
        choice = [self.algorithm or "-1", self.protocol or "-1", str(self.channels or -1)]
        name = self.collective.replace("_", "")
        return ",".join([name, str(self.bytes), str(self.bytes * 3 // 2), *choice]) + ",-1,-1,-1,-1"


RULES = (
    Step("all_reduce", 4 * K, "tree", "simple"),
    Step("all_reduce", 8 * K, "ring", "simple"),
    Step("all_reduce", 16 * K, "ring", "ll"),
    Step("all_reduce", 32 * K, "tree", "ll"),
    Step("all_reduce", 64 * K, "ring", "ll128", 2),
    Step("all_reduce", 128 * K, "collnet_chain", "simple", 2),
    Step("all_reduce", 256 * K, "ring"),
    Step("all_reduce", 512 * K, channels=1),
    Step("all_reduce", 1 * M, "ring", "simple", 1),
    Step("all_reduce", 2 * M, "ring", "simple", 2),
    Step("all_reduce", 4 * M, "tree", "simple", 1),
    Step("all_reduce", 8 * M, "tree", "simple", 2),
    Step("all_gather", 64 * K, "pat", "simple"),
    Step("all_gather", 128 * K, "ring", "simple"),
    Step("all_gather", 256 * K, "ring", "ll"),
    Step("all_gather", 2 * M, "ring", "simple", 1),
    Step("reduce_scatter", 64 * K, "pat", "simple"),
    Step("reduce_scatter", 128 * K, "ring", "simple"),
    Step("reduce_scatter", 256 * K, "ring", "ll"),
    Step("broadcast", 64 * K, "ring", "ll"),
    Step("broadcast", 128 * K, "ring", "simple"),
    Step("reduce", 64 * K, "ring", "ll"),
    Step("reduce", 128 * K, "ring", "simple"),
)
FREE = 200 * K  # a size that no rule holds for
UNRULED = tuple(
    Step(collective, size, source="none")
    for collective, size in [
        ("all_reduce", 1 * K),
        ("all_reduce", 3 * M + 16 * K),
        ("all_gather", FREE),
        ("reduce_scatter", FREE),
        ("broadcast", FREE),
        ("reduce", FREE),
    ]
)


def rules_text() -> str:
    """Rule i is on line i, from 1."""
    return "".join(step.row() + "\n" for step in RULES)


def steps_of_rules() -> list[Step]:
    """Each rule at both ends of its range; just beyond it for some."""
    steps = []
    for line, rule in enumerate(RULES, 1):
        for size in (rule.bytes, rule.bytes * 3 // 2):
            steps.append(Step(**{**asdict(rule), "bytes": size, "line": line}))
    beyond = [Step(r.collective, r.bytes * 3 // 2 + 16, source="none") for r in RULES[:3]]
    return [*steps, *beyond, *UNRULED]


def steps_of_forcing(words: Iterable[tuple[str, str, str]]) -> list[Step]:
    """Each choice that the grammar has, and numbers of channels, the last above all."""
    pairs = [Step(*[c, FREE, a, p], source="forced") for c, a, p in words]
    return pairs + [
        Step("all_reduce", 16 * M, "ring", "simple", channels, "forced")
        for channels in (1, 2, 3, 64)
    ]


# ---- what a rank does ----


class Rank:
    """This process as a rank: calls collectives and notes what came of them."""

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.size = torch, dist, rank, job["ranks"]
        self.plugin = nccl.Plugin(Path(job["plugin"]))
        self.log = Path(job["folder"]) / f"nccl{rank}.log"
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{job['folder']}/store",
            rank=rank,
            world_size=self.size,
            device_id=self.device,
        )

    def call(self, step: Step, group: Any = None) -> dict[str, Any]:
        """Runs the call; the record of what the plugin and NCCL say, and whether the data was right."""
        logged = len(self._log_lines())
        before = self.plugin.last()
        right = self._collective(step, group)
        last = self.plugin.last()
        return {
            "step": asdict(step),
            "right": right,
            "asked": last.questions - before.questions,
            "function": last.function,
            "bytes": last.message_bytes,
            "outcome": last.outcome,
            "forced": last.forced,
            "line": last.line,
            "before": table_of(last.before, last),
            "after": table_of(last.after, last),
            "ran": ran(self._log_lines()[logged:], step.collective) if self.rank == 0 else None,
        }

    def channels(self) -> int:
        """Of the communicator, as NCCL's log says."""
        return all_channels(self._log_lines())

    def _log_lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def _collective(self, step: Step, group: Any) -> bool:
        torch, dist = self.torch, self.dist
        count = step.bytes // 4
        part = count // self.size
        index = torch.arange(count, device=self.device, dtype=torch.float32) % 7
        mine = index + self.rank
        total = index * self.size + sum(range(self.size))
        if step.collective == "all_reduce":
            dist.all_reduce(mine, group=group)
            wanted, got = total, mine
        elif step.collective == "all_gather":
            got = torch.zeros_like(index)
            dist.all_gather_into_tensor(got, mine[:part].clone(), group=group)
            wanted = torch.cat([index[:part] + r for r in range(self.size)])
        elif step.collective == "reduce_scatter":
            got = torch.zeros(part, device=self.device)
            dist.reduce_scatter_tensor(got, mine, group=group)
            wanted = total[self.rank * part : (self.rank + 1) * part]
        elif step.collective == "broadcast":
            dist.broadcast(mine, src=1, group=group)
            wanted, got = index + 1, mine
        else:
            dist.reduce(mine, dst=0, group=group)
            wanted, got = (total, mine) if self.rank == 0 else (index, index)
        return bool(torch.equal(wanted, got))


def table_of(entries: Any, last: Any) -> list[list[float]]:
    """NCCL's table, of the size that it had."""
    return [list(entries[a])[: last.protocols] for a in range(last.algorithms)]


def ran(lines: Sequence[str], collective: str) -> list[Any] | None:
    """[algorithm, protocol, channels] of the only such call in the lines; None where it is not so."""
    found = [match for line in lines if (match := CHOICE.search(line))]
    if len(found) != 1 or found[0][1] != IN_LOG[collective]:
        return None
    _, algorithm, protocol, low, high = found[0].groups()
    return [algorithm.lower(), protocol.lower(), int(high) - int(low) + 1]


def all_channels(lines: Sequence[str]) -> int:
    """Of the first communicator; 0 where the log does not say."""
    found = [match for line in lines if (match := ALL_CHANNELS.search(line))]
    return int(found[0][1]) if found else 0


def work_of_rules(rank: Rank) -> list[dict[str, Any]]:
    """The rules of ACCL_RULES, forced choices, the rules again, and rules of one group's own."""
    from accl_py.rules import algorithm_words, protocol_words

    records = [rank.call(step) for step in steps_of_rules()]
    # What the grammar accepts; a pair that it refuses is refused here too.
    words = [
        (collective, algorithm, protocol)
        for collective in IN_LOG
        for algorithm in algorithm_words("nccl", collective)
        for protocol in protocol_words("nccl")
        if not rank.plugin.force(collective, algorithm, protocol)
    ]
    rank.plugin.clear()
    for step in steps_of_forcing(words):
        refused = rank.plugin.force(step.collective, step.algorithm, step.protocol, step.channels)
        assert not refused, refused
        records.append(rank.call(step))
    rank.plugin.clear()
    records.append(rank.call(Step(**{**asdict(RULES[2]), "line": 3})))
    given = Step("all_reduce", FREE, "tree", "ll", source="given", line=1)
    assert not rank.plugin.give_rules(given.row() + "\n", everywhere=False)
    group = rank.dist.new_group()
    records.append(rank.call(given, group))
    assert not rank.plugin.give_rules(None, everywhere=False)
    records.append(rank.call(given, group))
    records.append(rank.call(Step("all_reduce", FREE, source="none")))  # the first group again
    return records


def work_without_rules(rank: Rank) -> list[dict[str, Any]]:
    """Calls that nothing steers."""
    return [rank.call(step) for step in UNRULED]


def work_that_is_refused(rank: Rank) -> list[dict[str, Any]]:
    """A call, where the communicator could be made at all."""
    return [rank.call(UNRULED[0])]


WORK = {f.__name__: f for f in (work_of_rules, work_without_rules, work_that_is_refused)}


def run_rank(folder: Path, number: int) -> int:
    """The process of a rank."""
    job = json.loads((folder / "job.json").read_text())
    try:
        rank = Rank(job, number)
        records = WORK[job["work"]](rank)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(REFUSED)  # at once: torch's way out may wait for the other ranks
    answer = {
        "records": records,
        "channels": rank.channels(),
        "communicators": rank.plugin.last().communicators,
    }
    (folder / f"rank{number}.json").write_text(json.dumps(answer))
    rank.dist.destroy_process_group()
    return 0


# ---- what must hold ----


def cheapest(table: Sequence[Sequence[float]]) -> list[str]:
    """What NCCL takes."""
    chosen = nccl.chosen(table)
    return ["", ""] if chosen is None else [ALGORITHMS[chosen[0]], PROTOCOLS[chosen[1]]]


def wanted_entries(step: Step, table: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Which entries the step may have, of those that NCCL does not ignore."""
    return [
        (a, p)
        for a, row in enumerate(table)
        for p, cost in enumerate(row)
        if cost >= 0
        and step.algorithm in ("", ALGORITHMS[a])
        and step.protocol in ("", PROTOCOLS[p])
    ]


def outcome_wanted(step: Step, table: Sequence[Sequence[float]]) -> int:
    """Of the plugin."""
    if step.source == "none":
        return nccl.LEFT
    return nccl.APPLIED if wanted_entries(step, table) else nccl.IGNORED


def faults(records: Sequence[dict[str, Any]], channels: int) -> list[str]:
    """What is wrong with a call, by the records of all ranks, rank 0 first; empty: nothing."""
    step = Step(**records[0]["step"])
    found = []
    for rank, record in enumerate(records):
        found += [f"rank {rank}: {fault}" for fault in faults_of_rank(step, record)]
        if record["after"] != records[0]["after"] or record["outcome"] != records[0]["outcome"]:
            found.append(f"rank {rank}: answered otherwise than rank 0")
    return found + faults_of_run(step, records[0], channels)


def faults_of_rank(step: Step, record: dict[str, Any]) -> list[str]:
    """What is wrong with the data and with the plugin's answer."""
    found = []
    if not record["right"]:
        found.append("wrong data")
    if (record["asked"], record["function"]) != (1, nccl.FUNCTIONS[step.collective]):
        return [*found, f"NCCL asked {record['asked']} times, function {record['function']}"]
    if record["bytes"] != step.bytes:
        found.append(f"NCCL asked about {record['bytes']} bytes")
    wanted = outcome_wanted(step, record["before"])
    if record["outcome"] != wanted:
        found.append(f"the plugin {OUTCOMES[record['outcome']]} it, expected {OUTCOMES[wanted]}")
    steered = step.source != "none"
    source = (int(step.source == "forced"), step.line if steered else 0)
    if (record["forced"], record["line"]) != source:
        found.append(f"forced {record['forced']}, line {record['line']}")
    may_change = wanted_entries(step, record["before"]) if steered else []
    for a, row in enumerate(record["before"]):
        for p, cost in enumerate(row):
            after = record["after"][a][p]
            if after != cost and (a, p) not in may_change:
                found.append(f"wrote over {ALGORITHMS[a]}/{PROTOCOLS[p]}: {cost} became {after}")
    return found


def faults_of_run(step: Step, record: dict[str, Any], channels: int) -> list[str]:
    """What is wrong with what NCCL's log says of the call."""
    if record["ran"] is None:
        return ["NCCL's log does not have the call, or in another form"]
    algorithm, protocol, used = record["ran"]
    found = []
    if [algorithm, protocol] != cheapest(record["after"]):
        found.append(f"NCCL ran {algorithm}/{protocol}, not {'/'.join(cheapest(record['after']))}")
    if outcome_wanted(step, record["before"]) != nccl.APPLIED:
        return found
    if step.algorithm not in ("", algorithm) or step.protocol not in ("", protocol):
        found.append(f"NCCL ran {algorithm}/{protocol}")
    if step.channels and used != min(step.channels, channels):
        found.append(f"NCCL used {used} of {channels} channels")
    return found


def blind_spots(calls: Sequence[Sequence[dict[str, Any]]], channels: int) -> list[str]:
    """What this machine must offer for the checks to mean something."""
    found = []
    if channels < CHANNELS:
        found.append(f"the communicator has {channels} channels; expected {CHANNELS} or more")
    outcomes = [(Step(**call[0]["step"]), call[0]["outcome"]) for call in calls]
    applied = {(s.algorithm, s.protocol) for s, o in outcomes if o == nccl.APPLIED}
    for algorithm in ("tree", "ring"):
        for protocol in ("ll", "simple"):
            if (algorithm, protocol) not in applied:
                found.append(f"{algorithm}/{protocol} could never be chosen")
    if all(outcome != nccl.IGNORED for _, outcome in outcomes):
        found.append("no choice was one that NCCL ignores")
    return found


# ---- starts ----


class Start:
    """Rank processes with one job."""

    def __init__(self, base: Path, plugin: Path, name: str, work: Any, ranks: int) -> None:
        self.name, self.ranks, self.folder = name, ranks, base / name
        self.folder.mkdir()
        self.environments: list[dict[str, str]] = [{} for _ in range(ranks)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.plugin = plugin
        job = {"work": work.__name__, "ranks": ranks, "plugin": str(plugin)}
        (self.folder / "job.json").write_text(json.dumps({**job, "folder": str(self.folder)}))

    def rules(self, text: str, ranks: Iterable[int] | None = None) -> Start:
        """Gives ranks a rules file; all of them without `ranks`."""
        for rank in range(self.ranks) if ranks is None else ranks:
            path = self.folder / f"rules{rank}.csv"
            path.write_text(text)
            self.environments[rank]["ACCL_RULES"] = str(path)
        return self

    def variable(self, name: str, value: str, ranks: Iterable[int] | None = None) -> Start:
        """Sets a variable of ranks."""
        for rank in range(self.ranks) if ranks is None else ranks:
            self.environments[rank][name] = value
        return self

    def begin(self) -> Start:
        """Starts the processes."""
        for rank in range(self.ranks):
            command = [sys.executable, __file__, "--folder", str(self.folder), "--rank", str(rank)]
            with self._output(rank).open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        command, env=self._environment(rank), stdout=output, stderr=output
                    )
                )
        return self

    def wait(self, enough: Any = None) -> None:
        """Until all have ended, or `enough()`, or the time is up; what is left is killed."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and any(p.poll() is None for p in self.processes):
            if enough is not None and enough():
                break
            time.sleep(0.05)
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def said(self, rank: int) -> str:
        """What a rank wrote to stdout and stderr."""
        return self._output(rank).read_text(errors="replace")

    def answers(self) -> list[dict[str, Any]]:
        """Of all ranks; raises SystemExit with what they said where one has none."""
        files = [self.folder / f"rank{rank}.json" for rank in range(self.ranks)]
        for rank, file in enumerate(files):
            if not file.exists():
                tail = "\n".join(self.said(rank).splitlines()[-15:])
                raise SystemExit(f"{self.name}: rank {rank} did not finish:\n{tail}")
        return [json.loads(file.read_text()) for file in files]

    def _output(self, rank: int) -> Path:
        return self.folder / f"output{rank}"

    def _environment(self, rank: int) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "ACCL_"))}
        return {
            **kept,
            **pool.environment(rank, self.ranks, 0),
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
            "NCCL_DEBUG_FILE": str(self.folder / f"nccl{rank}.log"),
            "NCCL_MIN_CTAS": str(CHANNELS),
            "NCCL_TUNER_PLUGIN": str(self.plugin),
            **self.environments[rank],
        }


def describe(step: Step) -> str:
    """What was asked for."""
    if step.source == "none":
        return "nothing"
    choice = f"{step.algorithm or '*'}/{step.protocol or '*'}"
    return f"{step.source} {choice}" + (f", {step.channels} channels" if step.channels else "")


def judge(start: Start) -> list[str]:
    """Prints the table of a start; what is wrong."""
    answers = start.answers()
    calls = list(zip(*(answer["records"] for answer in answers), strict=True))
    channels = answers[0]["channels"]
    wrong = []
    print(f"\n{start.name}: {start.ranks} ranks, {channels} channels")
    for call in calls:
        step = Step(**call[0]["step"])
        found = faults(call, channels)
        wrong += [f"{start.name}: {step.collective} of {step.bytes}: {fault}" for fault in found]
        ran_text = "{}/{}, {} channels".format(*call[0]["ran"]) if call[0]["ran"] else "?"
        verdict = "WRONG" if found else "ok"
        print(
            f"  {step.collective:14} {step.bytes:>9}  {describe(step):36} "
            f"{OUTCOMES[call[0]['outcome']]:8} ran {ran_text:28} {verdict}"
        )
    if start.name == "rules":
        wrong += [f"rules: {spot}" for spot in blind_spots(calls, channels)]
    return wrong


def compare_with_stock(plain: Start, stock: Start) -> list[str]:
    """What NCCL runs with the plugin and no rules, and without the plugin."""
    wrong = []
    if any(answer["communicators"] != 0 for answer in stock.answers()):
        wrong.append("stock: NCCL loaded the plugin, though it was told to load none")
    pairs = zip(plain.answers()[0]["records"], stock.answers()[0]["records"], strict=True)
    for ours, theirs in pairs:
        step = Step(**ours["step"])
        if ours["ran"] is None or ours["ran"] != theirs["ran"]:
            wrong.append(
                f"{step.collective} of {step.bytes}: NCCL ran {ours['ran']} with the plugin and no "
                f"rules, {theirs['ran']} without the plugin"
            )
    print(f"\nno rules against no plugin: {'WRONG' if wrong else 'the same choices'}")
    return wrong


def refused(start: Start, sentence: str) -> list[str]:
    """Waits for a rank that ends with the sentence; what is wrong."""
    begin = time.monotonic()

    def stopped() -> list[int]:
        ended = [r for r, p in enumerate(start.processes) if p.poll() == REFUSED]
        return [rank for rank in ended if sentence in start.said(rank)]

    start.wait(stopped)
    took = time.monotonic() - begin
    ranks = stopped()
    print(f"\n{start.name}: rank {ranks or 'none'} was stopped within {took:.1f} s")
    for rank in ranks[:1]:
        print("  " + next(x for x in start.said(rank).splitlines() if sentence in x)[:200])
    if ranks:
        return []
    heard = "\n".join(start.said(rank)[-500:] for rank in range(start.ranks))
    return [f"{start.name}: no rank was stopped with '{sentence}'; they said:\n{heard}"]


def check(base: Path) -> list[str]:
    """All starts; what is wrong."""
    from accl_py.rules import Rules

    plugin = nccl.plugin_path()
    text, other = rules_text(), RULES[0].row() + "\n"
    wrong: list[str] = []
    rules = Start(base, plugin, "rules", work_of_rules, RANKS).rules(text)
    digest = Rules.parse(text, "rules").digest()
    rules.variable("ACCL_RULES_DIGEST", digest).begin().wait()
    wrong += judge(rules)
    # The others do little, and go side by side.
    plain = Start(base, plugin, "no-rules", work_without_rules, RANKS).begin()
    stock = Start(base, plugin, "stock", work_without_rules, RANKS)
    stock.variable("NCCL_TUNER_PLUGIN", "none").begin()
    differ = Start(base, plugin, "different-rules", work_that_is_refused, 2)
    differ.rules(text).rules(other, [1]).begin()
    digests = Start(base, plugin, "different-digests", work_that_is_refused, 2)
    digests.rules(text).variable("ACCL_RULES_DIGEST", digest)
    digests.variable("ACCL_RULES_DIGEST", Rules.parse(other, "other").digest(), [1]).begin()
    wrong += refused(differ, "have different rules for NCCL")
    wrong += refused(digests, "ACCL_RULES_DIGEST is")
    plain.wait()
    stock.wait()
    return wrong + judge(plain) + compare_with_stock(plain, stock)


def main() -> int:
    """The command line; with --rank, a rank's process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="where logs and answers stay; must not exist")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        return run_rank(given.folder, given.rank)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="accl-plugin-") as temporary:
        if given.keep is not None:
            given.keep.mkdir(parents=True)
        wrong = check(given.keep.resolve() if given.keep else Path(temporary))
    for fault in wrong:
        print(f"WRONG  {fault}")
    verdict = f"{len(wrong)} disagreements" if wrong else "what ran is what the rules say"
    print(f"\n{verdict} ({time.monotonic() - begin:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
