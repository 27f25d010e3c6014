"""Prepares steps: the first one plans and gives each rank its stages; each new shape of inputs is recorded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainshed.contract.wire.pipeline import PipelineSettings

from ..errors import PipelineError, PlanError
from ..plan.plan_file import Plan
from ..record.subject import Backward, Subject
from ..replay.gates import UnitGates
from .batch import Microbatch, facts
from .checking import compare
from .gradients import GradientSync, reached_by_replicas
from .holding import Holding
from .placement import Hollow, broadcast_state, place
from .planning import agree_on_plan, from_leader, write_only
from .schedule import Loop, Schedule, TorchSchedule
from .shape import Cut, cut
from .stage import Frame, StageModule


@dataclass
class Prepared:
    """All that a step with inputs of one shape needs.

    expected: parameter -> how often the backward adds to its gradient on this rank.
    measured: whether all parameters were here when the forward was recorded.
    checked: whether the gradients of a step were checked.
    """

    cut: Cut
    modules: list[StageModule]
    schedule: Schedule
    training: bool
    expected: dict[str, int]
    measured: bool
    checked: bool = False


class Preparation:
    """Keeps what is needed for each shape of inputs, and makes it when a shape is new.

    Args:
        attach: tells the model that the user sees where its `backward` goes.
        planned: in a process that only makes a plan, the settings that the plan is for.
        pins: module -> stage, as set by `set_partition`.
        overlap: whether to sum gradients over replicas during the backward.
        bucket_bytes: bytes of gradients that are summed at once.

    plan: given before the first step, or made in it.
    sync: sums the gradients; None before the first step.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        planned: PipelineSettings | None,
        pins: dict[str, int],
        overlap: bool,
        bucket_bytes: int,
    ) -> None:
        self.holding = holding
        self.frame = Frame(UnitGates(holding.root), attach, holding.grid.device)
        self.plan: Plan | None = None
        self.sync: GradientSync | None = None
        self._grid = holding.grid
        self._root = holding.root
        self._every = list(holding.root.parameters())
        self._attach = attach
        self._planned = planned
        self._pins = pins
        self._overlap = overlap
        self._bucket_bytes = bucket_bytes
        self._hollow = Hollow()
        self._shapes: dict[Any, Prepared] = {}

    def prepare(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> Prepared:
        """What a step needs. Collective where the shape of its inputs is new.

        Raises:
            PipelineError: microbatches differ in shape or type; ranks of a pipeline have recorded different forwards.
            PlanError: there is no plan, or it does not fit what was recorded.
        """
        root = self._root
        modes = (root.training, torch.is_grad_enabled(), self._trained())
        key = (function, len(microbatches), modes, facts(microbatches[0]))
        if key not in self._shapes:
            odd = [number for number, microbatch in enumerate(microbatches) if facts(microbatch) != key[-1]]
            if odd:
                raise PipelineError(
                    f"microbatch {odd[0]} has inputs of another shape or type than microbatch 0",
                    hint="every microbatch of a step must look the same: choose a batch that `microbatches` divides",
                )
            args, kwargs = microbatches[0]
            subject = Subject(root, function, self._attach, args, kwargs, self._grid.device)
            self._shapes[key] = self._record(subject, len(microbatches))
        return self._shapes[key]

    def alike(self) -> tuple[bytes, str]:
        """What all replicas must have in common before they meet in sums, and its name."""
        buffers = [(tuple(buffer.shape), buffer.dtype) for buffer in self._root.buffers()]
        return self._trained() + repr(buffers).encode(), "which parameters are trained, or in the shapes of their buffers"

    def _trained(self) -> bytes:
        return bytes(parameter.requires_grad for parameter in self._every)

    def _record(self, subject: Subject, microbatches: int) -> Prepared:
        if self._planned is not None:
            write_only(subject, self._planned, self._pins, microbatches)
        first = not self.holding.partitioned
        if first:
            self._root.to(self._grid.device)
            broadcast_state(self._root, self._grid)
            self.plan = agree_on_plan(subject, self._grid, self._pins, microbatches, self.plan)
        if self.plan is None:
            raise PlanError("there is no plan")
        self._hollow.fill(0.0)
        try:
            trace = subject.record(self.plan.unit_names)
        finally:
            self._hollow.fill(math.nan)
        if trace.atomic:
            name, reason = next(iter(trace.atomic.items()))
            raise PlanError(f"{name} must be kept whole: {reason}", hint="name it in `atomic`, or make the plan again")
        compare(self._grid, trace.fingerprint() + self._trained().hex(), "recorded another forward")
        # The plan is that of the first replica's microbatch; another one's may call a module more or less often.
        shape = cut(trace, self.plan, exact=first and self._grid.place.replica == 0)
        if first:
            self._settle(shape, self.plan)
        self._check_local(shape)
        return self._build(shape, microbatches, measured=first)

    def _settle(self, shape: Cut, plan: Plan) -> None:
        """Gives up the parameters of other ranks: from here on this rank has its own stages only."""
        grid, root = self._grid, self._root
        ranks = len(grid.pipeline_ranks)
        placement = from_leader(grid, lambda: place(root, shape, ranks))
        local = set(placement.local(grid.place.pipeline))
        shared = placement.shared()
        grid.subgroups(list(shared.values()))
        self._hollow.give_up(root, local, grid.device)
        held = {name: parameter for name, parameter in root.named_parameters() if name in local}
        usual = reached_by_replicas(grid, shape.trace.reached & held.keys())
        self.sync = GradientSync(grid, held, shared, usual, self._overlap, self._bucket_bytes)
        homes: dict[str, int] = {}
        for unit in plan.units:
            homes.setdefault(unit.unit, unit.stage % ranks)
        self.holding.settle(placement, homes)

    def _check_local(self, shape: Cut) -> None:
        """A later step function may read only what the first one put here."""
        placement = self.holding.placement
        if placement is None:
            return
        ranks = len(self._grid.pipeline_ranks)
        for name, stages in sorted(shape.users().items()):
            for stage in sorted(stages):
                if stage % ranks not in placement.holders[name]:
                    raise PlanError(
                        f"{name} is needed on stage {stage}, but the first step put it on another rank",
                        hint="let the first step use all modules, or put the module there with set_partition",
                    )

    def _build(self, shape: Cut, microbatches: int, *, measured: bool) -> Prepared:
        degree = len(self._grid.pipeline_ranks)
        stages = len(shape.starts)
        training = shape.trace.has_backward
        mine = [stage for stage in range(stages) if stage % degree == self._grid.place.pipeline]
        modules = [StageModule(shape, stage, self.frame) for stage in mine]
        units = {shape.trace.calls[p] for stage in mine for p in range(*shape.range_of(stage))}
        self.frame.local_units = frozenset(units | self.frame.local_units)
        self.frame.gates.put(shape.trace.units)
        schedule: Schedule
        if stages == 1:
            schedule = Loop(modules[0], microbatches, training)
        else:
            kind, group = self._grid.settings.schedule, self._grid.pipeline_group
            schedule = TorchSchedule(modules, stages, microbatches, kind, training, group)
        users = shape.users()
        expected = {
            name: microbatches * sum(1 for stage in users[name] if stage in mine)
            for name in shape.trace.reached
            if name in users and any(stage in mine for stage in users[name])
        }
        return Prepared(shape, modules, schedule, training, expected, measured)
