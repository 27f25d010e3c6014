"""How much each hyperparameter matters for a number, as far as trials, or any runs, tell."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Value = str | float | None

LEAST = 8  # runs
_GROUPS = 4  # of equally many runs, that a range is divided into


def importance(
    values: Mapping[str, Sequence[Value]], measured: Sequence[float], categorical: Collection[str] = ()
) -> list[tuple[str, float]]:
    """(name, part of the variance that it explains alone) of each hyperparameter, the largest first; [] for few runs.

    The runs' ranks are grouped by the hyperparameter's categories, or by the quarters of its values; the part is epsilon
    squared, the variance between groups without what chance alone gives (Kelley, PNAS 21, 1935). Ranks, so that one bad
    run does not hide all others. Runs in which it has no value are left out.

    Args:
        values: of each hyperparameter by run, None where a run has none.
        measured: what may depend on them, by run.
        categorical: hyperparameters whose values are names even where they look like numbers.
    """
    if len(measured) < LEAST:
        return []
    ranks = _ranks(measured)
    found = [(name, _explained(_groups(held, ranks, name in categorical))) for name, held in values.items()]
    return sorted(found, key=lambda pair: -pair[1])


def _ranks(measured: Sequence[float]) -> list[float]:
    """The place of each in their order; equals share their mean."""
    order = sorted(range(len(measured)), key=measured.__getitem__)
    ranks = [0.0] * len(order)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and measured[order[end + 1]] == measured[order[start]]:
            end += 1
        for at in order[start : end + 1]:
            ranks[at] = (start + end) / 2
        start = end + 1
    return ranks


def _groups(held: Sequence[Value], ranks: Sequence[float], categorical: bool) -> list[list[float]]:
    """The ranks of the runs, by what the hyperparameter was."""
    there = [(value, rank) for value, rank in zip(held, ranks, strict=True) if value is not None]
    numbers = [_number(value) for value, _ in there]
    groups: dict[object, list[float]] = {}
    if categorical or None in numbers or len({value for value, _ in there}) <= _GROUPS:
        for value, rank in there:
            groups.setdefault(value, []).append(rank)
        return list(groups.values())
    placed = sorted((number, rank) for number, (_, rank) in zip(numbers, there, strict=True) if number is not None)
    edges = [placed[len(placed) * part // _GROUPS][0] for part in range(1, _GROUPS)]
    for place, rank in placed:  # equal values are in one group
        groups.setdefault(sum(place >= edge for edge in edges), []).append(rank)
    return list(groups.values())


def _number(value: Value) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None


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
