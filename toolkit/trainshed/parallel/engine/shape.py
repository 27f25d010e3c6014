"""A recorded forward cut into stages, for inputs of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from ..ground.errors import PlanError
from ..plan.plan_file import Plan
from ..tracing.trace import Trace


@dataclass(frozen=True)
class Cut:
    """A trace with the position at which each stage starts."""

    trace: Trace
    starts: tuple[int, ...]

    def range_of(self, stage: int) -> tuple[int, int]:
        """First position of a stage, and the first after it."""
        ends = (*self.starts[1:], self.trace.positions)
        return self.starts[stage], ends[stage]

    def incoming(self, stage: int) -> tuple[int, ...]:
        """Numbers of the values that a stage receives."""
        return self.trace.boundary(self.starts[stage]) if stage else ()

    def outgoing(self, stage: int) -> tuple[int, ...]:
        """Numbers of the values that a stage sends."""
        return self.trace.boundary(self.starts[stage + 1]) if stage + 1 < len(self.starts) else ()

    def stage_at(self, position: int) -> int:
        """The stage that runs a position."""
        return max(stage for stage, start in enumerate(self.starts) if start <= position)

    def rolls(self, stage: int) -> list[int]:
        """Events before the end of a stage that draw from Python's or numpy's generators."""
        end = self.range_of(stage)[1]
        return [index for index in self.trace.drawing if self.trace.events[index].position < end]

    @cached_property
    def several(self) -> frozenset[str]:
        """Parameters that several stages read."""
        return frozenset(name for name, stages in self.users().items() if len(stages) > 1)

    def users(self) -> dict[str, frozenset[int]]:
        """Parameter -> stages that read it."""
        users: dict[str, set[int]] = {}
        for event in self.trace.events:
            for name in event.parameters:
                users.setdefault(name, set()).add(self.stage_at(event.position))
        return {name: frozenset(stages) for name, stages in users.items()}


class SentTensor(NamedTuple):
    """A tensor that passes between stages: shape as it is sent."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


class Boundary:
    """The values that pass from a stage to the next one, whichever way a microbatch goes: room for the values of each way.

    slots: the tensors of every message.
    numbers: for each way the number of the value in each slot; None in one that this way leaves empty.
    rolls: for each way the events whose states of Python's and numpy's generators are sent along.
    rolled: how many states there are in a message.
    orders: value -> the order of its dimensions in which it is sent, and the way back, for each way.
    """

    def __init__(self, cuts: list[Cut], stage: int) -> None:
        self.slots: list[SentTensor] = []
        self.numbers: list[list[int | None]] = []
        self.orders: list[dict[int, tuple[tuple[int, ...], tuple[int, ...]]]] = []
        self.rolls = [cut.rolls(stage) for cut in cuts]
        for cut in cuts:
            taken: list[int | None] = [None] * len(self.slots)
            orders = {}
            for number in cut.outgoing(stage):
                meta = cut.trace.values[number].meta
                order = meta.memory_order()
                orders[number] = order, tuple(order.index(dim) for dim in range(len(order)))
                sent = SentTensor(tuple(meta.shape[dim] for dim in order), meta.dtype, meta.requires_grad)
                free = (at for at, slot in enumerate(self.slots) if slot == sent and taken[at] is None)
                at = next(free, len(self.slots))
                if at == len(self.slots):
                    self.slots.append(sent)
                    taken.append(None)
                taken[at] = number
            self.numbers.append(taken)
            self.orders.append(orders)
        for taken in self.numbers:
            taken += [None] * (len(self.slots) - len(taken))
        self.rolled = max(map(len, self.rolls))


@dataclass
class RecordedForward:
    """A recorded forward, cut.

    facts: of the inputs that it is for.
    measured: whether all parameters were here when it was recorded.
    checked: whether the gradients of a step with it were checked.
    """

    cut: Cut
    facts: Any
    measured: bool
    checked: bool = False


def cut(trace: Trace, plan: Plan, homes: Mapping[str, int], *, exact: bool) -> Cut:
    """Cuts a trace as the plan says.

    Args:
        homes: unit -> its stage in earlier cuts, for those that the plan does not have.
        exact: the trace must have exactly the plan's unit calls (the step that the plan was made for). Otherwise
            (evaluation, another step function) a call goes where the plan has it, and no earlier than what ran before.

    Raises:
        PlanError: the plan does not fit what was recorded.
    """
    planned = [(unit.unit, unit.call) for unit in plan.units]
    stage_of = {(unit.unit, unit.call): unit.stage for unit in plan.units}
    seen: dict[str, int] = {}
    calls = []
    for name in trace.calls:
        seen[name] = seen.get(name, -1) + 1
        calls.append((name, seen[name]))
    if exact and calls != planned:
        at = next((i for i, (a, b) in enumerate(zip(calls, planned, strict=False)) if a != b), min(len(calls), len(planned)))
        have = calls[at][0] if at < len(calls) else "the end"
        want = planned[at][0] if at < len(planned) else "the end"
        raise PlanError(
            f"the plan does not fit this model's forward: call {at} is {have!r}, the plan has {want!r}",
            hint="make the plan again",
        )
    stages, current = [], 0
    for name, call in calls:
        current = max(current, stage_of.get((name, call), homes.get(name, current)))
        stages.append(current)
    starts = []
    for stage in range(plan.stages):
        starts.append(next((i for i, s in enumerate(stages) if s >= stage), len(stages)))
    starts[0] = 0
    for start in starts[1:]:
        if start in trace.no_cut and 0 < start < len(stages):
            raise PlanError(
                f"no stage can start at {calls[start][0]!r}: {trace.no_cut[start]}",
                hint="return the value from that module, or name the module around both in `atomic`",
            )
    return Cut(trace, tuple(starts))
