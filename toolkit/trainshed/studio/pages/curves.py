"""The charts of a run's metrics: which curves belong over one another, and over which axis."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left

from trainshed.base.record import Record

from .chart import SECONDS, Chart, Line
from .scale import short
from .thin import thin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from trainshed.metrics.reading import Curve

    from .events import Event


Window = tuple[int, float, float]  # columns of a picture, and from where to where it goes
# `eval_loss`, `val/acc`, `loss_train`: a role, and what was measured in it.
_ROLES = {
    "train": "training", "training": "training", "val": "validation", "valid": "validation", "validation": "validation",
    "eval": "validation", "evaluation": "validation", "dev": "validation", "test": "test",
}  # fmt: skip
_BEFORE = re.compile(rf"({'|'.join(_ROLES)})[_/.:-]+(.+)", re.IGNORECASE)
_AFTER = re.compile(rf"(.+?)[_/.:-]+({'|'.join(_ROLES)})", re.IGNORECASE)
_ORDER = ("training", "validation", "test")
_FIRST = (
    re.compile("loss", re.I),
    re.compile("acc|f1|auc|bleu|rouge|perplex|ppl|reward", re.I),
    re.compile("grad|lr|learning", re.I),
)


class RunLine(Record):
    """One curve of a run as a line. start: of the run, seconds since 1970."""

    name: str
    curve: Curve
    start: float


class Group(Record):
    """Metrics that measure the same thing in several roles. members: (role, name)."""

    title: str
    members: tuple[tuple[str, str], ...]


def groups(names: Sequence[str]) -> list[Group]:
    """Which metrics share a chart: losses first, then what is to grow, then the optimizer's, then the rest by name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        role, what = role_of(name)
        found.setdefault(what, []).append((role, name))
    made = []
    for what, members in found.items():
        single = members[0][1] if len(members) == 1 else what
        members.sort(key=lambda member: (_ORDER.index(member[0]), member[1]))
        made.append(Group(single, tuple(members)))

    def rank(group: Group) -> tuple[int, bool, list[tuple[int, str]]]:
        place = next((place for place, pattern in enumerate(_FIRST) if pattern.search(group.title)), len(_FIRST))
        return place, len(group.members) == 1, _in_words(group.title)

    return sorted(made, key=rank)


def _in_words(title: str) -> list[tuple[int, str]]:
    """By what titles are ordered: numbers in them by their values, so that layer 2 comes before layer 10."""
    parts = re.split(r"([0-9]{1,15})", title.lower())
    return [(int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts)]


def role_of(name: str) -> tuple[str, str]:
    """(role, what is measured): `eval_loss` is the loss in validation."""
    if match := _BEFORE.fullmatch(name):
        return _ROLES[match[1].lower()], match[2]
    if match := _AFTER.fullmatch(name):
        return _ROLES[match[2].lower()], match[1]
    return "training", name


def start_of(curves: Mapping[str, Curve]) -> float:
    """When a run's first value was measured, seconds since 1970; 0 without any."""
    return min((curve.track.times[0] for curve in curves.values()), default=0.0)


def over_one_another(runs: Sequence[tuple[str, Mapping[str, Curve]]]) -> list[tuple[str, list[RunLine]]]:
    """(metric, a line for each run that has it) of several runs, in the order of their charts."""
    read = [(name, curves, start_of(curves)) for name, curves in runs]
    names = [
        name for one in groups(list(dict.fromkeys(name for _, held in runs for name in held))) for _, name in one.members
    ]
    return [(name, [RunLine(run, held[name], start) for run, held, start in read if name in held]) for name in names]


def axis(curves: Sequence[Curve]) -> tuple[str, list[array[float]]]:
    """What curves are drawn over: steps or epochs where all have them, numbers for one alone, else the time.

    Returns:
        The axis, and for each curve where its points are; seconds since 1970.
    """
    for name, columns in (("step", [c.steps() for c in curves]), ("epoch", [c.epochs() for c in curves])):
        found = [column for column in columns if column is not None]
        if len(found) == len(curves) and any(len(column) < 2 or column[-1] > column[0] for column in found):
            return name, found
    times = [curve.track.times for curve in curves]
    if len(curves) > 1 and all(_rises(column) for column in times):
        return SECONDS, times
    return "value", [curve.numbers() for curve in curves]


def _rises(column: array[float]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(column))


def chart_of(
    title: str, lines: Sequence[RunLine], window: Window, wanted: str = "", happened: Sequence[Event] = ()
) -> Chart:
    """The chart of a group of metrics, or of one metric in several runs.

    Args:
        window: columns that a curve is thinned to, and the part of it that is drawn.
        wanted: the axis, where all curves have it; else that which fits.
        happened: in the run, where it is one.
    """
    # The mean that some loops print at the end belongs over no axis.
    several = [line for line in lines if len(line.curve.track) > 1] or list(lines)
    across, places = _places(several, wanted)
    drawn = [
        Line(one.name, thin(xs, one.curve.track.values, *window), last=one.curve.track.values[-1])
        for one, xs in zip(several, places, strict=True)
    ]
    once = [f"{one.name[:80]} {short(one.curve.track.values[-1])}" for one in lines if one not in several]
    longest = max(len(one.curve.track) for one in several)
    note = f"each column shows the least and the most of its values: {longest:,} in all" if longest > 2 * window[0] else ""
    events = tuple(_placed(event, across, several[0], places[0]) for event in happened)
    return Chart(title, tuple(drawn), across, note=note, once=tuple(once[:20]), events=events)


def _places(lines: Sequence[RunLine], wanted: str) -> tuple[str, list[Sequence[float]]]:
    """The axis that is asked for, where the curves have it, else the one that fits; with the places on it."""
    curves = [line.curve for line in lines]
    if wanted == SECONDS:
        # Each run from its own start, so that they lie over one another.
        return SECONDS, [[time - line.start for time in sorted(line.curve.track.times)] for line in lines]
    if wanted in ("step", "epoch"):
        columns = [curve.steps() if wanted == "step" else curve.epochs() for curve in curves]
        found: list[Sequence[float]] = [column for column in columns if column is not None]
        if len(found) == len(curves):
            return wanted, found
    across, places = axis(curves)
    if across == SECONDS:
        return _places(lines, SECONDS)
    return across, [*places]


def _placed(event: Event, across: str, line: RunLine, xs: Sequence[float]) -> tuple[float, str, str]:
    """An event over an axis: of a step and an epoch where the curve was at its time."""
    if across == SECONDS:
        place = event.time - line.start
    elif across == "step" and event.step is not None:
        place = float(event.step)
    else:
        place = xs[min(bisect_left(line.curve.track.times, event.time), len(xs) - 1)]
    return place, event.kind, event.words
