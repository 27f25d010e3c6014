"""How much each hyperparameter matters, as far as the trials tell."""

from __future__ import annotations

from collections.abc import Sequence

from .space import CATEGORICAL, Parameter
from .trial import Trial

LEAST_TRIALS = 8
_GROUPS = 4  # of equally many trials, that a range is divided into


def importance(space: Sequence[Parameter], measured: Sequence[Trial]) -> list[tuple[str, float]]:
    """(name, part of the variance that it explains alone) of each hyperparameter, the largest first; [] for few trials.

    The trials' ranks are grouped by the hyperparameter's categories, or by the quarters of its values; the part is epsilon
    squared, the variance between groups without what chance alone gives (Kelley, PNAS 21, 1935). Ranks, so that one bad
    trial does not hide all others. Trials in which it has no value are left out.

    Args:
        measured: trials that have an objective.
    """
    if len(measured) < LEAST_TRIALS:
        return []
    order = sorted(measured, key=lambda trial: trial.value or 0.0)
    ranks: dict[int, float] = {}
    start = 0
    while start < len(order):  # equals share their mean rank
        end = start
        while end + 1 < len(order) and order[end + 1].value == order[start].value:
            end += 1
        for trial in order[start : end + 1]:
            ranks[trial.number] = (start + end) / 2
        start = end + 1
    found = [(parameter.name, _explained(_groups(parameter, measured, ranks))) for parameter in space]
    return sorted(found, key=lambda pair: -pair[1])


def _groups(parameter: Parameter, measured: Sequence[Trial], ranks: dict[int, float]) -> list[list[float]]:
    """The ranks of the trials, by what the hyperparameter was."""
    held = [(trial.values[parameter.name], ranks[trial.number]) for trial in measured if parameter.name in trial.values]
    groups: dict[object, list[float]] = {}
    texts = {text for text, _ in held}
    if parameter.kind == CATEGORICAL or len(texts) <= _GROUPS:
        for text, rank in held:
            groups.setdefault(text, []).append(rank)
        return list(groups.values())
    placed = sorted((parameter.place(text) or 0.0, rank) for text, rank in held)
    edges = [placed[len(placed) * part // _GROUPS][0] for part in range(1, _GROUPS)]
    for place, rank in placed:  # equal values are in one group
        groups.setdefault(sum(place >= edge for edge in edges), []).append(rank)
    return list(groups.values())


def _explained(groups: list[list[float]]) -> float:
    ranks = [rank for group in groups for rank in group]
    free = len(ranks) - len(groups)
    if len(groups) < 2 or free < 1:
        return 0.0
    mean = sum(ranks) / len(ranks)
    total = sum((rank - mean) ** 2 for rank in ranks)
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups)
    if total <= 0:
        return 0.0
    return min(1.0, max(0.0, (between - (len(groups) - 1) * (total - between) / free) / total))
