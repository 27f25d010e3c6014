"""The report of a tuning job: one page without scripts. History, importance, parallel coordinates, trials."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import trainshed
from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic
from trainshed.base.units import duration
from trainshed.studio.batches.folder import FAILED, STOPPED
from trainshed.studio.pages.markup import document, is_ours, legend, section, table, text
from trainshed.studio.pages.scale import Scale, linear, logarithmic, short
from trainshed.studio.pages.style import STYLE

from .importance import importance
from .space import CATEGORICAL, Parameter
from .trial import Trial, best_of, elapsed, front_of
from .tuner import View
from .tuning import MINIMIZE
from .tuning_folder import TuningFolder

WIDTH, HEIGHT = 1080, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 12, 36
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


def page(view: View, status: str, reason: str, now: float) -> str:
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
        _bars(importance(view.tuning.space, measured)),
        "the part of the variance of the trials' ranks that each hyperparameter explains alone",
    )
    body += section("Parallel coordinates", parallel(view, measured), "one line a trial; the best tenth in colour")
    body += section("Trials", _trials(view))
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    foot = f"<footer>made by trainshed {text(trainshed.__version__)}, {made}</footer>"
    return document(f"{view.tuning.name}: tuning report", f"<main>{body}{foot}</main>", STYLE)


def facts(view: View, reason: str, now: float) -> list[tuple[str, str]]:
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


def _card(view: View, status: str, reason: str, now: float) -> str:
    shown = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts(view, reason, now))
    kind = {"Completed": "good", "Failed": "bad"}.get(status, "warn")
    return (
        f'<div class="card"><div class="top"><h1>{text(view.tuning.name)}</h1>'
        f'<span class="state {kind}">{text(status)}</span></div><dl class="facts">{shown}</dl></div>'
    )


def history(view: View, measured: Sequence[Trial]) -> str:
    """The objective of each trial, and the best so far; "" without any."""
    if not measured:
        return ""
    objective = view.tuning.objective
    values = [trial.value for trial in measured if trial.value is not None]
    up = _objective_scale(values, HEIGHT - _BOTTOM, _TOP)
    last = max(trial.number for trial in measured)
    across = linear(1, max(last, 2), _LEFT, WIDTH - _RIGHT, about=10, tight=True)
    drawn = _frame(across, up, "trial")
    best: float | None = None
    steps: list[str] = []
    for trial in sorted(measured, key=lambda trial: trial.number):
        assert trial.value is not None
        if best is None or objective.better(trial.value, best):
            best = trial.value
        x, y = across.place(trial.number), up.place(best)
        steps.append(f"M{x:.1f},{y:.1f}" if not steps else f"H{x:.1f}V{y:.1f}")
        colour = "f1" if trial.state == STOPPED else "f0"
        said = f"trial {trial.number}: {short(trial.value)}; " + ", ".join(f"{k}={v}" for k, v in trial.values.items())
        drawn += (
            f'<circle class="{colour} dot" cx="{x:.1f}" cy="{up.place(trial.value):.1f}" r="3.4">'
            f"<title>{text(said, 400)}</title></circle>"
        )
    drawn += f'<path class="ln l2" d="{"".join(steps)}"/>'
    chips = [("f0", "completed", ""), ("f1", "stopped early", ""), ("f2", "the best so far", "")]
    return legend(chips) + _svg(drawn, HEIGHT)


def _objective_scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    if low > 0 and high / low > 50:
        return logarithmic(low, high, start, end)
    return linear(low, high, start, end)


def front(view: View, measured: Sequence[Trial]) -> str:
    """The first two objectives against each other, the front in colour; "" without any trial."""
    told = [(trial, trial.value, trial.further[0]) for trial in measured if trial.value is not None and trial.further]
    if not told:
        return ""
    first, second = view.tuning.objectives[:2]
    best = {trial.number for trial in front_of(view.trials, view.tuning.objectives)}
    across = _objective_scale([x for _, x, _ in told], _LEFT, WIDTH - _RIGHT)
    up = _objective_scale([y for _, _, y in told], HEIGHT - _BOTTOM, _TOP)
    drawn = _frame(across, up, f"{first.metric} (across), {second.metric} (up)")
    for trial, x, y in sorted(told, key=lambda one: one[0].number in best):
        values = zip(view.tuning.objectives, (x, *trial.further), strict=False)
        said = f"trial {trial.number}: " + ", ".join(f"{one.metric} {short(value)}" for one, value in values)
        drawn += (
            f'<circle class="{"f0" if trial.number in best else "f7"} dot" cx="{across.place(x):.1f}" '
            f'cy="{up.place(y):.1f}" r="4"><title>{text(said, 400)}</title></circle>'
        )
    return legend([("f0", "on the front", ""), ("f7", "beaten", "")]) + _svg(drawn, HEIGHT)


def _frame(across: Scale, up: Scale, title: str) -> str:
    bottom = HEIGHT - _BOTTOM
    drawn = f'<path class="axis" d="M{_LEFT},{bottom}H{WIDTH - _RIGHT}"/>'
    for mark, said in up.ticks:
        y = up.place(mark)
        drawn += f'<path class="grd" d="M{_LEFT},{y:.1f}H{WIDTH - _RIGHT}"/>'
        drawn += f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{said}</text>'
    for mark, said in across.ticks:
        drawn += f'<text x="{across.place(mark):.1f}" y="{bottom + 16}" text-anchor="middle">{said}</text>'
    return drawn + f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{bottom + 31}" text-anchor="middle">{text(title)}</text>'


def _bars(found: Sequence[tuple[str, float]]) -> str:
    if not found:
        return ""
    height = 24 * len(found) + 6
    drawn = ""
    for row, (name, part) in enumerate(found):
        y = 24 * row + 4
        drawn += f'<text class="row" x="190" y="{y + 13}" text-anchor="end">{text(name, 28)}</text>'
        drawn += f'<rect class="f0" x="200" y="{y}" width="{max(1.0, 780 * part):.1f}" height="17" rx="3"/>'
        drawn += f'<text x="{206 + 780 * part:.1f}" y="{y + 13}">{100 * part:.0f} %</text>'
    return _svg(drawn, height)


def parallel(view: View, measured: Sequence[Trial]) -> str:
    """Parallel coordinates: an axis for each hyperparameter, the objective last; "" for fewer than two trials."""
    if len(measured) < 2:
        return ""
    objective = view.tuning.objective
    ranked = sorted(measured, key=lambda trial: (objective.loss(trial.value or 0.0), trial.number))
    chosen = ranked[:_MOST_LINES]
    space = view.tuning.space[:_MOST_AXES]
    height, top, bottom = 340, 30, 310
    values = [trial.value for trial in chosen if trial.value is not None]
    last = _objective_scale(values, *((top, bottom) if objective.goal == MINIMIZE else (bottom, top)))
    gap = (WIDTH - 140) / max(1, len(space))
    drawn = ""
    for place, trial in reversed(list(enumerate(chosen))):
        assert trial.value is not None
        points = []
        for column, parameter in enumerate(space):
            held = trial.values.get(parameter.name)
            part = parameter.place(held) if held is not None else None
            if part is not None:
                points.append(f"{70 + gap * column:.1f},{bottom - part * (bottom - top):.1f}")
        points.append(f"{70 + gap * len(space):.1f},{last.place(trial.value):.1f}")
        good = place < max(1, len(ranked) // 10)
        look = 'class="ln l0" stroke-opacity="0.95"' if good else 'class="ln l7" stroke-opacity="0.25"'
        said = f"trial {trial.number}: {short(trial.value)}"
        drawn += f'<path {look} d="M{"L".join(points)}"><title>{text(said)}</title></path>'
    for column, parameter in enumerate(space):
        x = 70 + gap * column
        drawn += _axis(x, parameter.name, top, bottom, _ends(parameter))
    ends = [("", last.place(value), short(value)) for value in (min(values), max(values))]
    drawn += _axis(70 + gap * len(space), objective.metric, top, bottom, ends)
    return _svg(drawn, height)


def _ends(parameter: Parameter) -> list[tuple[str, float, str]]:
    """(unused, place, text) of the marks of an axis."""
    top, bottom = 30, 310
    texts = (
        [name for name, _ in parameter.categories][:12]
        if parameter.kind == CATEGORICAL
        else [parameter.at(0.0), parameter.at(0.5), parameter.at(1.0)]
    )
    places = [(held, parameter.place(held)) for held in dict.fromkeys(texts)]
    return [("", bottom - part * (bottom - top), _short(held)) for held, part in places if part is not None]


def _short(held: str) -> str:
    try:
        return short(float(held))
    except ValueError:
        return held


def _axis(x: float, name: str, top: float, bottom: float, marks: Sequence[tuple[str, float, str]]) -> str:
    drawn = f'<path class="axis" stroke-width="2" d="M{x:.1f},{top}V{bottom}"/>'
    drawn += f'<text class="row" x="{x:.1f}" y="16" text-anchor="middle">{text(name, 18)}</text>'
    for _, y, said in marks:
        drawn += f'<text x="{x + 6:.1f}" y="{y + 4:.1f}">{text(said, 14)}</text>'
    return drawn


def _svg(drawn: str, height: float) -> str:
    return f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img">{drawn}</svg></figure>'


def _trials(view: View) -> str:
    head, rows = trials_of(view)
    return table(rows, head)


def trials_of(view: View) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
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
