"""Tuning jobs: `trainshed tune status` and the tuning report, live."""

from __future__ import annotations

import time

from trainshed.base.errors import TrainshedError
from trainshed.studio.tune import sessions
from trainshed.studio.tune.board import counted, marked
from trainshed.studio.tune.trial import Trial
from trainshed.studio.tune.tuner import View
from trainshed.studio.tune.tuning_folder import TuningFolder
from trainshed.studio.tune.tuning_page import facts, importance_of, trials_of

from .batches import batches
from .kind import End, Kind
from .parts import Part, bars, is_live, link, pill, table, view

ADDRESS = "#/tunings/"
_STOP = "Its trials are asked to end, too, and keep what they have. `trainshed tune --resume` goes on."


class Tunings(Kind):
    """The tuning jobs of the runs that are shown."""

    def keys(self) -> list[str]:
        """Of all."""
        return [*batches(TuningFolder, self.known)]

    def listed(self) -> Part:
        """A row for each."""
        rows = [_row(key, folder) for key, folder in batches(TuningFolder, self.known).items()]
        head = ("tuning", "state", "objective", "how it stands", "folder")
        return view(
            "Tunings", [table("", head, rows, empty="no tunings: trainshed tune TUNE.yaml starts one")], live=is_live(rows)
        )

    def one(self, key: str) -> Part | None:
        """One of them."""
        folder = batches(TuningFolder, self.known).get(key)
        if folder is None:
            return None
        told, status, reason = sessions.standing(folder)
        live = status == "InProgress"
        parts = [
            {"kind": "charts", "title": "Best so far", "path": f"api/page/tunings/{key}/charts"},
            bars("Importance", importance_of(told.tuning.space, _measured(told)), _IMPORTANCE),
            self._trials(folder, told),
        ]
        shown = [("", counted(told)), *facts(told, reason, time.time()), ("folder", folder.path)]
        return view(
            told.tuning.name, parts, state=status, facts=shown[1:], live=live, can={"stop": live}, stop=_STOP, up="tunings"
        )

    def chart(self, key: str) -> Part | None:
        """The objective of each trial, and the best so far."""
        folder = batches(TuningFolder, self.known).get(key)
        return None if folder is None else _chart(sessions.standing(folder)[0])

    def end(self, key: str) -> tuple[TuningFolder, End] | None:
        """(folder, what stops it)."""
        folder = batches(TuningFolder, self.known).get(key)
        return None if folder is None else (folder, sessions.end)

    def _trials(self, folder: TuningFolder, told: View) -> Part:
        head, rows = trials_of(told)
        best = {trial.number for trial in marked(told)}
        shown = []
        for number, state, value, *more in rows:
            _, so_far = told.latest.get(number, (None, None))
            name = link(f"{number}{' ★' if number in best else ''}", self.known.address(folder.run(number)))
            shown.append((name, pill(state), value or ("" if so_far is None else f"{so_far:.6g} so far"), *more))
        return table("Trials, the best first", head, shown)


_IMPORTANCE = "the part of the variance of the trials' ranks that each hyperparameter explains alone"


def _row(key: str, folder: TuningFolder) -> tuple[object, ...]:
    try:
        told, status, _ = sessions.standing(folder)
    except TrainshedError as error:
        return (folder.shown, pill("Failed"), "", error.message, folder.path)
    how = counted(told).partition(": ")[2]
    return (link(told.tuning.name, ADDRESS + key), pill(status), told.tuning.aim, how, folder.path)


def _measured(told: View) -> list[Trial]:
    return [trial for trial in told.trials if trial.over and trial.value is not None]


def _chart(told: View) -> Part:
    objective, best = told.tuning.objective, list[float]()
    measured = [(trial.number, trial.value) for trial in _measured(told) if trial.value is not None]
    for _, value in measured:
        best.append(value if not best or objective.better(value, best[-1]) else best[-1])
    lines = {"each trial": [value for _, value in measured], "the best so far": best}
    return {"title": objective.metric, "axis": "trial", "x": [number for number, _ in measured], "lines": lines}
