"""The charts of a run's metrics: which curves belong over one another, and over which axis."""

from __future__ import annotations

import itertools
import re

from trainshed.base.record import Record

from .chart import SECONDS, Chart, Line
from .scale import short
from .style import COLOURS
from .thin import Thin, smoothed, thin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from trainshed.metrics.reading import Curve

# `eval_loss`, `val/acc`, `loss_train`: a role, and what was measured in it.
_ROLES = {
    "train": "training", "training": "training", "val": "validation", "valid": "validation", "validation": "validation",
    "eval": "validation", "evaluation": "validation", "dev": "validation", "test": "test",
}  # fmt: skip
_BEFORE = re.compile(rf"({'|'.join(_ROLES)})[_/.:-]+(.+)", re.IGNORECASE)
_AFTER = re.compile(rf"(.+?)[_/.:-]+({'|'.join(_ROLES)})", re.IGNORECASE)
SMOOTHED = 50  # values that a curve has at least for which there is a smoothed one
_ORDER = ("training", "validation", "test")
_FIRST = (
    re.compile("loss", re.I),
    re.compile("acc|f1|auc|bleu|rouge|perplex|ppl|reward", re.I),
    re.compile("grad|lr|learning", re.I),
)


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


def axis(curves: Sequence[Curve], start: float) -> tuple[str, list[array[float]]]:
    """What curves are drawn over: steps or epochs where all have them, numbers for one alone, else the time since `start`.

    Returns:
        The axis, and for each curve where its points are.
    """
    for name, columns in (("step", [c.steps() for c in curves]), ("epoch", [c.epochs() for c in curves])):
        found = [column for column in columns if column is not None]
        if len(found) == len(curves) and any(len(column) < 2 or column[-1] > column[0] for column in found):
            return name, found
    times = [curve.track.times for curve in curves]
    if len(curves) > 1 and all(_rises(column) for column in times):
        from array import array

        return SECONDS, [array("d", (time - start for time in column)) for column in times]
    return "value", [curve.numbers() for curve in curves]


def _rises(column: array[float]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(column))


def chart_of(group: Group, curves: Mapping[str, Curve], start: float, parts: int) -> Chart:
    """The chart of a group. parts: columns that a curve is thinned to."""
    members = [(name, curves[name]) for _, name in group.members]
    lone = [len(curve.track) == 1 for _, curve in members]
    if not all(lone):  # the mean that some loops print at the end belongs over no axis
        members = [member for member, single in zip(members, lone, strict=True) if not single]
    across, xs = axis([curve for _, curve in members], start)
    lines = tuple(
        _line(name, curve, places, number, parts)
        for number, ((name, curve), places) in enumerate(zip(members, xs, strict=True))
    )
    drawn = {name for name, _ in members}
    alone = [f"{name} {short(curves[name].track.values[-1])}" for _, name in group.members if name not in drawn]
    longest = max(line.curve.count for line in lines)
    notes = [f"each column shows the least and the most of its values: {longest:,} in all"] if longest > 2 * parts else []
    notes += [f"once: {', '.join(alone)}"] if alone else []
    return Chart(group.title, lines, across, note="; ".join(notes))


def _line(name: str, curve: Curve, xs: array[float], number: int, parts: int) -> Line:
    values = curve.track.values
    drawn = thin(xs, values, parts)
    smooth: Thin | None = None
    if len(values) >= SMOOTHED:
        smooth = thin(xs, smoothed(values), max(40, parts // 3)).replace(odd=())
    return Line(name, drawn, smooth, number % COLOURS, short(values[-1]))
