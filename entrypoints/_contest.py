"""`library: auto`: every library that is installed grows a model within its share of a time budget; the best one is kept.

All learn from the same rows and are judged by the same metric, of scikit-learn, on the same validation rows.
"""

from __future__ import annotations

import copy
import itertools
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import _measures
import _told
import numpy
from _common import Problem, looked
from _ring import Ring
from _rounds import Training, read

from trainshed.checkpoint.guard import Guard
from trainshed.data import has_previous_model

AUTO = "auto"
ROUNDS = 10_000  # at most, where num_round is not given: early stopping ends before that
PATIENCE = 50
HELD_OUT = 0.2


@dataclass
class Entry:
    """A line of the leaderboard. note: why it took no part, or that its time was over."""

    library: str
    score: float | None = None
    rounds: int = 0
    seconds: float = 0.0
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """For a table."""
        score = "" if self.score is None else f"{self.score:.6g}"
        return self.library, score, str(self.rounds), f"{self.seconds:.1f}", self.note


class Candidate(Training):
    """A training that grows within a time, measures in silence, and is judged at its end."""

    contest: Contest
    entry: Entry

    def guarded(self) -> Guard:
        """That of all candidates."""
        return self.contest.guard

    @property
    def more(self) -> dict[str, Any]:
        """The leaderboard."""
        return {"leaderboard": [vars(entry) for entry in self.contest.board]}

    def show(self, values: dict[str, float], rounds: int) -> None:
        """Nothing: of the best a line is printed at the end."""

    def grow(self, ends: float) -> None:
        """Grows trees until validation gets no better, or until the moment `ends` of time.monotonic. Raises Problem."""
        while self.round < self.hp.num_round and not self.settled() and not self.guard.stopping:
            if self.round and time.monotonic() > ends:
                self.entry.note = "its time was over"
                break
            self.engine.update(self.round)
            self.round += 1
            self.measure()
            self.guard.decide(next(self.contest.steps))

    @property
    def rounds(self) -> int:
        """Those of the model that is kept."""
        best = self.best()
        return self.round if best is None else best + 1

    def judge(self, predictions: Callable[..., Any]) -> float:
        """The metric on the validation rows."""
        table = self.data.validation
        assert table is not None
        rows = numpy.arange(table.rows)
        matrix = self.features.matrix(table, rows)
        answers = predictions(self.engine.model(self.rounds), matrix, self.features, self.target)
        labels = self.target.labels(table, rows)
        return _measures.judged(self.contest.metric, labels, answers, table.weights, self.target.count)


class Contest:
    """A job of `library: auto`. Raises Problem.

    libraries: name -> gives its module, or raises Problem.
    """

    def __init__(self, hp: Namespace, ring: Ring, libraries: Mapping[str, Callable[[], Any]]) -> None:
        _require_served(hp, ring)
        hp.validation_fraction = hp.validation_fraction or (0.0 if hp.validation else HELD_OUT)
        hp.early_stopping_rounds = hp.early_stopping_rounds or PATIENCE
        self.hp, self.ring, self.libraries = hp, ring, libraries
        self.known = read(hp, ring)
        self.metric = _measures.judge_of(hp.objective, hp.eval_metric)
        looked(hp)
        self.guard, self.steps = Guard("", "", ranks=ring), itertools.count(1)
        self.board: list[Entry] = []
        self.best: Candidate | None = None

    @property
    def higher(self) -> bool:
        """Whether more of the metric is better."""
        return self.metric in _measures.HIGHER_IS_BETTER

    def run(self) -> None:
        """Tries all libraries, prints the leaderboard, and writes the best model."""
        ends = time.monotonic() + self.hp.time_budget
        for at, library in enumerate(self.libraries):
            self._try(library, max(0.0, ends - time.monotonic()) / (len(self.libraries) - at))
            if self.guard.stopping:
                break
        if self.best is None:
            raise Problem("no library could learn: " + "; ".join(f"{entry.library}: {entry.note}" for entry in self.board))
        self._end(self.best)

    def _try(self, library: str, share: float) -> None:
        """Lets a library learn for its share of the time, in seconds."""
        entry, began = Entry(library), time.monotonic()
        self.board.append(entry)
        own = copy.copy(self.hp)
        own.library, own.eval_metric = library, (self.metric,)
        if "num_round" not in own.asked:
            own.num_round = ROUNDS
        try:
            module = self.libraries[library]()
            made = _of(self, entry)(own, self.ring, module.Engine(), known=self.known)
            self.ring.say(f"{library} learns, for {share:.0f} s at most")
            made.grow(began + share)
            entry.score, entry.rounds = made.judge(module.predictions), made.rounds
            if self.best is None or self._order(entry) < self._order(self.best.entry):
                self.best = made
        except Problem as problem:
            entry.note = str(problem)
        entry.seconds = round(time.monotonic() - began, 3)

    def _order(self, entry: Entry) -> tuple[bool, float]:
        score = 0.0 if entry.score is None else entry.score
        return entry.score is None, -score if self.higher else score

    def _end(self, best: Candidate) -> None:
        self.board.sort(key=self._order)
        columns = ("library", f"validation {self.metric}", "rounds", "seconds", "note")
        _told.table(self.hp, "leaderboard", "Leaderboard", columns, [entry.cells() for entry in self.board])
        self.ring.say(f"the best: {best.entry.library}")
        values = {name: series[best.rounds - 1] for name, series in best.history.items()}
        Training.show(best, values, best.rounds)
        best.finish(self.guard.stopping)
        if self.guard.stopping:
            self.guard.answer(self.guard.saved_step)
        self.guard.close()


def _of(contest: Contest, entry: Entry) -> type[Candidate]:
    """Candidates that know what they take part in before they read."""
    return type("Candidate", (Candidate,), {"contest": contest, "entry": entry})


def _require_served(hp: Namespace, ring: Ring) -> None:
    if ring.world_size > 1:
        raise Problem("library auto is for one rank: name a library to train on several")
    if hp.previous_model or has_previous_model():
        raise Problem("library auto does not go on from a model: name the library of the model")
