"""Exact partition of a chain of units into stages.

Dynamic programming over the number of stages: D[s, i] = min over j of max(D[s - 1, j], cost of positions j to i - 1 as
stage s); O(stages x n^2), a few milliseconds for hundreds of units. Ranges that would not fit in memory, that start where
no stage may start, or that break a pin cost infinity. Among all partitions with the least slowest stage, a second pass
takes the one with the least traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..ground.errors import PlanError, TooFewParts
from .calltree import covering_pin
from .costs import Costs, Link, StageCosts


@dataclass(frozen=True)
class Request:
    """The request that a partition shall satisfy.

    stages: number of pipeline stages (ranks times virtual stages).
    in_flight: microbatches whose activations stage s keeps, by stage (1F1B: stages - s).
    memory_weight: 0 minimises the slowest stage's time, 1 the largest stage's memory.
    memory_limit: bytes a stage may take, or None.
    pins: module name -> stage for it and everything in it.
    closed: modules that are kept whole, with the reason.
    """

    stages: int
    in_flight: tuple[int, ...]
    memory_weight: float = 0.0
    memory_limit: int | None = None
    pins: Mapping[str, int] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    closed: Mapping[str, str] = field(default_factory=dict)


def partition(costs: Costs, request: Request) -> tuple[int, ...]:
    """Position at which each stage starts; the first is 0.

    Raises:
        TooFewParts: there are more stages than parts; says what stands in the way.
        PlanError: nothing satisfies the request; says what stands in the way.
    """
    count, stages = len(costs.units), request.stages
    pinned = pinned_stages(costs, request)
    possible = 1 + sum(1 for cut in range(1, count) if cut not in costs.no_cut)
    if possible < stages:
        reasons = sorted(set(costs.no_cut.values()))
        raise TooFewParts(
            f"the model has {possible} part{'s' if possible != 1 else ''} that can be a stage, "
            f"but {stages} stages are requested" + (f": elsewhere {reasons[0]}" if reasons else ""),
            hint=_way_over(reasons),
        )
    tables = StageCosts(costs, request.link)
    weighted = [_weighted(tables, request, stage, pinned) for stage in range(stages)]
    best = _least_slowest(weighted, count)
    if not math.isfinite(best):
        raise PlanError(_why_none(tables, request, pinned), hint="lift a limit or an override")
    return _least_traffic(weighted, best, costs, count)


def _way_over(reasons: list[str]) -> str:
    """What to do about too few parts."""
    if any("changes a parameter" in reason for reason in reasons):
        return (
            "keep a copy that follows the model outside of it: move it between steps by model.state_dict(), and give what "
            "it computes to the step function"
        )
    general = "use fewer partitions or virtual stages, or move parts of the forward into separate modules"
    if any("decides by a tensor's values" in reason for reason in reasons):
        return f"{general}; a random number that decides can come from Python's `random`, which every stage follows"
    return general


def pinned_stages(costs: Costs, request: Request) -> list[int | None]:
    """The stage that each position must be on, if any; the innermost pin wins.

    A pin of the model itself (default_partition) gives way to the others: what only it covers follows its neighbours where
    its own stage would be out of order, as a last norm does after blocks that are on later stages.
    """
    names = {unit.unit for unit in costs.units} | {unit.path for unit in costs.units}
    for name in request.pins:
        if not any(unit == name or unit.startswith(name + ".") or name.startswith(unit + ".") or not name for unit in names):
            raise PlanError(f"the override for {name!r} names a module that the forward does not call")
    pinned: list[int | None] = []
    for unit in costs.units:
        # A module that several others share is where the one is that calls it, unless it has a stage of its own.
        path = unit.unit if unit.unit in request.pins else unit.path or unit.unit
        pinned.append(_whole(unit.unit, path, request, {one.unit for one in costs.units}))
        if pinned[-1] is not None and not 0 <= pinned[-1] < request.stages:
            raise PlanError(f"{unit.unit!r} is put on stage {pinned[-1]}, there are stages 0 to {request.stages - 1}")
    return pinned if "" not in request.pins else _following(pinned, request.pins[""], request.stages)


def _whole(unit: str, path: str, request: Request, units: set[str]) -> int | None:
    """The stage of a unit: it is not opened, so that all that is put on a stage in it must be on one. A part that is a unit
    too, for others call it by itself, has its own."""
    own = covering_pin(path, request.pins)
    inside = {
        name: stage
        for name, stage in request.pins.items()
        if name.startswith(unit + ".") and not any(f"{name}.".startswith(f"{other}.") for other in units - {unit})
    }
    if not inside:
        return own
    stages = {unit: own, **inside} if own is not None else inside
    if len(set(stages.values())) == 1:
        return next(iter(stages.values()))
    (one, first), *others = stages.items()
    other, second = next((name, stage) for name, stage in others if stage != first)
    raise PlanError(
        f"{one!r} is put on stage {first} and {other!r} on stage {second}, but {unit!r} is kept whole: "
        f"{request.closed.get(unit, 'no part of it is called by itself')}",
        hint=f"put {unit!r} itself on one stage" + (", or do not name it in `atomic`" if unit in request.closed else ""),
    )


def _following(pinned: list[int | None], default: int, stages: int) -> list[int | None]:
    """Positions without a stage get the one nearest to `default` that lies between those of their neighbours."""
    if not 0 <= default < stages:
        raise PlanError(f"the model is put on stage {default}, there are stages 0 to {stages - 1}")
    most, highest = stages - 1, []
    for pin in reversed(pinned):
        most = min(most, most if pin is None else pin)
        highest.append(most)
    least = 0
    found: list[int | None] = []
    for pin, most in zip(pinned, reversed(highest), strict=True):
        least = max(least, min(default, most) if pin is None else pin)
        found.append(least if pin is None else pin)
    return found


def _weighted(tables: StageCosts, request: Request, stage: int, pinned: list[int | None]) -> torch.Tensor:
    count = len(pinned)
    seconds, memory = tables.seconds, tables.memory(request.in_flight[stage])
    whole_seconds = max(tables.costs.seconds, 1e-12)
    whole_memory = max(float(tables.parameters[0, count] + tables.saved[0, count]), 1.0)
    weight = request.memory_weight
    cost = (1 - weight) * seconds / whole_seconds + weight * memory / whole_memory
    cost = cost.clone()
    if request.memory_limit is not None:
        cost[memory > request.memory_limit] = math.inf
    cost[torch.ones_like(cost).tril().bool()] = math.inf  # a stage has at least one unit
    for cut in tables.costs.no_cut:
        if 0 < cut < count:
            cost[cut, :] = math.inf
    wrong = torch.tensor([0.0] + [float(pin is not None and pin != stage) for pin in pinned]).cumsum(0)
    cost[(wrong[None, :] - wrong[:, None]) > 0] = math.inf
    return cost


def _least_slowest(weighted: list[torch.Tensor], count: int) -> float:
    reached = weighted[0][0]
    for cost in weighted[1:]:
        reached = torch.maximum(reached[:, None], cost).min(0).values
    return float(reached[count])


def _least_traffic(weighted: list[torch.Tensor], best: float, costs: Costs, count: int) -> tuple[int, ...]:
    crossing = torch.tensor([float(size) for size in costs.crossing[:count]] + [0.0], dtype=torch.double)
    crossing[0] = 0.0
    infinite = torch.full((count + 1,), math.inf, dtype=torch.double)
    traffic = infinite.clone()
    traffic[0] = 0.0
    choices = []
    for cost in weighted:
        allowed = torch.where(cost <= best * (1 + 1e-12), 0.0, math.inf)
        total = (traffic + crossing)[:, None] + allowed
        traffic, choice = total.min(0)
        choices.append(choice)
    starts = []
    end = count
    for choice in reversed(choices):
        end = int(choice[end])
        starts.append(end)
    return tuple(reversed(starts))


def _why_none(tables: StageCosts, request: Request, pinned: list[int | None]) -> str:
    pins = [pin for pin in pinned if pin is not None]
    if pins != sorted(pins):
        later = next(index for index in range(1, len(pins)) if pins[index] < pins[index - 1])
        names = [unit.unit for unit, pin in zip(tables.costs.units, pinned, strict=True) if pin is not None]
        return (
            f"the overrides go backwards: {names[later]!r} on stage {pins[later]} runs after "
            f"{names[later - 1]!r} on stage {pins[later - 1]}"
        )
    if request.memory_limit is not None:
        return f"no partition keeps every stage below {request.memory_limit / 2**20:.0f} MiB"
    return "the overrides leave a stage without a unit or cut where that is not possible"
