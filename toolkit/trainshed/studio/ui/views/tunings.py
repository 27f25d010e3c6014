"""Tuning jobs: `trainshed tune status` and the tuning report, live."""

from __future__ import annotations

import time

from trainshed.studio.tune import sessions
from trainshed.studio.tune.board import counted, marked
from trainshed.studio.tune.trial import Trial
from trainshed.studio.tune.tuner import TuningStatus
from trainshed.studio.tune.tuning_folder import TuningFolder
from trainshed.studio.tune.tuning_page import facts, importance_of, trials_of

from .batches import Batches, Page, Row
from .parts import Part, bars, link, pill, table

_IMPORTANCE = "the part of the variance of the trials' ranks that each hyperparameter explains alone"


class Tunings(Batches[TuningFolder]):
    """The tuning jobs of the runs that are shown."""

    folder, ends = TuningFolder, sessions.end
    name, head, starts = "tunings", ("objective", "how it stands"), "trainshed tune TUNE.yaml"
    stop = "Its trials are asked to end, too, and keep what they have. `trainshed tune --resume` goes on."

    def row(self, folder: TuningFolder) -> tuple[object, str, Row]:
        """What it optimizes, and how it stands."""
        told, state, _ = sessions.standing(folder)
        return told.tuning.name, state, (told.tuning.aim, counted(told).partition(": ")[2])

    def shown(self, key: str, folder: TuningFolder) -> Page:
        """Its trials, and what mattered."""
        told, state, reason = sessions.standing(folder)
        parts = [
            {"kind": "charts", "title": "Best so far", "path": f"api/page/tunings/{key}/charts"},
            bars("Importance", importance_of(told.tuning.space, _measured(told)), _IMPORTANCE),
            self._trials(folder, told),
        ]
        return told.tuning.name, state, facts(told, reason, time.time()), parts

    def chart(self, key: str) -> Part | None:
        """The objective of each trial, and the best so far."""
        folder = self._find(key)
        return None if folder is None else _chart(sessions.standing(folder)[0])

    def _trials(self, folder: TuningFolder, told: TuningStatus) -> Part:
        head, rows = trials_of(told)
        best = {trial.number for trial in marked(told)}
        shown = []
        for number, state, value, *more in rows:
            _, so_far = told.latest.get(number, (None, None))
            name = link(f"{number}{' ★' if number in best else ''}", self.known.address(folder.run(number)))
            shown.append((name, pill(state), value or ("" if so_far is None else f"{so_far:.6g} so far"), *more))
        return table("Trials, the best first", head, shown)


def _measured(told: TuningStatus) -> list[Trial]:
    return [trial for trial in told.trials if trial.over and trial.value is not None]


def _chart(told: TuningStatus) -> Part:
    objective, best = told.tuning.objective, list[float]()
    measured = [(trial.number, trial.value) for trial in _measured(told) if trial.value is not None]
    for _, value in measured:
        best.append(value if not best or objective.better(value, best[-1]) else best[-1])
    lines = {"each trial": [value for _, value in measured], "the best so far": best}
    return {"title": objective.metric, "axis": "trial", "x": [number for number, _ in measured], "lines": lines}
