"""Counts what the ranks of one pipeline send each other in a step."""

from __future__ import annotations

from collections.abc import Sequence

from .costs import Costs, Traffic
from .plan_request import Wish


def crossings(costs: Costs, starts: Sequence[int], wish: Wish) -> list[int]:
    """Bytes of a microbatch that are sent over the boundary after each stage; 0 where one rank has both sides."""
    pairs = enumerate(starts[1:])
    return [costs.crossing[cut] if wish.seat(stage) != wish.seat(stage + 1) else 0 for stage, cut in pairs] + [0]


def summed_by_stages(costs: Costs, wish: Wish, read: Sequence[set[str]]) -> list[Traffic]:
    """Returns what it takes to sum the gradients of parameters that several ranks hold, by the first stage of each.

    Args:
        read: names of the parameters of each stage.
    """
    first = {wish.seat(stage): stage for stage in reversed(range(len(read)))}
    holders: dict[str, set[int]] = {}
    for stage, names in enumerate(read):
        for name in names:
            holders.setdefault(name, set()).add(first[wish.seat(stage)])
    sizes: dict[frozenset[int], int] = {}
    for name, together in holders.items():
        sizes[frozenset(together)] = sizes.get(frozenset(together), 0) + costs.gradients.get(name, 0)
    found = [Traffic()] * len(read)
    for several, size in sizes.items():
        for stage in several:
            found[stage] += wish.link.summed(size, len(several))
    return found


def bytes_sent(
    costs: Costs, ends: Sequence[int], wish: Wish, crossing: Sequence[int], summed: Sequence[Traffic]
) -> list[float]:
    """Bytes that a rank sends in a step for each of its stages. Each microbatch crosses a boundary twice: values one way,
    their gradients back.

    Args:
        ends: of the stages, in units.
        crossing, summed: by stage.
    """
    found, first = [], 0
    for stage, end in enumerate(ends):
        inside = sum(unit.sent for unit in costs.units[first:end])
        before = crossing[stage - 1] if stage else 0
        found.append(wish.microbatches * (inside + before + crossing[stage]) + summed[stage].bytes)
        first = end
    return found
