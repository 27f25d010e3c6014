"""The report of a tuning job: one page. History, importance, parallel coordinates, trials."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import trainshed
from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic
from trainshed.base.units import duration
from trainshed.studio.batches.folder import FAILED, STOPPED
from trainshed.studio.pages.engine import figure
from trainshed.studio.pages.importance import importance
from trainshed.studio.pages.markup import document, is_ours, legend, section, table, text
from trainshed.studio.pages.scale import short
from trainshed.studio.pages.style import STYLE

from .space import CATEGORICAL, LOG, Parameter
from .trial import Trial, best_of, elapsed, front_of
from .tuner import TuningStatus
from .tuning import MINIMIZE
from .tuning_folder import TuningFolder

_MOST_LINES = 400  # of the parallel coordinates; the best and the newest
_MOST_ROWS = 500
_MOST_AXES = 14


def write(folder: TuningFolder, path: str = "") -> str:
    """Writes the page, into the folder unless a path is given; its path. Raises TrainshedError."""
    from .sessions import standing

    view, status, reason = standing(folder)
    path = path or f"{folder.path}/report.html"
    if not is_ours(path):
        raise TrainshedError(f"{path} is there already, and is not a page of ours", hint="name another file with --output")
    try:
        write_atomic(path, page(view, status, reason, time.time()))
    except OSError as error:
        raise TrainshedError(f"cannot write {path}: {error.strerror}") from error
    return path


def page(view: TuningStatus, status: str, reason: str, now: float) -> str:
    """The page.

    Args:
        status: of HyperParameterTuningJobStatus. reason: why it ended. now: seconds since the epoch.
    """
    measured = [trial for trial in view.trials if trial.over and trial.value is not None]
    body = _card(view, status, reason, now)
    if view.tuning.further:
        body += section(
            "Front",
            front(view, measured),
            "the first two objectives; in colour the trials that no other one beats in all of them",
        )
    body += section("History", history(view, measured))
    body += section(
        "Importance",
        _ranked(importance_of(view.tuning.space, measured)),
        "the part of the variance of the trials' ranks that each hyperparameter explains alone",
    )
    body += section("Parallel coordinates", parallel(view, measured), "one line a trial; the best tenth in colour")
    body += section("Trials", _trials(view))
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    foot = f"<footer>made by trainshed {text(trainshed.__version__)}, {made}</footer>"
    return document(f"{view.tuning.name}: tuning report", f"<main>{body}{foot}</main>", STYLE)


def facts(view: TuningStatus, reason: str, now: float) -> list[tuple[str, str]]:
    """(name, words) of what stands above all else."""
    tuning, trials = view.tuning, view.trials
    best = best_of(trials, tuning.objectives)
    told = [
        ("objectives" if tuning.further else "objective", tuning.aim),
        ("strategy", tuning.strategy.kind),
        ("early stopping", tuning.early.kind),
        ("trials over", str(sum(trial.over for trial in trials))),
        ("stopped early", str(sum(trial.state == STOPPED for trial in trials))),
        ("failed", str(sum(trial.state == FAILED for trial in trials))),
        ("time in which trials ran", duration(elapsed(trials, now))),
        ("why it ended", reason),
    ]
    if best is not None and best.value is not None:
        told += [(f"best {tuning.objective.metric}", short(best.value)), ("best trial", str(best.number))]
        told += [(f"best {name}", value) for name, value in best.values.items()]
    return [(name, value) for name, value in told if value]


def _card(view: TuningStatus, status: str, reason: str, now: float) -> str:
    shown = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts(view, reason, now))
    kind = {"Completed": "good", "Failed": "bad"}.get(status, "warn")
    return (
        f'<div class="card"><div class="top"><h1>{text(view.tuning.name)}</h1>'
        f'<span class="state {kind}">{text(status)}</span></div><dl class="facts">{shown}</dl></div>'
    )


def _ranked(found: list[tuple[str, float]]) -> str:
    told = "".join(f"<p>{text(name)}: {share:.0%}</p>" for name, share in found)
    return figure({"kind": "ranked", "rows": found}, told) if found else ""


def history(view: TuningStatus, measured: Sequence[Trial]) -> str:
    """The objective of each trial, and the best so far; "" without any."""
    if not measured:
        return ""
    objective, best = view.tuning.objective, None
    points, line = [], []
    for trial in sorted(measured, key=lambda trial: trial.number):
        assert trial.value is not None
        best = trial.value if best is None or objective.better(trial.value, best) else best
        line.append([trial.number, best])
        points.append([trial.number, trial.value, int(trial.state == STOPPED), _said(trial, trial.values.items())])
    chips = [("k0", "completed", ""), ("k1", "stopped early", ""), ("k2", "the best so far", "")]
    spec: dict[str, Any] = {"kind": "points", "across": "trial", "up": objective.metric, "points": points, "line": line}
    spec["logs"] = [False, None]
    return legend(chips) + figure(spec)


def front(view: TuningStatus, measured: Sequence[Trial]) -> str:
    """The first two objectives against each other, the front in colour; "" without any trial."""
    told = [(trial, trial.value, trial.further[0]) for trial in measured if trial.value is not None and trial.further]
    if not told:
        return ""
    objectives = view.tuning.objectives
    best = {trial.number for trial in front_of(view.trials, objectives)}
    points = []
    for trial, x, y in sorted(told, key=lambda one: one[0].number in best):
        named = zip((one.metric for one in objectives), map(short, (x, *trial.further)), strict=False)
        points.append([x, y, 0 if trial.number in best else 7, _said(trial, named)])
    spec = {"kind": "points", "across": objectives[0].metric, "up": objectives[1].metric, "points": points}
    return legend([("k0", "on the front", ""), ("k7", "beaten", "")]) + figure(spec)


def _said(trial: Trial, named: Iterable[tuple[str, str]]) -> str:
    value = f": {short(trial.value)}" if trial.value is not None else ""
    return f"trial {trial.number}{value}; " + ", ".join(f"{name}={held}" for name, held in named)


def importance_of(space: Sequence[Parameter], measured: Sequence[Trial]) -> list[tuple[str, float]]:
    """(name, share) of each hyperparameter, as `pages.importance` has it; of trials that have an objective."""
    values = {one.name: [trial.values.get(one.name) for trial in measured] for one in space}
    return importance(values, [trial.value or 0.0 for trial in measured], [p.name for p in space if p.kind == CATEGORICAL])


def parallel(view: TuningStatus, measured: Sequence[Trial]) -> str:
    """Parallel coordinates: an axis for each hyperparameter, the objective last; "" for fewer than two trials."""
    if len(measured) < 2:
        return ""
    objective, space = view.tuning.objective, view.tuning.space[:_MOST_AXES]
    ranked = sorted(measured, key=lambda trial: (objective.loss(trial.value or 0.0), trial.number))
    axes = [{"name": one.name, "logs": one.scale == LOG} for one in space]
    last = {"name": objective.metric, "down": objective.goal == MINIMIZE}
    rows = [_row(trial, space, good=place < max(1, len(ranked) // 10)) for place, trial in enumerate(ranked[:_MOST_LINES])]
    return figure({"kind": "parallel", "axes": [*axes, last], "rows": rows})


def _row(trial: Trial, space: Sequence[Parameter], good: bool) -> dict[str, Any]:
    look = {"colour": 0} if good else {"colour": 7, "weak": True}
    return {"name": f"trial {trial.number}", "values": [*_placed(trial, space), trial.value], **look}


def _placed(trial: Trial, space: Sequence[Parameter]) -> list[str | float | None]:
    held = [(one, trial.values.get(one.name)) for one in space]
    return [text if text is None or one.kind == CATEGORICAL else _as_number(text) for one, text in held]


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _trials(view: TuningStatus) -> str:
    head, rows = trials_of(view)
    return table(rows, head)


def trials_of(view: TuningStatus) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """(head, rows) of the trials, the best first; the first cell is the trial's number, the second its state."""
    objective, space = view.tuning.objective, view.tuning.space
    ranked = sorted(view.trials, key=lambda trial: (trial.value is None, objective.loss(trial.value or 0.0), trial.number))
    rows = [
        (
            trial.number,
            trial.state,
            short(trial.value) if trial.value is not None else "",
            *([short(one) for one in trial.further] or [""] * len(view.tuning.further)),
            duration(max(0.0, trial.ended - trial.created)) if trial.over else "",
            *(trial.values.get(parameter.name, "") for parameter in space),
            trial.reason,
        )
        for trial in ranked[:_MOST_ROWS]
    ]
    further = (one.metric for one in view.tuning.further)
    head = ("trial", "state", objective.metric, *further, "time", *(parameter.name for parameter in space), "")
    return head, rows
