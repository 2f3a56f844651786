"""The accl-tune command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from accl_py import Rules
from accl_py.errors import AcclError, RulesError

from accl_tune import __version__
from accl_tune.decide.screening import Screening
from accl_tune.decide.verdicts import Proof
from accl_tune.errors import ArgumentError, Interrupted, MeasureError, ResumeError, TuneError
from accl_tune.evidence import (
    Evidence,
    Journal,
    evidence_path,
    journal_path,
    load,
    write_atomically,
)
from accl_tune.measure.data import DTYPES, dtype_of, legal_bytes
from accl_tune.measure.lead import Lead
from accl_tune.measure.load import ForeignLoad
from accl_tune.measure.machine import describe, differences, machine, versions
from accl_tune.measure.progress import on_stderr
from accl_tune.measure.ranks import launched_ranks, lead_launched, lead_local, serve_launched
from accl_tune.measure.remeasure import remeasure
from accl_tune.measure.sweep import Plan, Sweep, conclude
from accl_tune.model import Cell
from accl_tune.report.plot import plot
from accl_tune.report.table import remeasured_table, state_change, summary
from accl_tune.rules.check import check
from accl_tune.rules.explain import Query, explain
from accl_tune.rules.plugin import steer
from accl_tune.rules.write import Shape, rules_text, write_rules
from accl_tune.words import COLLECTIVES, collective, format_bytes, parse_bytes, parse_share, sizes

__all__ = ["main"]

_EPILOG = """exit status:
  0    done
  1    a rules file is wrong (check, explain, plugin)
  2    an argument is wrong, or a package is missing
  3    the ranks could not measure
  4    a journal or an evidence file cannot be read, written or resumed
  130  interrupted; what was measured is kept, and the same command goes on from there
"""


# Of one rank's memory while a cell is checked: input, output, and what both must hold.
_BUFFERS = 4
_MOST_LOCAL = 64  # ranks, on however few cores


class _Parser(argparse.ArgumentParser):
    """Errors as one sentence, with the exit status of arguments."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message[:1].upper()}{message[1:]}; see '{self.prog} --help'.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="accl-tune",
        description="Measures which algorithm is fastest where, and writes rules that are proven.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"accl-tune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_sweep(commands.add_parser("sweep", help="measure, decide, write rules and their evidence"))
    one = commands.add_parser("check", help="whether rules files are valid")
    one.add_argument("rules", type=Path, nargs="+", help="rules files")
    _add_explain(commands.add_parser("explain", help="which rule a call gets, and why"))
    one = commands.add_parser("plot", help="default against tuned, as a picture")
    one.add_argument("evidence", type=Path, help="rules.evidence.json")
    one.add_argument("-o", "--output", type=Path, required=True, help=".png, .svg or .pdf")
    _add_plugin(commands.add_parser("plugin", help="shell lines: stock NCCL takes the rules"))
    _add_demo(commands.add_parser("demo", help="all of it on this machine, in about a minute"))
    return parser


def _add_range(parser: argparse.ArgumentParser, end: str, factor: str) -> None:
    parser.add_argument(
        "-b", "--begin", default="8", metavar="SIZE", help="smallest size (default 8)"
    )
    parser.add_argument(
        "-e", "--end", default=end, metavar="SIZE", help=f"largest size (default {end})"
    )
    parser.add_argument(
        "-f",
        "--factor",
        type=float,
        default=float(factor),
        help=f"between sizes (default {factor})",
    )
    parser.add_argument(
        "--collectives",
        nargs="+",
        default=list(COLLECTIVES),
        metavar="NAME",
        help=f"which ones (default all: {', '.join(COLLECTIVES)})",
    )
    parser.add_argument("--dtype", default="float32", help=f"one of: {', '.join(DTYPES)}")
    parser.add_argument(
        "--min-gain", default="3%", metavar="SHARE", help="least gain of a rule (default 3%%)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random orders (default 1)")


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks", type=int, help="local ranks to start (default 2); not under a launcher"
    )
    _add_range(parser, "16M", "2")
    parser.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="for the whole sweep (default: what it needs)",
    )
    parser.add_argument(
        "--repeats", type=int, default=8, help="screening pairs of each candidate (default 8)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="RULES", help="such as rules.csv"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--resume",
        action="store_true",
        help="go on with an interrupted sweep; it is an error if there is none",
    )
    how.add_argument(
        "--fresh", action="store_true", help="start anew, even if an interrupted sweep could go on"
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", type=Path, help="a rules file")
    parser.add_argument("collective", help="all_reduce or allreduce, ...")
    parser.add_argument("--bytes", required=True, metavar="SIZE", help="nccl-tests' size: 64K")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--engine", default="cpu", choices=["cpu", "nccl", "cuda"])
    parser.add_argument("--uneven", action="store_true", help="the sizes differ between ranks")


def _add_plugin(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints shell lines with which programs on stock NCCL take the rules for it: "
        'eval "$(accl-tune plugin rules.csv)"'
    )
    parser.add_argument(
        "rules", type=Path, nargs="?", help="the rules file (default: what ACCL_RULES names)"
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for the results (default out)"
    )
    parser.add_argument("--ranks", type=int, default=2, help="local ranks to start (default 2)")
    _add_range(parser, "8M", "4")
    parser.add_argument(
        "--budget", type=float, default=45.0, metavar="SECONDS", help="of the sweep (default 45)"
    )
    parser.add_argument(
        "--again",
        type=float,
        default=12.0,
        metavar="SECONDS",
        help="of measuring again (default 12)",
    )
    parser.set_defaults(repeats=16, resume=False, fresh=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    try:
        given = _parser().parse_args(arguments)
        commands = {
            "sweep": _sweep,
            "check": _check,
            "explain": _explain,
            "plot": _plot,
            "plugin": _plugin,
            "demo": _demo,
        }
        return commands[given.command](given)
    except TuneError as error:
        print(f"accl-tune: {error}", file=sys.stderr)
        return error.status
    except RulesError as error:
        print(f"accl-tune: {error}", file=sys.stderr)
        return 1
    except AcclError as error:
        print(f"accl-tune: {error}", file=sys.stderr)
        return 3
    except MemoryError:
        print("accl-tune: There is not enough memory; choose a smaller -e.", file=sys.stderr)
        return MeasureError.status
    except KeyboardInterrupt:
        print("accl-tune: Interrupted.", file=sys.stderr)
        return Interrupted.status
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# ---- check, explain, plot, plugin ----


def _check(given: argparse.Namespace) -> int:
    status = 0
    for path in given.rules:
        valid, line = check(path)
        print(line, file=sys.stdout if valid else sys.stderr)
        status = status if valid else 1
    return status


def _explain(given: argparse.Namespace) -> int:
    query = Query(
        collective(given.collective),
        parse_bytes(given.bytes),
        _at_least_one(given.ranks, "--ranks"),
        _at_least_one(given.nodes, "--nodes"),
        given.engine,
        given.uneven,
    )
    if query.nodes > query.ranks:
        raise ArgumentError(f"--nodes is {query.nodes}, more than --ranks, {query.ranks}.")
    rules = Rules.load(str(given.rules))
    beside = evidence_path(given.rules)
    print(explain(rules, query, load(beside) if beside.exists() else None))
    return 0


def _plot(given: argparse.Namespace) -> int:
    evidence = load(given.evidence)
    plot(evidence, given.output, _title(evidence))
    print(f"wrote {given.output}")
    return 0


def _plugin(given: argparse.Namespace) -> int:
    steering = steer(given.rules, os.environ)
    for note in steering.notes:
        print(f"accl-tune: {note}", file=sys.stderr)
    print(steering.lines)
    return 0


def _title(evidence: Evidence) -> str:
    parameters = evidence.header["parameters"]
    facts = describe(evidence.header["machine"])
    return f"default against tuned, {parameters['ranks']} ranks, {parameters['dtype']}; {facts}"


def _at_least_one(value: int, name: str) -> int:
    if value < 1:
        raise ArgumentError(f"{name} is {value}; expected at least 1.")
    return value


# ---- sweep ----


def _settings(given: argparse.Namespace, ranks: int) -> tuple[Plan, dict[str, Any]]:
    """The plan, and the parameters that must be equal to resume it. Raises ArgumentError."""
    names = list(
        dict.fromkeys(collective(name) for word in given.collectives for name in word.split(","))
    )
    element_bytes = dtype_of(given.dtype).itemsize
    asked = sizes(parse_bytes(given.begin), parse_bytes(given.end), given.factor)
    cells = {
        Cell(name, legal_bytes(name, size, ranks, element_bytes)): None
        for name in names
        for size in asked
    }
    if given.budget is not None:
        _seconds(given.budget, "--budget")
    if given.repeats < 3:
        raise ArgumentError(f"--repeats is {given.repeats}; expected at least 3.")
    min_gain = parse_share(given.min_gain)
    plan = Plan(
        tuple(cells),
        budget=given.budget,
        seed=given.seed,
        screening=replace(Screening(), min_gain=min_gain, most=given.repeats),
        proof=replace(Proof(), min_gain=min_gain),
    )
    parameters = {
        "collectives": names,
        "sizes": asked,
        "dtype": given.dtype,
        "min_gain": min_gain,
        "repeats": given.repeats,
        "seed": given.seed,
    }
    return plan, parameters


def _seconds(value: float, name: str) -> float:
    if not (value > 0 and isfinite(value)):
        raise ArgumentError(f"{name} is {value:g}; expected seconds above 0.")
    return value


def _check_memory(largest: int, ranks: int) -> None:
    """Refuses sizes that local ranks cannot hold: the kernel would end one of them midway."""
    needed = ranks * _BUFFERS * largest
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ArgumentError(
            f"For sizes of {format_bytes(largest)} {ranks} ranks need {needed / 2**30:.3g} GiB; "
            f"this machine has {there / 2**30:.3g} GiB. Choose a smaller -e."
        )


def _check_output(path: Path) -> None:
    if not path.parent.is_dir():
        raise ArgumentError(f"'{path.parent}' is no directory: '{path}' cannot be written.")
    if path.is_dir():
        raise ArgumentError(
            f"'{path}' is a directory; expected the name of a rules file, such as rules.csv."
        )
    if path.suffix in (".json", ".jsonl"):
        raise ArgumentError(
            f"'{path}' ends in '{path.suffix}', as evidence does; expected such as rules.csv."
        )


def _local_ranks(given: argparse.Namespace) -> int:
    ranks = 2 if given.ranks is None else int(given.ranks)
    if ranks < 2:
        raise ArgumentError(f"--ranks is {ranks}; expected at least 2: one rank moves nothing.")
    cores = os.cpu_count() or 1
    most = max(_MOST_LOCAL, 2 * cores)
    if ranks > most:
        raise ArgumentError(
            f"--ranks is {ranks}; expected at most {most} on this machine, which has {cores} cores."
        )
    return ranks


def _sweep(given: argparse.Namespace) -> int:
    started = time.monotonic()
    launched = launched_ranks(os.environ)
    if launched is not None:
        rank, ranks = launched
        if given.ranks not in (None, ranks):
            raise ArgumentError(
                f"--ranks is {given.ranks}, but the launcher started {ranks}; leave it out."
            )
    else:
        rank, ranks = 0, _local_ranks(given)
    _check_output(given.output)
    settings = _settings(given, ranks)
    if launched is None:
        _check_memory(settings[1]["sizes"][-1], ranks)
    if rank > 0:
        serve_launched()
        return 0
    connection = lead_launched(given.dtype) if launched else lead_local(ranks, given.dtype)
    with _stopping() as stop, connection as lead:
        evidence, _ = _sweep_with(lead, given.output, given, settings, started, stop)
    print(summary(evidence))
    _print_next(given.output, evidence)
    return 0


def _sweep_with(
    lead: Lead,
    output: Path,
    given: argparse.Namespace,
    settings: tuple[Plan, dict[str, Any]],
    started: float,
    stop: Any,
) -> tuple[Evidence, str]:
    """A whole sweep with its files. Returns the evidence and the text of the rules."""
    plan, parameters = settings
    header = {
        "tool": versions(),
        "machine": machine(),
        "parameters": {"ranks": lead.ranks, "nodes": lead.nodes, **parameters},
    }
    journal = _journal(journal_path(output), header, given)
    load = ForeignLoad(lead.pids) if lead.pids else None
    session = {"started": _now(), "resumed": bool(journal.evidence.sessions)}
    try:
        with on_stderr() as progress:
            sweep = Sweep(
                plan, lead, journal, time.monotonic, started=started, progress=progress, stop=stop
            )
            evidence = sweep.run(session)
    except Interrupted:
        spent = journal.evidence.spent
        raise Interrupted(
            f"Interrupted after {spent:.0f} s. What was measured is in '{journal_path(output)}'; "
            "the same command goes on from there."
        ) from None
    except MeasureError as error:
        raise MeasureError(
            f"{error} What was measured is in '{journal_path(output)}'; the same command goes on "
            "from there."
        ) from error
    finally:
        journal.close()
    evidence.foreign_cores = load.cores() if load else None
    conclude(evidence, plan.proof)
    text = rules_text(
        evidence.intervals,
        evidence.verdicts,
        Shape(lead.ranks, lead.nodes),
        _provenance(evidence, output),
    )
    _write_evidence(evidence, output)
    write_rules(output, text)
    journal.remove()
    return evidence, text


def _journal(path: Path, header: dict[str, Any], given: argparse.Namespace) -> Journal:
    """A new journal, or an old one to go on with."""
    if given.fresh or not path.exists():
        if given.resume:
            raise ResumeError(f"There is nothing to resume: '{path}' does not exist.")
        return Journal.create(path, header)
    journal = Journal.resume(path)
    old = journal.evidence
    for part in ("parameters", "machine", "tool"):
        differing = differences(old.header[part], header[part])
        if differing:
            journal.close()
            raise ResumeError(
                f"'{path}' is of an interrupted sweep that cannot go on here: "
                f"{'; '.join(differing)}. Repeat the command that was interrupted, or start anew "
                "with --fresh."
            )
    print(
        f"accl-tune: resuming '{path}': {old.spent:.0f} s spent, {len(old.records)} cells checked.",
        file=sys.stderr,
    )
    return journal


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _provenance(evidence: Evidence, output: Path) -> dict[str, str]:
    parameters = evidence.header["parameters"]
    tool = evidence.header["tool"]
    load = evidence.foreign_cores
    low, high = format_bytes(parameters["sizes"][0]), format_bytes(parameters["sizes"][-1])
    names = ", ".join(parameters["collectives"])
    return {
        "written_by": f"accl-tune {tool['accl_tune']}",
        "date": _now(),
        "machine": describe(evidence.header["machine"]),
        "engine": f"cpu, accl {tool['accl_py']}, library {tool['library']}",
        "ranks": str(parameters["ranks"]),
        "nodes": str(parameters["nodes"]),
        "measured": f"{names}; {low} to {high}; {parameters['dtype']}",
        "min_gain": f"{parameters['min_gain']:.3g}",
        **({} if load is None else {"load": f"{load:.1f} cores busy with other processes"}),
        "evidence": evidence_path(output).name,
    }


def _write_evidence(evidence: Evidence, output: Path) -> None:
    import json

    write_atomically(evidence_path(output), json.dumps(evidence.to_json(), indent=1) + "\n")


def _print_next(output: Path, evidence: Evidence) -> None:
    parameters = evidence.header["parameters"]
    name = evidence.intervals[0].collective if evidence.intervals else parameters["collectives"][0]
    size = format_bytes(evidence.intervals[0].max_bytes if evidence.intervals else 65536)
    ranks = parameters["ranks"]
    print(f"rules     {output}")
    print(f"evidence  {evidence_path(output)}")
    print("next")
    print(f"  ACCL_RULES={output} accl-perf {name} -b 8 -e 8M -f 4 --ranks {ranks}")
    print(f"  accl-tune explain {output} {name} --bytes {size} --ranks {ranks}")


@contextmanager
def _stopping() -> Iterator[Any]:
    """The first Ctrl-C or SIGTERM asks to stop between two measurements; the second interrupts at
    once.
    """
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- demo ----


def _demo(given: argparse.Namespace) -> int:
    if launched_ranks(os.environ) is not None:
        raise ArgumentError(
            "The demo starts its own ranks; run it without a launcher, or use 'accl-tune sweep'."
        )
    started = time.monotonic()
    ranks = _local_ranks(given)
    settings = _settings(given, ranks)
    again = _seconds(given.again, "--again")
    _check_memory(settings[1]["sizes"][-1], ranks)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"'{given.out}' cannot be made a folder: {error.strerror}.") from None
    output = given.out / "rules.csv"
    print(f"{describe(machine())}; {ranks} ranks")
    print(f"{given.budget:g} s to sweep, {again:g} s to measure again", flush=True)
    with _stopping() as stop:
        with lead_local(ranks, given.dtype) as lead:
            evidence, text = _sweep_with(lead, output, given, settings, started, stop)
        print(summary(evidence), end="\n\n")
        evidence.remeasured = _measure_again(
            lead_local(ranks, given.dtype), evidence, text, given, stop
        )
    _write_evidence(evidence, output)
    print("default against tuned, measured again in a fresh interleaved run\n")
    print(remeasured_table(evidence.remeasured), end="\n\n")
    changed = state_change(evidence)
    if changed:
        print(changed, end="\n\n")
    picture = given.out / "tune.png"
    plot(evidence, picture, _title(evidence))
    print(f"picture   {picture}")
    _print_next(output, evidence)
    return 0


def _measure_again(
    connection: AbstractContextManager[Lead],
    evidence: Evidence,
    text: str,
    given: argparse.Namespace,
    stop: Any,
) -> list[Any]:
    with connection as lead, on_stderr() as progress:
        return remeasure(
            lead,
            evidence.ordered(),
            {cell for interval in evidence.intervals for cell in interval.cells},
            text,
            "rules.csv",
            seconds=given.again,
            clock=time.monotonic,
            seed=given.seed,
            progress=progress,
            stop=stop,
        )
