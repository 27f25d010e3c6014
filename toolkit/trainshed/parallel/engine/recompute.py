"""Chooses which units of a stage run again in their backward instead of keeping what it needs (activation checkpoints).

The plan knows of each unit how long its forward takes, what it keeps for its backward, and what is left of that if it runs
again: its inputs. A rank has room for what is free beside gradients and optimizer states that are still to come. Of all
sets of units that make the rest fit, the one that takes the least time is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from ..grid import Grid
from ..memory import SPARE, free_bytes
from ..plan.costs import beside
from ..plan.plan_file import Plan
from ..record.trace import Event, Trace
from ..shards import local
from .holding import Holding
from .meeting import RECORD, objects
from .planning import Asked, wish_of
from .shape import Cut

_MIB = 2**20
# What is to be freed is divided into so many parts; a set may free up to one part for each unit more than it must.
_PARTS = 1000


class Unit(NamedTuple):
    """A unit on one rank, all of its calls.

    saved: bytes that it keeps for the backward, of all microbatches in flight.
    freed: of these, bytes that it does not keep if it runs again.
    once: of these, for one microbatch: they are there while it runs again.
    seconds: of a forward.
    """

    name: str
    saved: float
    freed: float
    once: float
    seconds: float


@dataclass(frozen=True)
class Choice:
    """What one rank does.

    names: units that run again.
    of: how many there are.
    without: bytes that would be kept if none ran again.
    needed: bytes that are kept, and those of the unit that runs again.
    room: bytes that there are.
    slower: by what part the forwards and backwards take longer.
    """

    names: frozenset[str]
    of: int
    without: float
    needed: float
    room: float
    slower: float

    def line(self) -> str:
        """In words."""
        keeps = f"{_mib(self.without)} of {_mib(self.room)} MiB"
        if not self.names:
            return f"none of {self.of} modules run again (activations take {keeps})"
        short = "" if self.needed <= self.room else ", which is still too much"
        return (
            f"{len(self.names)} of {self.of} modules run again (activations would take {keeps}, and take "
            f"{_mib(self.needed)}{short}; {self.slower:.0%} more time): {_named(self.names)}"
        )


def _mib(size: float) -> str:
    return f"{size / _MIB:.1f}" if size < 100 * _MIB else f"{size / _MIB:.0f}"


def _named(names: Iterable[str]) -> str:
    first, *more = sorted(names, key=lambda name: [(len(part), part) for part in name.split(".")])
    return f"{first} ... {more[-1]}" if len(more) > 1 else ", ".join([first, *more])


def chosen(units: Sequence[Unit], may: frozenset[str], room: float, seconds: float, *, everything: bool) -> Choice:
    """The units of one rank that run again.

    Args:
        may: those that can.
        room: bytes for activations.
        seconds: a forward and a backward of all units.
        everything: whether all run again that can, whatever the room.
    """
    able = [unit for unit in units if unit.name in may and unit.freed > 0]
    without = sum(unit.saved for unit in units)
    names = frozenset[str]()
    if everything:
        names = frozenset(unit.name for unit in able)
    elif without > room and able:
        names = cheapest(able, without + max(unit.once for unit in able) - room)
    needed = without - sum(unit.freed for unit in able if unit.name in names)
    needed += max((unit.once for unit in able if unit.name in names), default=0.0)
    slower = sum(unit.seconds for unit in able if unit.name in names) / seconds if seconds else 0.0
    return Choice(names, len(units), without, needed, room, slower)


def cheapest(units: Sequence[Unit], needed: float) -> frozenset[str]:
    """Of the sets that free as many bytes, the one that takes the least time; all of them where that is not enough."""
    if sum(unit.freed for unit in units) <= needed:
        return frozenset(unit.name for unit in units)
    part = needed / _PARTS
    # Least seconds with which so many parts are freed, by units so far; and whether the last one of them is in the set.
    least = [0.0] + [float("inf")] * _PARTS
    taken: list[list[bool]] = []
    for unit in units:
        frees = min(_PARTS, int(unit.freed / part))
        now, took = list(least), [False] * (_PARTS + 1)
        for parts in range(1, _PARTS + 1) if frees else ():
            with_it = least[max(0, parts - frees)] + unit.seconds
            if with_it < now[parts]:
                now[parts], took[parts] = with_it, True
        taken.append(took)
        least = now
    if least[_PARTS] == float("inf"):  # what was rounded down would have been enough
        return frozenset(unit.name for unit in units)
    names, parts = set(), _PARTS
    for unit, took in zip(reversed(units), reversed(taken), strict=True):
        if took[parts]:
            names.add(unit.name)
            parts = max(0, parts - min(_PARTS, int(unit.freed / part)))
    return frozenset(names)


def able(root: nn.Module, traces: Sequence[Trace]) -> frozenset[str]:
    """Units that may run a second time: they make values of their arguments and parameters and do nothing else, as far as
    the records tell; torch's own random numbers are the same again."""
    barred: set[str] = set()
    names: set[str] = set()
    for trace in traces:
        noting = [name for name, _ in trace.counters]
        for event in trace.events:
            if event.is_unit:
                names.add(event.name)
                if not _repeats(event) or any(f"{name}.".startswith(f"{event.name}.") for name in noting if name):
                    barred.add(event.name)
    return frozenset(name for name in names - barred if _looks_pure(root.get_submodule(name)))


def _repeats(event: Event) -> bool:
    return event.plain and not event.changes and not event.replicated


def _looks_pure(unit: nn.Module) -> bool:
    """Whether there are no hooks that would be called twice, and no generators that nobody winds back."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(
        any(getattr(one, kind, None) for kind in hooks)
        or any(isinstance(value, torch.Generator) for value in vars(one).values())
        for one in unit.modules()
    )


def units_of(plan: Plan, stages: Mapping[int, int], factor: float) -> tuple[list[Unit], float]:
    """The units of a rank by the plan, and the seconds of a forward and a backward of them.

    Args:
        stages: of the rank -> microbatches in flight.
        factor: how much larger values are than those that the plan was made for.
    """
    found: dict[str, Unit] = {}
    seconds = 0.0
    for one in plan.units:
        if one.stage not in stages:
            continue
        flight = stages[one.stage]
        once = max(0.0, one.saved_mib - one.least_mib) * _MIB * factor if one.least_mib >= 0 else 0.0
        before = found.get(one.unit, Unit(one.unit, 0.0, 0.0, 0.0, 0.0))
        found[one.unit] = Unit(
            one.unit,
            before.saved + flight * one.saved_mib * _MIB * factor,
            before.freed + flight * once,
            max(before.once, once),
            before.seconds + one.forward_ms / 1e3,
        )
        seconds += (one.forward_ms + one.backward_ms) / 1e3
    return list(found.values()), seconds


class Recomputation:
    """Chooses for the steps of one rank, as all ranks that run a batch agree.

    Args:
        states: tells how many bytes the optimizer keeps already.
    """

    def __init__(self, holding: Holding, states: Callable[[], int]) -> None:
        self._holding, self._states = holding, states
        self._first = 0
        self._said = ""

    def choose(self, plan: Plan, cuts: Sequence[Cut], microbatches: int, *, on_host: bool) -> frozenset[str]:
        """Units of this rank that run again in the backward of a step. Collective over the ranks that run its batch.

        Args:
            cuts: the ways of its microbatches.
            on_host: whether activations are kept in the CPU's memory.
        """
        grid, root = self._holding.grid, self._holding.root
        settings = grid.settings
        stages = len(cuts[0].starts)
        flight = in_flight(root, grid, stages, microbatches)
        values = max(sum(value.meta.bytes for value in cut.trace.values.values()) for cut in cuts)
        self._first = self._first or values
        mine = sum(grid.seat(stage) == grid.place.pipeline for stage in range(stages))
        room = self._room(mine, on_host=on_host)
        found = objects(RECORD, (grid.place.pipeline, room), grid.company_ranks, grid.company_group, grid.device)
        may = able(root, [cut.trace for cut in cuts])
        choices = {}
        for place in sorted({place for place, _ in found}):
            of_rank = {stage: flight[stage] for stage in range(stages) if grid.seat(stage) == place}
            units, seconds = units_of(plan, of_rank, values / (self._first or 1))
            least = min(room for other, room in found if other == place)
            everything = settings.activation_checkpointing == "all"
            choices[place] = chosen(units, may, least, seconds, everything=everything)
        line = "; ".join(f"pipeline rank {place}: {choice.line()}" for place, choice in choices.items())
        if grid.rank == 0 and line != self._said:
            print(f"activation checkpointing: {line}", flush=True)
        self._said = line
        return choices[grid.place.pipeline].names

    def _room(self, stages: int, *, on_host: bool) -> float:
        """Bytes that this rank has for activations.

        Args:
            stages: of this rank, for each of which `memory_limit` counts.
        """
        grid = self._holding.grid
        settings = grid.settings
        weights = 0
        gradients = there = states = 0.0
        for parameter in self._holding.parameters.values():
            count = local(parameter.detach()).numel()
            gradient, state = beside(parameter, settings.optimizer_states)
            weights += count * parameter.element_size()
            gradients, states = gradients + count * gradient, states + count * state
            there += count * gradient if parameter.grad is not None else 0
        alike = len(grid.tensor.twins if grid.tensor is not None else grid.replica_ranks)
        states //= alike if settings.shard_optimizer_state else settings.sharded_data_parallel_degree
        on_cpu = grid.device.type == "cpu"
        beside_them = on_cpu or settings.offload_optimizer_state == on_host
        coming = (gradients - there if on_cpu or not on_host else 0) + max(0, states - self._states()) * beside_them
        sharing = grid.local_world if on_cpu or on_host else 1
        room = free_bytes(torch.device("cpu") if on_host else grid.device) / sharing / SPARE - coming
        if settings.memory_limit:
            room = min(room, settings.memory_limit * _MIB * stages - weights - gradients - states)
        return max(0.0, room)


def in_flight(root: nn.Module, grid: Grid, stages: int, microbatches: int) -> tuple[int, ...]:
    """Microbatches whose activations each stage keeps at once."""
    if stages == 1:
        return (1,)
    wish = wish_of(root, grid.settings, Asked({}, microbatches))
    return replace(wish, virtual=stages // wish.ranks).in_flight()
