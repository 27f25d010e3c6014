"""Runs steps: plans at the first, records each new shape once, schedules, sums gradients, checks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import PipelineError, PlanError
from ..grid import Grid
from ..optimizer import loss_scale
from ..plan.lines import assignment_lines, comparison_lines, whole_lines
from ..plan.plan_file import Plan
from ..record.subject import Backward, Subject
from ..replay import rng
from ..replay.gates import UnitGates
from ..session import session
from .batch import Microbatch, digest, facts
from .gradients import GradientSync
from .link import measure_link
from .outputs import share
from .placement import Hollow, Placement, broadcast_buffers, broadcast_state, place
from .preparing import keep_busy, make, read, write_only
from .schedule import Loop, Schedule, TorchSchedule
from .shape import Cut, cut
from .stage import Frame, StageModule, Step

# The training step after which measured times are shown against the plan: caches are warm by then.
_REPORTED = 4
# Training steps in which the ranks of a pipeline compare the values of their batches.
_COMPARED = 3


@dataclass
class _Prepared:
    """All that a step with inputs of one shape needs."""

    cut: Cut
    modules: list[StageModule]
    schedule: Schedule
    training: bool
    expected: dict[str, int]
    checked: bool = False


class Engine:
    """The pipeline of one model on one rank.

    Args:
        root: the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        pins: module -> stage, as set by `set_partition`.
        plan: a plan to use instead of making one.
    """

    def __init__(
        self,
        grid: Grid,
        root: nn.Module,
        attach: Callable[[Backward | None], None],
        *,
        pins: dict[str, int],
        average: bool = True,
        overlap: bool = True,
        buffers: bool = True,
        bucket_bytes: int = 25 * 2**20,
    ) -> None:
        self.grid, self.root, self.attach, self.pins = grid, root, attach, pins
        self.average, self.overlap, self.buffers, self.bucket_bytes = average, overlap, buffers, bucket_bytes
        self.plan: Plan | None = None
        self.placement: Placement | None = None
        self.sync: GradientSync | None = None
        self.steps = 0
        self._shapes: dict[Any, _Prepared] = {}
        self._hollow = Hollow()
        self.frame = Frame(UnitGates(root), attach, grid.device)
        self.on_partition: list[Callable[[], None]] = []

    @property
    def partitioned(self) -> bool:
        """Whether the first step has been."""
        return self.placement is not None

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that this rank holds, by name; all of them before the first step."""
        every = dict(self.root.named_parameters())
        if self.placement is None:
            return every
        return {name: every[name] for name in self.placement.local(self.grid.place.pipeline)}

    # A step ----------------------------------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> list[Any]:
        """What `function` returned for each microbatch, on every rank of the pipeline. Collective."""
        try:
            return self._step(function, microbatches)
        except Exception as error:
            explained = self._explain(error)
            if explained is error:
                raise
            raise explained from error

    def _step(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> list[Any]:
        prepared = self._prepare(function, microbatches)
        if self.steps < _COMPARED:
            self._compare(digest(microbatches), "was given another batch")
        if self.buffers and prepared.training:
            broadcast_buffers(self.root, self.grid)
        scale = (1 / len(microbatches) if self.average else 1.0) * loss_scale()
        step = Step(function, microbatches, prepared.training, scale)
        after = self._draw_states(prepared, step)
        started = time.perf_counter()
        self.frame.step = step
        if prepared.training and self.sync is not None:
            self.sync.begin(prepared.expected)
        try:
            prepared.schedule.run()
        except Exception as error:
            if step.failure is None or step.failure is error:
                raise
            raise step.failure from step.failure.__cause__
        finally:
            self.frame.step = None
            if after is not None:
                rng.set_state(after, self.grid.device)
            if self.sync is not None:
                self.sync.abandon()
        if prepared.training and self.sync is not None:
            self._check(prepared)
            self.sync.finish()
            self.steps += 1
            self._report(step, time.perf_counter() - started)
        results = [step.results[number] for number in sorted(step.results)] if step.results else None
        return share(results, self.grid.pipeline_ranks[-1], self.grid.pipeline_group, self.grid.device)

    def _draw_states(self, prepared: _Prepared, step: Step) -> torch.Tensor | None:
        """One number from the generator decides all random numbers of the step, whatever the number of stages is."""
        if not prepared.cut.trace.random:
            return None
        seed = int(torch.randint(0, 2**62, (1,)))
        device = self.grid.device
        step.states = [rng.state_of_seed(seed + number, device) for number in range(len(step.microbatches))]
        return rng.get_state(device)

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, PipelineError):
            return error
        text = str(error)
        lost = ("Connection closed", "Connection reset", "peer", "Broken pipe", "Timed out", "timed out", "gloo")
        if isinstance(error, RuntimeError) and any(word in text for word in lost):
            return PipelineError(
                f"rank {self.grid.rank} lost another rank of the job during a step",
                details=text,
                hint="the cause is in the log of the rank that ended first",
            )
        return error

    def _check(self, prepared: _Prepared) -> None:
        """After the first step of a shape: every parameter that the record says is trained has a gradient."""
        if prepared.checked or self.placement is None or self.sync is None:
            return
        prepared.checked = True
        used = prepared.cut.users()
        local = self.grid.place.pipeline
        ranks = len(self.grid.pipeline_ranks)
        missing = [
            name
            for name in sorted(prepared.cut.trace.reached)
            if name in self.sync.parameters
            and self.sync.parameters[name].grad is None
            and {stage % ranks for stage in used.get(name, ())} == {local}
        ]
        wrong = [
            name
            for name, parameter in self.sync.parameters.items()
            if parameter.grad is not None and tuple(parameter.grad.shape) != tuple(parameter.shape)
        ]
        names_of = {id(parameter): name for name, parameter in self.sync.parameters.items()}
        whole = {
            stage: (error.reason, sorted(names_of[id(p)] for p in error.parameters if id(p) in names_of))
            for stage, error in prepared.schedule.inseparable().items()
        }
        found: list[Any] = [None] * self.grid.world
        dist.all_gather_object(found, (missing, wrong, whole), group=self.grid.control_group)
        lines = [
            f"rank {rank}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
            for rank, (absent, bad, _) in enumerate(found)
            if (names := absent + bad)
        ]
        if self.grid.rank == 0:
            for line in whole_lines({stage: why for *_, stages in found for stage, why in stages.items()}):
                print(line, flush=True)
        if lines:
            raise PipelineError(
                f"self-check of the first step: parameters without the gradient that they should have: {'; '.join(lines)}",
                hint="report this with the model; until then name the modules around in `atomic`",
            )

    def _report(self, step: Step, seconds: float) -> None:
        if self.steps != _REPORTED or self.plan is None or self.grid.world == 1:
            return
        count = len(step.microbatches)
        mine = [(stage, 1e3 * f / count, 1e3 * b / count) for stage, (f, b) in step.seconds.items()]
        found: list[Any] = [None] * self.grid.world
        dist.all_gather_object(found, mine if self.grid.place.replica == 0 else [], group=self.grid.control_group)
        if self.grid.rank == 0:
            for line in comparison_lines(self.plan, 1e3 * seconds, [entry for part in found for entry in part]):
                print(line, flush=True)

    # Preparing -------------------------------------------------------------------------------------------------------

    def _prepare(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> _Prepared:
        key = (function, len(microbatches), self.root.training, torch.is_grad_enabled(), facts(microbatches[0]))
        if key not in self._shapes:
            odd = [number for number, one in enumerate(microbatches) if facts(one) != key[-1]]
            if odd:
                raise PipelineError(
                    f"microbatch {odd[0]} has inputs of another shape or type than microbatch 0",
                    hint="every microbatch of a step must look the same: choose a batch that `microbatches` divides",
                )
            args, kwargs = microbatches[0]
            self._shapes[key] = self._record(Subject(self.root, function, self.attach, args, kwargs, self.grid.device),
                                             len(microbatches))  # fmt: skip
        return self._shapes[key]

    def _record(self, subject: Subject, microbatches: int) -> _Prepared:
        if session.planned is not None:
            write_only(subject, session.planned, self.pins, microbatches)
        first = self.plan is None or self.placement is None
        if first:
            self.root.to(self.grid.device)
            broadcast_state(self.root, self.grid)
            self.plan = self._agree_on_plan(subject, microbatches)
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
        self._compare(trace.fingerprint(), "recorded another forward")
        shape = cut(trace, self.plan, exact=first)
        if first:
            self._settle(shape)
        self._check_local(shape)
        return self._build(shape, microbatches)

    def _agree_on_plan(self, subject: Subject, microbatches: int) -> Plan:
        """Global rank 0 reads or makes the plan; a problem there is everyone's."""
        settings = self.grid.settings
        plan = self._from_leader(lambda: self.plan or read(subject.root, settings))
        if plan is None:
            link = measure_link(self.grid)
            plan = self._from_leader(
                lambda: make(subject, settings, self.pins, microbatches, link), lambda: keep_busy(subject, self.grid)
            )
        if self.grid.rank == 0:
            for line in assignment_lines(plan):
                print(line, flush=True)
        return plan

    def _from_leader(self, action: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None) -> Any:
        """What `action` gives on global rank 0, on all ranks; or the error that it raises. Collective.

        Args:
            meanwhile: what the other ranks do.
        """
        payload: list[Any] = [None]
        if self.grid.rank == 0:
            try:
                payload[0] = action()
            except Exception as error:  # raised on all ranks below
                payload[0] = error
        meanwhile()
        dist.broadcast_object_list(payload, src=0, group=self.grid.control_group)
        if isinstance(payload[0], Exception):
            raise payload[0]
        return payload[0]

    def _compare(self, mine: str, what: str) -> None:
        """All ranks of a pipeline must have the same `mine`."""
        if self.grid.world == 1:
            return
        found: list[Any] = [None] * self.grid.world
        dist.all_gather_object(found, mine, group=self.grid.control_group)
        leader = self.grid.pipeline_ranks[0]
        different = [rank for rank in self.grid.pipeline_ranks if found[rank] != found[leader]]
        if different:
            raise PipelineError(
                f"rank {different[0]} {what} than rank {leader} of the same pipeline",
                hint="all ranks of one pipeline need the same data and model: split data by dp_rank() of dp_size()",
            )

    def _settle(self, shape: Cut) -> None:
        """Parameters go where they are used; from here on each rank has its own stages only."""
        ranks = len(self.grid.pipeline_ranks)
        self.placement = place(self.root, shape, ranks)
        local = set(self.placement.local(self.grid.place.pipeline))
        shared = self.placement.shared()
        self.grid.subgroups(list(shared.values()))
        self._hollow.give_up(self.root, local, self.grid.device)
        trained = {name: p for name, p in self.root.named_parameters() if name in local and p.requires_grad}
        self.sync = GradientSync(self.grid, trained, shared, self.overlap, self.bucket_bytes)
        for hook in self.on_partition:
            hook()

    def _check_local(self, shape: Cut) -> None:
        """A later step function may read only what the first one put here."""
        if self.placement is None:
            return
        ranks = len(self.grid.pipeline_ranks)
        for name, stages in sorted(shape.users().items()):
            for stage in sorted(stages):
                if stage % ranks not in self.placement.holders[name]:
                    raise PlanError(
                        f"{name} is needed on stage {stage}, but the first step put it on another rank",
                        hint="let the first step use all modules, or put the module there with set_partition",
                    )

    def _build(self, shape: Cut, microbatches: int) -> _Prepared:
        degree = len(self.grid.pipeline_ranks)
        stages = len(shape.starts)
        training = shape.trace.has_backward
        mine = [stage for stage in range(stages) if stage % degree == self.grid.place.pipeline]
        modules = [StageModule(shape, stage, self.frame) for stage in mine]
        units = {shape.trace.calls[p] for stage in mine for p in range(*shape.range_of(stage))}
        self.frame.local_units = frozenset(units | self.frame.local_units)
        self.frame.gates.put(shape.trace.units)
        schedule: Schedule
        if stages == 1:
            schedule = Loop(modules[0], microbatches, training)
        else:
            kind, group = self.grid.settings.schedule, self.grid.pipeline_group
            schedule = TorchSchedule(modules, stages, microbatches, kind, training, group)
        users = shape.users()
        expected = {
            name: microbatches * sum(1 for stage in users[name] if stage in mine)
            for name in shape.trace.reached
            if name in users and any(stage in mine for stage in users[name])
        }
        return _Prepared(shape, modules, schedule, training, expected)
