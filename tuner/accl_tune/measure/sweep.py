"""A sweep: check, screen, confirm.

Rounds go over all cells in random order, so that whatever drifts on the machine spreads over all of
them. In a round each live candidate of a cell gets one pair with the default, candidates and sides
in random order. Candidates that cannot win any more leave; so the time goes to the close ones. Then
one finalist a cell is confirmed with fresh pairs,
whose number is fixed beforehand from the time that is left: samples that are taken until they
    please prove nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from accl_tune.decide.intervals import build_intervals
from accl_tune.decide.screening import (
    Screening,
    cannot_confirm,
    choose_finalists,
    losers,
    pairs_wanted,
    settled,
)
from accl_tune.decide.verdicts import Proof, judge
from accl_tune.errors import Interrupted, MeasureError
from accl_tune.evidence import Evidence, Journal, pairs_json, record_json
from accl_tune.measure.lead import DEFAULT, ChoiceFailed, Measurer
from accl_tune.measure.progress import Progress, Silence
from accl_tune.model import Cell, CellRecord, Choice, Pair, Trial, of_collective

__all__ = ["Plan", "Sweep", "conclude"]


@dataclass(frozen=True)
class Plan:
    """What a sweep is to do.

    budget: seconds for all sessions together; None: until all is known.
    batch_seconds: the length of a batch of back-to-back calls; short, since many pairs tell more
        than long ones.
    """

    cells: tuple[Cell, ...]
    budget: float | None = None
    seed: int = 1
    screening: Screening = field(default_factory=Screening)
    proof: Proof = field(default_factory=Proof)
    batch_seconds: float = 0.002


# Shares of the budget that a phase may have used when it ends. Checking is not optional: cells that
# were not checked by then are left to the default, and said so.
_CHECK_SHARE = 0.4
_SCREEN_SHARE = 0.65
# Where there is time, finalists get more pairs than they seem to need, up to so many times as many.
_MOST_SCALE = 2.0
_PAIRS_A_VISIT = 2  # of a finalist, while its buffers are warm
# Kept back for the end: the last visit may take longer than foreseen.
_RESERVE_SHARE = 0.02


class Sweep:
    """One session of a sweep; what earlier sessions learned is in the journal's evidence."""

    def __init__(
        self,
        plan: Plan,
        measurer: Measurer,
        journal: Journal,
        clock: Callable[[], float],
        *,
        started: float | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """clock: seconds, of any origin. started: its value when the session began. stop: whether
        to stop now.
        """
        self._plan = plan
        self._measurer = measurer
        self._journal = journal
        self._evidence = journal.evidence
        self._clock = clock
        self._started = clock() if started is None else started
        self._spent_before = self._evidence.spent
        self._progress = progress or Silence()
        self._stop = stop
        self._random = random.Random(f"{plan.seed}/{len(self._evidence.sessions)}")
        self._costs: dict[Cell, float] = {}  # seconds of a pair, as last seen

    # ---- time ----

    def _session(self) -> float:
        return self._clock() - self._started

    def _spent(self) -> float:
        return self._spent_before + self._session()

    def _budget(self) -> float:
        return inf if self._plan.budget is None else self._plan.budget * (1 - _RESERVE_SHARE)

    def _add(self, entry: dict[str, Any]) -> None:
        self._journal.add({**entry, "elapsed": round(self._session(), 4)})

    def _step(self, share: float, what: str) -> None:
        """Between two visits: shows how far it is, and stops if asked to."""
        left = None
        if self._plan.budget is not None:
            share = min(self._spent() / self._plan.budget, 1.0)
            left = max(self._plan.budget - self._spent(), 0.0)
        elif share > 0.02:
            left = self._spent() * (1 - share) / share
        self._progress.update(share, left, what)
        if self._stop():
            raise Interrupted("Interrupted.")

    # ---- the phases ----

    def run(self, session: dict[str, Any]) -> Evidence:
        """All phases. Raises Interrupted, MeasureError, EvidenceError; the journal then has all
        that was learned.
        """
        self._journal.add({"kind": "session", **session})
        if not self._evidence.finalists_chosen:
            self._check_all()
            self._screen_all()
            self._choose()
        self._confirm_all()
        self._progress.update(1.0, 0.0, "done")
        return self._evidence

    def _shuffled(self, records: Sequence[CellRecord]) -> list[CellRecord]:
        order = list(records)
        self._random.shuffle(order)
        return order

    def _check_all(self) -> None:
        todo = [cell for cell in self._plan.cells if cell not in self._evidence.records]
        self._random.shuffle(todo)
        for number, cell in enumerate(todo):
            self._step(0.2 * number / len(todo), f"checking, {number} of {len(todo)} cells")
            late = self._spent() > _CHECK_SHARE * self._budget()
            record = self._unmeasured(cell) if late else self._checked(cell)
            self._add({"kind": "cell", **record_json(record)})

    def _record(self, cell: Cell) -> CellRecord:
        field = self._measurer.field(cell)
        trials = [Trial(candidate) for candidate in field.candidates]
        return CellRecord(cell, field.default, field.default_aliases, trials)

    def _unmeasured(self, cell: Cell) -> CellRecord:
        record = self._record(cell)
        record.trials = []
        record.unmeasured = "the budget did not reach for it"
        return record

    def _checked(self, cell: Cell) -> CellRecord:
        """A cell with its candidates, whose data has been checked, and how long batches are."""
        record = self._record(cell)
        sides = [DEFAULT, *(trial.candidate.choice for trial in record.trials)]
        complaints = self._measurer.check(cell, sides)
        if complaints[0]:
            raise MeasureError(
                f"{cell}: the default itself, {record.default.label}, is wrong: {complaints[0]}. "
                "Nothing can be tuned on an engine that errs; please report this."
            )
        for trial, complaint in zip(record.trials, complaints[1:], strict=True):
            trial.out, trial.wrong = complaint, bool(complaint)
        record.iterations = self._iterations(cell)
        return record

    def _iterations(self, cell: Cell) -> int:
        """Calls in a batch, from ever longer ones until the clock can tell."""
        calls = 1
        while True:
            seconds = self._measurer.seconds(cell, DEFAULT, calls)
            if seconds > self._plan.batch_seconds / 4 or calls >= 1 << 20:
                # Once more: the first calls of all may have taken long for reasons of their own.
                seconds = min(seconds, self._measurer.seconds(cell, DEFAULT, calls))
                return max(1, round(calls * self._plan.batch_seconds / max(seconds, 1e-9)))
            calls *= 4

    def _screen_all(self) -> None:
        begun = self._spent()
        limit = max(begun, begun + (_SCREEN_SHARE * (self._budget() - begun)))
        how = self._plan.screening
        for number in range(1, how.most + 1):
            records = [
                record
                for record in self._evidence.ordered()
                if record.live() and not settled(record, how) and _fewest(record) < number
            ]
            if records:
                self._measurer.renew()
            for record in self._shuffled(records):
                live = len(record.live())
                if self._spent() + live * self._costs.get(record.cell, 0.0) > limit:
                    return
                share = 0.2 + 0.5 * (number - 1) / how.most
                self._step(share, f"screening, round {number}, {record.cell}, {live} candidates")
                self._screen(record)

    def _screen(self, record: CellRecord) -> None:
        choices = [trial.candidate.choice for trial in record.live()]
        self._random.shuffle(choices)
        pairs = self._measure(record, choices)
        if pairs is None:
            return
        entry: dict[str, Any] = {
            "kind": "screening",
            "cell": [record.cell.collective, record.cell.bytes],
            "pairs": [
                [_words(choice), pairs_json([pair])]
                for choice, pair in zip(choices, pairs, strict=True)
            ],
        }
        self._add(entry)
        out = losers(record, self._plan.screening)
        if out:
            self._drop(record, out, wrong=False)

    def _drop(self, record: CellRecord, out: dict[Choice, str], *, wrong: bool) -> None:
        rows = [[_words(choice), why] for choice, why in out.items()]
        cell = [record.cell.collective, record.cell.bytes]
        self._add({"kind": "screening", "cell": cell, "pairs": [], "out": rows, "wrong": wrong})

    def _measure(self, record: CellRecord, choices: Sequence[Choice]) -> list[Pair] | None:
        """A pair of each choice with the default. None where one failed: it is out then."""
        begun = self._clock()
        order = [(choice, self._random.random() < 0.5) for choice in choices]
        try:
            pairs = self._measurer.pairs(record.cell, order, record.iterations)
        except ChoiceFailed as failure:
            if not isinstance(failure.side, Choice):
                raise MeasureError(
                    f"{record.cell}: the default itself failed: {failure}"
                ) from failure
            self._drop(record, {failure.side: f"the call failed: {failure}"}, wrong=True)
            return None
        self._costs[record.cell] = (self._clock() - begun) / len(choices)
        return pairs

    def _choose(self) -> None:
        """The finalists, and how many pairs each gets: what it needs, scaled to the time that is
        left.
        """
        how = self._plan.screening
        chosen: list[tuple[CellRecord, Choice, int]] = []
        for name in dict.fromkeys(cell.collective for cell in self._plan.cells):
            records = of_collective(self._evidence.ordered(), name)
            for record, choice in zip(records, choose_finalists(records, how), strict=True):
                trial = record.trial(choice) if choice else None
                if choice and trial:
                    chosen.append((record, choice, pairs_wanted(record, trial, how)))
        cost = sum(wanted * self._costs.get(record.cell, 0.0) for record, _, wanted in chosen)
        scale = 1.0
        if self._plan.budget is not None and cost > 0:
            scale = min((self._budget() - self._spent()) / cost, _MOST_SCALE)
        finalists = [
            [
                [record.cell.collective, record.cell.bytes],
                _words(choice),
                max(int(scale * wanted), _PAIRS_A_VISIT),
            ]
            for record, choice, wanted in chosen
        ]
        self._add({"kind": "finalists", "finalists": finalists})

    def _confirm_all(self) -> None:
        finalists = [record for record in self._evidence.ordered() if record.finalist]
        total = sum(record.wanted for record in finalists)
        while todo := [record for record in finalists if self._unconfirmed(record)]:
            self._measurer.renew()
            for record in self._shuffled(todo):
                cost = _PAIRS_A_VISIT * self._costs.get(record.cell, 0.0)
                if self._spent() + cost > self._budget():
                    return
                done = sum(len(_finalist(one).confirming) for one in finalists)
                label = _finalist(record).candidate.choice.label
                self._step(0.7 + 0.3 * done / total, f"confirming, {record.cell}, {label}")
                self._confirm(record)

    def _unconfirmed(self, record: CellRecord) -> bool:
        trial = _finalist(record)
        short = len(trial.confirming) < record.wanted
        return (
            short and not trial.out and not cannot_confirm(trial.confirming, self._plan.screening)
        )

    def _confirm(self, record: CellRecord) -> None:
        choice = _finalist(record).candidate.choice
        count = min(_PAIRS_A_VISIT, record.wanted - len(_finalist(record).confirming))
        pairs = self._measure(record, [choice] * count)
        if pairs is None:
            return
        cell = [record.cell.collective, record.cell.bytes]
        self._add(
            {"kind": "confirming", "cell": cell, "pairs": [[_words(choice), pairs_json(pairs)]]}
        )


def _words(choice: Choice) -> list[Any]:
    return [choice.algorithm, choice.protocol, choice.chunk_bytes]


def _fewest(record: CellRecord) -> int:
    return min(len(trial.screening) for trial in record.live())


def _finalist(record: CellRecord) -> Trial:
    trial = record.trial(record.finalist) if record.finalist else None
    if trial is None:
        raise MeasureError(f"{record.cell}: the journal names a finalist that is no candidate.")
    return trial


def conclude(evidence: Evidence, proof: Proof) -> None:
    """Verdicts and intervals of all cells, from the samples."""
    records = evidence.ordered()
    evidence.verdicts = {verdict.cell: verdict for verdict in judge(records, proof)}
    evidence.intervals = []
    for name in dict.fromkeys(record.cell.collective for record in records):
        evidence.intervals.extend(build_intervals(of_collective(records, name), evidence.verdicts))
