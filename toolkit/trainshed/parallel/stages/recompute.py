"""Chooses which units of a stage run again in their backward instead of keeping what it needs (activation checkpoints), and
which keep it in the CPU's memory.

The plan knows of each unit how long its forward takes, what it keeps for its backward, and what is left of that if it runs
again: its inputs. A rank has room for what is free beside gradients and optimizer states that are still to come. Of all
ways to make the rest fit, the one that takes the least time is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn

from ..engine.holding import Holding
from ..engine.object_collectives import RECORD, objects
from ..engine.offload import Offload
from ..engine.shape import Cut
from ..ground.grid import Grid
from ..ground.memory import SPARE, free_bytes
from ..ground.shards import local
from ..ground.torch_private import BACKWARD_HOOKS, FORWARD_HOOKS, FORWARD_PRE_HOOKS, has_hooks
from ..plan.costs import beside
from ..plan.plan_file import Plan
from ..tracing.trace import Event, Trace
from .planning import Asked, wish_of

_MIB = 2**20
# What is to be freed is divided into so many parts; a set may free up to one part for each unit more than it must.
_PARTS = 1000


@dataclass(frozen=True)
class Fit:
    """Units that keep less on the device than their backward needs: those that run again, and those that keep it on the
    CPU."""

    again: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()


ALL_KEPT = Fit()


class Unit(NamedTuple):
    """A unit on one rank, all of its calls.

    saved: bytes that it keeps for the backward, of all microbatches in flight.
    freed: of these, bytes that it does not keep if it runs again.
    once: of these, for one microbatch: they are there while it runs again.
    seconds: of a forward.
    single: bytes that it keeps for one microbatch.
    """

    name: str
    saved: float
    freed: float
    once: float
    seconds: float
    single: float


class Host(NamedTuple):
    """The CPU's memory, where units may keep what they save.

    rate: bytes a second that go there, or come back.
    room: bytes that there are.
    smallest: bytes of a tensor from which on it goes.
    """

    rate: float
    room: float
    smallest: float


class ActivationSaving(NamedTuple):
    """How a unit keeps less: by running `again`, or on the CPU.

    freed: bytes, of all microbatches in flight.
    once: bytes that are there again while the backward of one of them needs them.
    seconds: that it takes longer.
    """

    unit: str
    again: bool
    freed: float
    once: float
    seconds: float


@dataclass(frozen=True)
class RecomputeChoice:
    """The choice of one rank.

    fit: units that keep less.
    of: how many there are.
    without: bytes that would be kept if none did.
    needed: bytes that are kept, and those of the unit that runs again or comes back.
    room: bytes that there are.
    slower: by what part the forwards and backwards take longer.
    """

    fit: Fit
    of: int
    without: float
    needed: float
    room: float
    slower: float

    def line(self) -> str:
        """In words."""
        again, away = self.fit.again, self.fit.away
        keeps = f"{_mib(self.without)} of {_mib(self.room)} MiB"
        short = "" if self.needed <= self.room else ", which is still too much"
        amounts = f"(activations would take {keeps}, and take {_mib(self.needed)}{short}; {self.slower:.0%} more time)"
        if not again and not away:
            return f"none of {self.of} modules keep less (activations take {keeps}{short})"
        parts = [f"{len(again)} of {self.of} modules run again {amounts}: {_named(again)}"] if again else []
        if away:
            told = "" if again else f" {amounts}"
            number = f"{len(away)}" if again else f"{len(away)} of {self.of} modules"
            parts.append(f"{number} keep what they need on the CPU{told}: {_named(away)}")
        return ", ".join(parts)


def _mib(size: float) -> str:
    return f"{size / _MIB:.1f}" if size < 100 * _MIB else f"{size / _MIB:.0f}"


def _named(names: Iterable[str]) -> str:
    first, *more = sorted(names, key=lambda name: [(len(part), part) for part in name.split(".")])
    return f"{first} ... {more[-1]}" if len(more) > 1 else ", ".join([first, *more])


def chosen(
    units: Sequence[Unit],
    may: frozenset[str],
    room: float,
    seconds: float,
    *,
    everything: bool,
    host: Host | None = None,
) -> RecomputeChoice:
    """The units of one rank that keep less.

    Args:
        may: those that can run again.
        room: bytes for activations.
        seconds: a forward and a backward of all units.
        everything: whether all run again that can, whatever the room.
        host: where units may keep what they save; None if they may not.
    """
    without = sum(unit.saved for unit in units)
    taken = [_again(unit) for unit in units if everything and unit.name in may and unit.freed > 0]
    sure = {way.unit for way in taken}
    barred: set[str] = set()  # the CPU has no room for these
    while True:
        ways = [
            _ways(unit, again=unit.name in may, host=host if unit.name not in barred else None)
            for unit in units
            if unit.name not in sure
        ]
        ways = [one for one in ways if one]
        more = []
        kept = without - sum(way.freed for way in taken)
        if kept + max((way.once for way in taken), default=0.0) > room and ways:
            more = cheapest(ways, kept + max(way.once for way in (*taken, *chain(*ways))) - room)
        away = [way for way in more if not way.again]
        if host is None or sum(way.freed for way in away) <= host.room:
            break
        barred.add(max(away, key=lambda way: way.freed).unit)
    every = [*taken, *more]
    needed = without - sum(way.freed for way in every) + max((way.once for way in every), default=0.0)
    slower = sum(way.seconds for way in every) / seconds if seconds else 0.0
    fit = Fit(frozenset(way.unit for way in every if way.again), frozenset(way.unit for way in away))
    return RecomputeChoice(fit, len(units), without, needed, room, slower)


def _again(unit: Unit) -> ActivationSaving:
    return ActivationSaving(unit.name, True, unit.freed, unit.once, unit.seconds)


def _ways(unit: Unit, *, again: bool, host: Host | None) -> list[ActivationSaving]:
    """In which ways a unit may keep less."""
    found = [_again(unit)] if again and unit.freed > 0 else []
    if host is not None and unit.single >= host.smallest:
        # It goes beside the computation, and the backward waits until it is there again.
        copy = unit.single / host.rate
        found.append(ActivationSaving(unit.name, False, unit.saved, unit.single, copy + max(0.0, copy - unit.seconds)))
    return found


def cheapest(ways: Sequence[Sequence[ActivationSaving]], needed: float) -> list[ActivationSaving]:
    """Of the choices that free as many bytes, at most one way for each unit, the one that takes the least time; where
    nothing is enough, what frees most.

    Args:
        ways: of each unit.
    """
    most = [max(each, key=lambda way: way.freed) for each in ways]
    if sum(way.freed for way in most) <= needed:
        return most
    part = needed / _PARTS
    # Least seconds with which so many parts are freed, by units so far; and the way of the last one of them, if it has one.
    least = [0.0] + [float("inf")] * _PARTS
    taken: list[list[ActivationSaving | None]] = []
    for each in ways:
        now = list(least)
        took: list[ActivationSaving | None] = [None] * (_PARTS + 1)
        for way in each:
            frees = min(_PARTS, int(way.freed / part))
            for parts in range(1, _PARTS + 1) if frees else ():
                with_it = least[max(0, parts - frees)] + way.seconds
                if with_it < now[parts]:
                    now[parts], took[parts] = with_it, way
        taken.append(took)
        least = now
    if least[_PARTS] == float("inf"):  # what was rounded down would have been enough
        return most
    found, parts = [], _PARTS
    for of_unit in reversed(taken):
        last = of_unit[parts]
        if last is not None:
            found.append(last)
            parts = max(0, parts - min(_PARTS, int(last.freed / part)))
    return found


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
    return not any(
        has_hooks(one, (FORWARD_HOOKS, FORWARD_PRE_HOOKS, *BACKWARD_HOOKS))
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
        before = found.get(one.unit, Unit(one.unit, 0.0, 0.0, 0.0, 0.0, 0.0))
        found[one.unit] = Unit(
            one.unit,
            before.saved + flight * one.saved_mib * _MIB * factor,
            before.freed + flight * once,
            max(before.once, once),
            before.seconds + one.forward_ms / 1e3,
            max(before.single, one.saved_mib * _MIB * factor),
        )
        seconds += (one.forward_ms + one.backward_ms) / 1e3
    return list(found.values()), seconds


class Recomputation:
    """Chooses for the steps of one rank, as all ranks that run a batch agree.

    Args:
        states: tells how many bytes the optimizer keeps already.
        offload: moves what units save to the CPU; None where that would change nothing.
    """

    def __init__(self, holding: Holding, states: Callable[[], int], offload: Offload | None) -> None:
        self._holding, self._states, self._offload = holding, states, offload
        self._first = 0
        self._said = ""

    def choose(self, plan: Plan, cuts: Sequence[Cut], microbatches: int) -> Fit:
        """Units of this rank that keep less in a step. Collective over the ranks that run its batch.

        Args:
            cuts: the ways of its microbatches.
        """
        grid, root = self._holding.grid, self._holding.root
        settings = grid.settings
        stages = len(cuts[0].starts)
        flight = in_flight(root, grid, stages, microbatches)
        values = max(sum(value.meta.bytes for value in cut.trace.values.values()) for cut in cuts)
        self._first = self._first or values
        mine = sum(grid.seat(stage) == grid.place.pipeline for stage in range(stages))
        offload = self._offload
        room = self._room(mine, on_host=offload is not None and offload.everything)
        host = self._host() if offload is not None and not offload.everything else None
        found = objects(RECORD, (grid.place.pipeline, room, host), grid.company_ranks, grid.company_group, grid.device)
        may = able(root, [cut.trace for cut in cuts]) if settings.recomputes else frozenset()
        choices = {}
        for place in sorted({place for place, *_ in found}):
            of_rank = {stage: flight[stage] for stage in range(stages) if grid.seat(stage) == place}
            units, seconds = units_of(plan, of_rank, values / (self._first or 1))
            least = min(room for other, room, _ in found if other == place)
            everything = settings.activation_checkpointing == "all"
            hosts = [one for other, _, one in found if other == place and one is not None]
            slowest = Host(*map(min, zip(*hosts, strict=True))) if hosts else None
            choices[place] = chosen(units, may, least, seconds, everything=everything, host=slowest)
        line = "; ".join(f"pipeline rank {place}: {choice.line()}" for place, choice in choices.items())
        if grid.rank == 0 and line != self._said:
            what = "activation checkpointing" if settings.recomputes else "activations on the CPU"
            print(f"{what}: {line}", flush=True)
        self._said = line
        return choices[grid.place.pipeline].fit

    def _host(self) -> Host | None:
        if self._offload is None:
            return None
        free = free_bytes(torch.device("cpu")) / self._holding.grid.local_world / SPARE
        return Host(self._offload.rate(), free, self._offload.smallest)

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
