"""Prepares steps: the first one plans and gives each rank its stages; each new shape of inputs is recorded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainshed.contract.wire.pipeline import PipelineSettings

from ..errors import PipelineError, PlanError
from ..plan.plan_file import Plan
from ..record.subject import Backward, Subject
from ..record.trace import Trace
from ..replay.gates import UnitGates
from ..replay.route import Scout
from .absent import Absent
from .batch import Microbatch, facts
from .checking import compare
from .gradients import GradientSync, reached_by_replicas
from .holding import Holding
from .outputs import Post
from .placement import broadcast_state, place
from .planning import agree_on_plan, from_leader, write_only
from .schedule import Loop, Schedule, TorchSchedule
from .shape import Cut, Way, cut
from .stage import Frame, StageModule
from .suitable import check_values

_ONE_ORDER = (
    "all ranks of one pipeline need the same data, and must build and run the model in one order: "
    "if it walks through a set, start them with PYTHONHASHSEED=0"
)


@dataclass
class Prepared:
    """All that a step with inputs of one shape needs.

    ways: the ways that its microbatches go; more than one where values of the inputs decide.
    random, draws: whether the forward draws from torch's generators; from Python's or numpy's.
    mine: stages of this rank.
    post: for what the steps return.
    known: what `expected` has found.
    verified: whether a step with it was verified, or was found not to need that.
    """

    ways: list[Way]
    schedule: Schedule
    training: bool
    random: bool
    draws: bool
    mine: list[int]
    post: Post = field(default_factory=Post)
    known: dict[tuple[int, ...], dict[str, int]] = field(default_factory=dict)
    verified: bool = False

    def expected(self, taken: list[int]) -> dict[str, int]:
        """Parameter -> how often the backward adds to its gradient on this rank.

        Args:
            taken: the way of each microbatch.
        """
        key = tuple(sorted(taken))
        if key not in self.known:
            found = self.known[key] = {}
            for number in taken:
                cut = self.ways[number].cut
                for name, stages in cut.users().items():
                    times = sum(1 for stage in stages if stage in self.mine)
                    if times and name in cut.trace.reached:
                        found[name] = found.get(name, 0) + times
        return self.known[key]


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
    whole: in the first step all parameters as they were before they got their places, for whoever verifies it; empty but on
        the first rank of a pipeline. None in later steps.
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
        self.frame = Frame(UnitGates(holding.root), attach, holding.grid.device, holding.root)
        self.plan: Plan | None = None
        self.sync: GradientSync | None = None
        self.whole: dict[str, torch.Tensor] | None = None
        self._grid = holding.grid
        self._root = holding.root
        self._every = list(holding.root.parameters())
        self._attach = attach
        self._planned = planned
        self._pins = pins
        self._overlap = overlap
        self._bucket_bytes = bucket_bytes
        self._absent = Absent()
        self._shapes: dict[Any, Prepared] = {}
        self._latest: deque[Trace] = deque(maxlen=8)

    def prepare(self, function: Callable[..., Any], microbatches: list[Microbatch], seed: int) -> tuple[Prepared, list[int]]:
        """What a step needs, and the way of each microbatch. Collective where the shape of its inputs or a way is new.

        Args:
            seed: of Python's and numpy's generators in this step.

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
            subject = self._subject(function, microbatches[0], (seed, 0))
            self._shapes[key] = self._build([self._record(subject, len(microbatches))], len(microbatches))
        prepared = self._shapes[key]
        if not any(way.cut.trace.asks for way in prepared.ways):
            return prepared, [0] * len(microbatches)
        taken, ways = [], list(prepared.ways)
        for position, microbatch in enumerate(microbatches):
            subject = self._subject(function, microbatch, (seed, position))
            number = self._way(subject, ways)
            if number == len(ways):
                ways.append(self._record(subject, len(microbatches)))
            taken.append(number)
        if len(ways) > len(prepared.ways):
            self._shapes[key] = prepared = self._build(ways, len(microbatches))
        return prepared, taken

    def _subject(self, function: Callable[..., Any], microbatch: Microbatch, seed: tuple[int, int]) -> Subject:
        args, kwargs = microbatch
        return Subject(self._root, function, self._attach, args, kwargs, self._grid.device, seed)

    def _way(self, subject: Subject, ways: list[Way]) -> int:
        """Number of the way that a microbatch goes; one more than there are if it is new. The same on all ranks."""
        for number, way in enumerate(ways):
            scout = Scout(way.cut.trace, self.frame.gates, self._grid.device)
            with subject.untouched(buffers=False), subject.attached(scout):
                if scout.follows(subject.function, *subject.inputs()):
                    return number
        return len(ways)

    def forget(self) -> None:
        """Drops all schedules, and with them the connections that they hold."""
        self._shapes.clear()

    def alike(self) -> tuple[bytes, str]:
        """What all replicas must have in common before they meet in sums, and its name."""
        buffers = [(tuple(buffer.shape), buffer.dtype) for buffer in self._root.buffers()]
        return self._trained() + repr(buffers).encode(), "which parameters are trained, or in the shapes of their buffers"

    def _trained(self) -> bytes:
        with torch._C.DisableTorchFunctionSubclass():  # a fact, also of parameters that are absent
            return bytes([parameter.requires_grad for parameter in self._every])

    def _record(self, subject: Subject, microbatches: int) -> Way:
        if self._planned is not None:
            write_only(subject, self._planned, self._pins, microbatches)
        first = not self.holding.partitioned
        if first:
            check_values(self._root)
            self._root.to(self._grid.device)
            broadcast_state(self._root, self._grid)
            self.plan = agree_on_plan(subject, self._grid, self._pins, microbatches, self.plan)
        if self.plan is None:
            raise PlanError("there is no plan")
        with self._absent.as_zeros():
            trace = subject.record(self.plan.unit_names, self._latest)
        if trace.atomic:
            name, reason = next(iter(trace.atomic.items()))
            raise PlanError(f"{name} must be kept whole: {reason}", hint="name it in `atomic`, or make the plan again")
        self._latest.append(trace)
        compare(self._grid, trace.fingerprint() + self._trained().hex(), "recorded another forward", _ONE_ORDER)
        # The plan is that of the first replica's microbatch; another one's may call a module more or less often.
        shape = cut(trace, self.plan, exact=first and self._grid.place.replica == 0)
        if first:
            self._settle(shape, self.plan)
        self._check_local(shape)
        ranks = len(self._grid.pipeline_ranks)
        self.holding.note_buffers({name: shape.stage_at(position) % ranks for name, position in trace.buffers.items()})
        return Way(shape, first)

    def _settle(self, shape: Cut, plan: Plan) -> None:
        """Gives up the parameters of other ranks: from here on this rank has its own stages only."""
        grid, root = self._grid, self._root
        ranks = len(grid.pipeline_ranks)
        placement = from_leader(grid, lambda: place(root, shape, ranks))
        local = set(placement.local(grid.place.pipeline))
        shared = placement.shared()
        grid.subgroups(list(shared.values()))
        elsewhere = {name: holders[0] for name, holders in placement.holders.items() if name not in local}
        if grid.settings.verifies:
            every = root.named_parameters() if grid.place.pipeline == 0 else ()
            self.whole = {name: parameter.data for name, parameter in every}
        self._absent.give_up(root, elsewhere, grid.device)
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

    def _build(self, ways: list[Way], microbatches: int) -> Prepared:
        degree = len(self._grid.pipeline_ranks)
        cuts = [way.cut for way in ways]
        stages = len(cuts[0].starts)
        training = cuts[0].trace.has_backward
        mine = [stage for stage in range(stages) if stage % degree == self._grid.place.pipeline]
        self.frame.stages = len(mine)
        modules = [StageModule(cuts, stage, self.frame) for stage in mine]
        units = {cut.trace.calls[p] for cut in cuts for stage in mine for p in range(*cut.range_of(stage))}
        self.frame.local_units = frozenset(units | self.frame.local_units)
        self.frame.gates.put(cuts[0].trace.units)
        schedule: Schedule
        if stages == 1:
            schedule = Loop(modules[0], microbatches, training)
        else:
            kind, group = self._grid.settings.schedule, self._grid.pipeline_group
            schedule = TorchSchedule(modules, stages, microbatches, kind, training, group)
        return Prepared(
            ways, schedule, training, any(cut.trace.random for cut in cuts), any(cut.trace.draws for cut in cuts), mine
        )
