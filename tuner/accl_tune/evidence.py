"""The evidence of a sweep: a journal while it runs, one JSON file when it is done.

Everything that a sweep learns is an *entry*. An entry is written to the journal (one JSON line) and
then applied to the `Evidence` in memory. Resuming reads the journal and applies its entries anew:
what an interrupted sweep knew and what a resumed one knows are the same by construction.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from accl_tune.decide.intervals import Interval
from accl_tune.decide.verdicts import Level, Verdict
from accl_tune.errors import EvidenceError
from accl_tune.model import Candidate, Cell, CellRecord, Choice, Pair, Trial

__all__ = [
    "Evidence",
    "Journal",
    "Remeasured",
    "evidence_path",
    "journal_path",
    "load",
    "write_atomically",
]

FORMAT = "accl-tune evidence 1"

Entry = dict[str, Any]


def evidence_path(rules: Path) -> Path:
    """`rules.evidence.json` for `rules.csv`."""
    return rules.with_suffix(".evidence.json")


def journal_path(rules: Path) -> Path:
    """`rules.evidence.jsonl` for `rules.csv`."""
    return rules.with_suffix(".evidence.jsonl")


@dataclass(frozen=True)
class Remeasured:
    """Default against rules in a fresh run, after the decision. gain: times as fast, with its 95 %
    interval.
    """

    cell: Cell
    default_us: float
    tuned_us: float
    gain: float
    low: float
    high: float
    ran: Choice  # what the engine reported with the rules
    by_rule: bool  # whether a rule of the sweep changes what runs; else both sides are the default
    pairs: tuple[Pair, ...] = ()


@dataclass
class Evidence:
    """All that a sweep knows.

    header: machine, versions, parameters; what must be equal to resume. spent: seconds of all
        sessions so far.
    """

    header: Entry = field(default_factory=dict)
    sessions: list[Entry] = field(default_factory=list)
    records: dict[Cell, CellRecord] = field(default_factory=dict)
    finalists_chosen: bool = False
    spent: float = 0.0
    foreign_cores: float | None = None  # that other processes kept busy in the last session
    verdicts: dict[Cell, Verdict] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    remeasured: list[Remeasured] = field(default_factory=list)
    _spent_before: float = 0.0

    def apply(self, entry: Entry) -> None:
        """Takes in one entry. Raises KeyError, TypeError or ValueError where it is malformed."""
        kind = entry["kind"]
        if kind == "session":
            self.sessions.append({key: entry[key] for key in entry if key != "kind"})
            self._spent_before = self.spent
        elif kind == "cell":
            record = _record(entry)
            self.records[record.cell] = record
        elif kind in ("screening", "confirming"):
            self._take_pairs(kind, entry)
        elif kind == "finalists":
            self._take_finalists(entry)
        else:
            raise ValueError(f"an entry of kind '{kind}' is unknown")
        if "elapsed" in entry:
            self.spent = self._spent_before + float(entry["elapsed"])

    def _take_pairs(self, kind: str, entry: Entry) -> None:
        record = self.records[_cell(entry["cell"])]
        for words, pairs in entry["pairs"]:
            trial = _trial_of(record, _choice(words))
            getattr(trial, kind).extend(_pair(values) for values in pairs)
        for words, why in entry.get("out", ()):
            trial = _trial_of(record, _choice(words))
            trial.out = str(why)
            trial.wrong = trial.wrong or bool(entry.get("wrong"))

    def _take_finalists(self, entry: Entry) -> None:
        for cell, words, wanted in entry["finalists"]:
            record = self.records[_cell(cell)]
            record.finalist, record.wanted = _choice(words), int(wanted)
        self.finalists_chosen = True

    def ordered(self) -> list[CellRecord]:
        """The records by collective and size."""
        return [self.records[cell] for cell in sorted(self.records)]

    def to_json(self) -> Entry:
        """The content of the evidence file; `from_json` reads it."""
        return {
            "format": FORMAT,
            **self.header,
            "sessions": self.sessions,
            "spent_seconds": round(self.spent, 3),
            "foreign_cores": None if self.foreign_cores is None else round(self.foreign_cores, 3),
            "pair": ["default_us", "candidate_us", "default_first"],
            "cells": [self._cell_json(record) for record in self.ordered()],
            "rules": [_interval_json(interval) for interval in self.intervals],
            "remeasured": [_remeasured_json(row) for row in self.remeasured],
        }

    def _cell_json(self, record: CellRecord) -> Entry:
        verdict = self.verdicts.get(record.cell)
        return {
            **record_json(record),
            "finalist": _words(record.finalist) if record.finalist else None,
            "verdict": _verdict_json(verdict) if verdict else None,
        }

    @classmethod
    def from_json(cls, data: Entry) -> Evidence:
        """Reads the content of an evidence file. Raises KeyError, TypeError or ValueError where it
        is not one.
        """
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}; this version reads {FORMAT!r}")
        evidence = cls(
            header={key: data[key] for key in ("tool", "machine", "parameters")},
            sessions=list(data["sessions"]),
            spent=float(data["spent_seconds"]),
            foreign_cores=data["foreign_cores"],
            finalists_chosen=True,
        )
        for entry in data["cells"]:
            record = _record(entry)
            record.finalist = _choice(entry["finalist"]) if entry["finalist"] else None
            evidence.records[record.cell] = record
            if entry["verdict"]:
                evidence.verdicts[record.cell] = _verdict(record, entry["verdict"])
        evidence.intervals = [_interval(entry) for entry in data["rules"]]
        evidence.remeasured = [_remeasured(entry) for entry in data["remeasured"]]
        return evidence


# ---- the JSON form of the words ----


def _words(choice: Choice) -> list[Any]:
    return [choice.algorithm, choice.protocol, choice.chunk_bytes]


def _choice(words: Iterable[Any]) -> Choice:
    algorithm, protocol, chunk = words
    return Choice(str(algorithm), str(protocol), int(chunk))


def _cell(words: Iterable[Any]) -> Cell:
    name, size = words
    return Cell(str(name), int(size))


def _pair(values: Iterable[Any]) -> Pair:
    default, candidate, first = values
    return Pair(float(default), float(candidate), bool(first))


def pairs_json(pairs: Iterable[Pair]) -> list[list[Any]]:
    """Pairs as evidence spells them: five significant digits say more than the clock does."""
    return [
        [
            float(f"{pair.default_us:.5g}"),
            float(f"{pair.candidate_us:.5g}"),
            int(pair.default_first),
        ]
        for pair in pairs
    ]


def _trial_of(record: CellRecord, choice: Choice) -> Trial:
    for trial in record.trials:
        if trial.candidate.choice == choice:
            return trial
    raise ValueError(f"{record.cell} has no candidate {choice.label}")


def record_json(record: CellRecord) -> Entry:
    """A cell with its trials and their samples."""
    return {
        "cell": [record.cell.collective, record.cell.bytes],
        "default": _words(record.default),
        "default_aliases": [_words(choice) for choice in record.default_aliases],
        "iterations": record.iterations,
        "unmeasured": record.unmeasured,
        "candidates": [
            {
                "choice": _words(trial.candidate.choice),
                "aliases": [_words(choice) for choice in trial.candidate.aliases],
                "out": trial.out,
                "wrong": trial.wrong,
                "screening": pairs_json(trial.screening),
                "confirming": pairs_json(trial.confirming),
            }
            for trial in record.trials
        ],
    }


def _record(entry: Entry) -> CellRecord:
    return CellRecord(
        cell=_cell(entry["cell"]),
        default=_choice(entry["default"]),
        default_aliases=tuple(_choice(words) for words in entry["default_aliases"]),
        iterations=int(entry["iterations"]),
        unmeasured=str(entry["unmeasured"]),
        trials=[
            Trial(
                Candidate(
                    _choice(row["choice"]), tuple(_choice(words) for words in row["aliases"])
                ),
                out=str(row["out"]),
                wrong=bool(row["wrong"]),
                screening=[_pair(values) for values in row["screening"]],
                confirming=[_pair(values) for values in row["confirming"]],
            )
            for row in entry["candidates"]
        ],
    )


_NUMBERS = ("gain", "low", "high", "p", "adjusted_p")


def _verdict_json(verdict: Verdict) -> Entry:
    return {
        "level": verdict.level.value,
        "why": verdict.why,
        "pairs": verdict.pairs,
        **{name: float(f"{getattr(verdict, name):.6g}") for name in _NUMBERS},
    }


def _verdict(record: CellRecord, entry: Entry) -> Verdict:
    numbers = {name: float(entry[name]) for name in _NUMBERS}
    return Verdict(
        record.cell,
        record.finalist,
        Level(entry["level"]),
        str(entry["why"]),
        pairs=int(entry["pairs"]),
        **numbers,
    )


def _interval_json(interval: Interval) -> Entry:
    return {
        "collective": interval.collective,
        "choice": _words(interval.choice),
        "min_bytes": interval.min_bytes,
        "max_bytes": interval.max_bytes,
        "cells": [cell.bytes for cell in interval.cells],
    }


def _interval(entry: Entry) -> Interval:
    name = str(entry["collective"])
    cells = tuple(Cell(name, int(size)) for size in entry["cells"])
    return Interval(
        name, _choice(entry["choice"]), int(entry["min_bytes"]), int(entry["max_bytes"]), cells
    )


_REMEASURED = ("default_us", "tuned_us", "gain", "low", "high")


def _remeasured_json(row: Remeasured) -> Entry:
    return {
        "cell": [row.cell.collective, row.cell.bytes],
        **{name: float(f"{getattr(row, name):.6g}") for name in _REMEASURED},
        "ran": _words(row.ran),
        "by_rule": row.by_rule,
        "pairs": pairs_json(row.pairs),
    }


def _remeasured(entry: Entry) -> Remeasured:
    return Remeasured(
        _cell(entry["cell"]),
        **{name: float(entry[name]) for name in _REMEASURED},
        ran=_choice(entry["ran"]),
        by_rule=bool(entry["by_rule"]),
        pairs=tuple(_pair(values) for values in entry["pairs"]),
    )


# ---- files ----


def write_atomically(path: Path, text: str) -> None:
    """Writes a whole file or none of it. Raises EvidenceError."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise EvidenceError(f"'{path}' could not be written: {error.strerror or error}.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load(path: Path) -> Evidence:
    """Reads an evidence file. Raises EvidenceError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Evidence.from_json(data)
    except OSError as error:
        raise EvidenceError(f"'{path}' could not be read: {error.strerror or error}.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError(f"'{path}' is no evidence of accl-tune: {_fault(error)}.") from error


def _fault(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


class Journal:
    """The entries of a sweep under way, one JSON line each; the first is the header.

    Lines are handed to the system at once, so that a killed process loses at most the line it was
    writing.
    """

    def __init__(self, path: Path, file: TextIO, evidence: Evidence) -> None:
        self._path = path
        self._file = file
        self.evidence = evidence

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Starts a journal, in place of an old one. Raises EvidenceError."""
        write_atomically(path, json.dumps({"kind": "header", "format": FORMAT, **header}) + "\n")
        return cls(path, _open(path), Evidence(header=dict(header)))

    @classmethod
    def resume(cls, path: Path) -> Journal:
        """Reads a journal and goes on with it. Raises EvidenceError, with the line that is wrong.

        A last line that was cut short is dropped: the process was killed while it wrote it.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EvidenceError(f"'{path}' could not be read: {error}.") from error
        whole = text[: text.rfind("\n") + 1]
        evidence = _replay(path, whole.splitlines())
        if whole != text:
            write_atomically(path, whole)
        return cls(path, _open(path), evidence)

    def add(self, entry: Entry) -> None:
        """Writes an entry and applies it. Raises EvidenceError."""
        try:
            self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            raise EvidenceError(
                f"'{self._path}' could not be written: {error.strerror}."
            ) from error
        self.evidence.apply(entry)

    def close(self) -> None:
        """Keeps the file."""
        self._file.close()

    def remove(self) -> None:
        """Ends the journal: the evidence file has taken its place."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _open(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"'{path}' could not be opened: {error.strerror}.") from error


def _replay(path: Path, lines: list[str]) -> Evidence:
    if not lines:
        raise EvidenceError(f"'{path}' is empty; start anew with --fresh.")
    evidence = Evidence()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if number > 1:
                evidence.apply(entry)
                continue
            if entry["kind"] != "header" or entry["format"] != FORMAT:
                raise ValueError(f"it does not start as a journal of format '{FORMAT}'")
            evidence.header = {key: entry[key] for key in ("tool", "machine", "parameters")}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EvidenceError(
                f"{path}:{number}: {_fault(error)}; damaged; start anew with --fresh."
            ) from error
    return evidence
