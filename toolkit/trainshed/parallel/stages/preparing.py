"""Prepares steps: the first one plans and gives each rank its stages; each new shape of inputs is recorded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..delayed.tape import Tape
from ..engine.batch import Microbatch, facts
from ..engine.checking import agree_with_replicas, compare
from ..engine.gradients import GradientSync, reached_by_replicas
from ..engine.object_collectives import RECORD
from ..engine.offload import offload_for
from ..engine.placement import broadcast_state, extend, place, renamed
from ..engine.remote_parameters import Absent
from ..engine.shape import Cut, RecordedForward, cut
from ..engine.suitable import check_values
from ..engine.waiting import Waiting
from ..ground.errors import PlanError, SeveralPasses
from ..plan.plan_file import Plan
from ..tracing.call_routing import UnitGates
from ..tracing.naming import never_called
from ..tracing.subject import Backward, Subject, refuse_unsteady
from ..tracing.trace import Trace
from .choosing import Chooser
from .planning import Asked, Planned, agree_on_plan, from_leader, write_only
from .prepared import Prepared
from .recompute import ALL_KEPT, Recomputation
from .schedule import Loop, Schedule, TorchSchedule
from .stage import Frame, StageModule
from .stage_holding import StageHolding

_ONE_ORDER = (
    "all ranks of one pipeline need the same data, and must build and run the model in one order: "
    "if it walks through a set, start them with PYTHONHASHSEED=0"
)


class Preparation:
    """Keeps what is needed for each shape of inputs, and makes it when a shape is new.

    Args:
        attach: tells the model that the user sees where its `backward` goes.
        planned: what a process that only makes a plan has to know.
        pins: module -> stage, as set by `set_partition`.
        overlap: whether to sum gradients over replicas during the backward.
        bucket_bytes: bytes of gradients that are summed at once.
        states: tells how many bytes the optimizer keeps.
        tape: tells the values of parameters that the model was built without.

    plan: given before the first step, or made in it.
    sync: sums the gradients; None before the first step.
    delayed: whether the model was built without values.
    whole: in the first step all parameters as they were before they got their places, for whoever verifies it; empty but on
        the first rank of a pipeline. None in later steps.
    """

    def __init__(
        self,
        holding: StageHolding,
        attach: Callable[[Backward | None], None],
        *,
        planned: Planned | None,
        pins: dict[str, int],
        overlap: bool,
        bucket_bytes: int,
        states: Callable[[], int],
        tape: Tape | None = None,
    ) -> None:
        self.holding = holding
        self.frame = Frame(UnitGates(holding.root), attach, holding.grid.device, holding.root)
        offload = self.frame.offload = offload_for(holding.root, holding.grid)
        self.frame.gates.moved = offload.run if offload is not None else None
        self.frame.parts, self.frame.blocks = holding.parts, holding.blocks
        self.frame.gates.left = holding.parts.left if holding.parts is not None else None
        chooses = holding.grid.settings.recomputes or (offload is not None and not offload.everything)
        self._recomputation = Recomputation(holding, states, offload) if chooses else None
        self.plan: Plan | None = None
        self.sync: GradientSync | None = None
        self.whole: dict[str, torch.Tensor] | None = None
        self._grid = holding.grid
        self._root = holding.root
        self._every = list(holding.root.parameters())
        self._placed: dict[str, nn.Parameter] = {}  # what some forward has read
        self._known: dict[str, nn.Parameter] = {}
        self._unit_names: frozenset[str] = frozenset()
        self._homes: dict[str, int] = {}  # unit -> the stage of its first call
        self._attach = attach
        self._planned = planned
        self._pins = pins
        self._overlap = overlap
        self._bucket_bytes = bucket_bytes
        self._absent = Absent()
        self.delayed = tape is not None
        self._waiting = holding.waiting = Waiting(holding.root, tape, self._absent, holding.grid.device)
        self._latest: deque[Trace] = deque(maxlen=8)
        self._chooser = Chooser(
            self._grid,
            self._root,
            self.frame.gates,
            attach,
            modes=self._modes,
            units=self._units,
            record=self._record,
            build=self._build,
        )

    def recall(self, function: Callable[..., Any], microbatches: list[Microbatch]) -> int:
        """Number of the record that is known to fit a step that begins, -1 if that is to be found out."""
        return self._chooser.recall(function, microbatches)

    def prepare(
        self, function: Callable[..., Any], microbatches: list[Microbatch], seed: int, known: int
    ) -> tuple[Prepared, list[int]]:
        """Returns what a step needs, and the way of each microbatch. Collective where it is not known, or a way is new.

        Args:
            seed: of Python's and numpy's generators in this step.
            known: what `recall` has given on all ranks, -1 if they differ.

        Raises:
            PipelineError: microbatches differ in shape or type; ranks of a pipeline have recorded different forwards.
            PlanError: there is no plan, or it does not fit what was recorded.
        """
        return self._chooser.choose(function, microbatches, seed, known)

    def _modes(self) -> tuple[bool, bool, bytes]:
        return self._root.training, torch.is_grad_enabled(), self._trained()

    def _units(self) -> frozenset[str] | None:
        return self._unit_names if self.holding.partitioned else None

    def forget(self) -> None:
        """Drops all schedules, and with them the connections that they hold."""
        self._chooser.clear()

    def alike(self) -> tuple[bytes, str]:
        """Returns what all replicas must have in common before they meet in sums, and its name."""
        buffers = [(tuple(buffer.shape), buffer.dtype) for buffer in self._root.buffers()]
        placed = self.holding.placement.holders if self.holding.placement is not None else {}
        facts = self._trained() + repr(buffers).encode() + repr(list(placed.items())).encode()
        return facts, "which parameters they have, or train, or in the shapes of their buffers"

    def _trained(self) -> bytes:
        with torch.DisableTorchFunctionSubclass():  # a fact, also of parameters that are absent
            return bytes([parameter.requires_grad for parameter in self.holding.now(self._every)])

    def _record(self, subject: Subject, microbatches: int) -> RecordedForward:
        parts = self.holding.parts
        # No rank of a model that was built without values has its stages whole: their shapes have to do.
        hollow = self.delayed and parts is not None and self.holding.partitioned
        with parts.as_zeros() if parts is not None and hollow else self.holding.whole(), subject.settled():
            return self._recorded(subject, microbatches)

    def _recorded(self, subject: Subject, microbatches: int) -> RecordedForward:
        if self._planned is not None:
            with self._absent.as_zeros():
                write_only(subject, self._planned, self._pins, microbatches)
        first = not self.holding.partitioned
        if first:
            self._begin(subject, microbatches)
        if self.plan is None:
            raise PlanError("there is no plan")
        units = self.plan.unit_names | never_called(self._root, self.plan.unit_names)
        if units != self._unit_names:
            self._unit_names = units
        parts = self.holding.parts
        with self._absent.as_zeros(), parts.seen() if first and parts is not None else nullcontext():
            trace = subject.record(units, self._latest)
        if trace.atomic:
            name, reason = next(iter(trace.atomic.items()))
            raise PlanError(f"{name} must be kept whole: {reason}", hint="name it in `atomic`, or make the plan again")
        self._latest.append(trace)
        self.frame.gates.see()
        found = compare(
            self._grid,
            RECORD,
            f"{trace.fingerprint()} {self._trained().hex()}",
            "recorded another forward",
            _ONE_ORDER,
            (trace.steady, trace.decided()),
        )
        # By chance an unsteady forward may give the same twice, but not on all ranks: each of them has to know.
        trace.steady = all(steady for steady, _ in found)
        decided = [one for _, one in found]
        # Parameters of other ranks are zeros: what values decide may come out in another way on each rank.
        trace.decide(next((one for one in decided if one.has_backward), decided[0]))
        refuse_unsteady(trace)
        # The plan is that of the first replica's microbatch; another one's may call a module more or less often.
        shape = cut(trace, self.plan, self._homes, exact=first and self._grid.place.replica == 0)
        for position, unit in enumerate(trace.calls):
            self._homes.setdefault(unit, shape.stage_at(position))
        if first:
            self._settle(subject, shape, self.plan)
        else:
            self._extend(shape)
        self._check_local(shape)
        seat = self._grid.seat
        self.holding.note_buffers({name: seat(shape.stage_at(position)) for name, position in trace.buffers.items()})
        return RecordedForward(shape, facts((subject.args, subject.kwargs)), first)

    def _begin(self, subject: Subject, microbatches: int) -> None:
        """Before the first record of all: the state that ranks start from, and the plan."""
        grid, root, waiting = self._grid, self._root, self._waiting.names
        check_values(root)
        agree_with_replicas(grid, *self.alike())
        self._waiting.agree(grid)
        if waiting:
            self._absent.give_up(root, {}, grid.device)
        broadcast_state(root, grid, waiting)
        if not waiting:
            root.to(grid.device)
        with self._absent.as_zeros():
            parts = self.holding.parts
            foresee = parts.foresee if parts is not None else None
            blocks = self.holding.blocks
            sequences = blocks.find(subject) if blocks is not None else ()
            asked = Asked(self._pins, microbatches, sequences)
            self.plan = agree_on_plan(subject, grid, asked, self.plan, foresee, busy=not waiting)
            if blocks is not None:
                blocks.settle(self.plan.unit_names)

    def _settle(self, subject: Subject, shape: Cut, plan: Plan) -> None:
        """Gives up the parameters of other ranks: from here on this rank has its own stages only."""
        grid, root = self._grid, self._root
        placement = from_leader(grid.rank, grid.control_group, lambda: place(root, shape, grid.seat))
        local = set(placement.local(grid.place.pipeline))
        shared = placement.shared()
        grid.subgroups(list(shared.values()))
        read = shape.users()
        # What nothing has read yet stays whole, for a later forward to put it where it is needed.
        elsewhere = {name: ranks[0] for name, ranks in placement.holders.items() if name in read and name not in local}
        self._placed = {name: parameter for name, parameter in root.named_parameters() if name in read}
        self._known = dict(root.named_parameters())
        parts, shards = self.holding.parts, self.holding.shards
        if parts is not None:
            with self._absent.as_zeros():
                line = parts.choose(self._unit_names, None if self._waiting.names else subject)
            if grid.rank == 0:
                print(line, flush=True)
        if grid.settings.verifies and not self._waiting.names:
            every = root.named_parameters() if grid.place.pipeline == 0 else ()
            self.whole = {name: parameter.data for name, parameter in every}
        self._waiting.settle(root, elsewhere, grid.device, parts.take_made if parts is not None else _done)
        self._absent.give_up(root, elsewhere, grid.device)
        held = {name: parameter for name, parameter in root.named_parameters() if name in local}
        if parts is not None:
            parts.take(name for name in held if not parts.has(name))
            parts.settled()
            held = {name: parts.part(name, parameter) for name, parameter in held.items()}
        usual = reached_by_replicas(grid, shape.trace.reached & held.keys())
        self.sync = GradientSync(grid, held, shared, usual, self._overlap, self._bucket_bytes, shards)
        homes: dict[str, int] = {}
        for unit in plan.units:
            homes.setdefault(unit.unit, grid.seat(unit.stage))
        last = grid.seat(plan.stages - 1)
        if shards is None:
            self.holding.settle(placement, homes, last)
            return
        shards.take(name for name in held if name in read)
        shards.settled()
        self.holding.settle(placement, homes, last)
        shards.open()

    def _extend(self, shape: Cut) -> None:
        """Gives the parameters their places that nothing has read before, or that the script has added."""
        grid, root, before = self._grid, self._root, self.holding.placement
        now, read = dict(root.named_parameters()), shape.users()
        if before is None or self.sync is None:
            return
        fresh = {name for name, parameter in now.items() if self._placed.get(name) is not parameter}
        if not fresh & read.keys() and now.keys() == before.holders.keys():
            return
        if moved := renamed(self._known, now):
            raise PlanError(
                f"parameter {moved[0]!r} is called {moved[1]!r} now",
                hint="add modules at the end of a list, or under names of their own",
            )
        placement = extend(before, fresh, now, shape, grid.seat)
        shared = placement.shared()
        if not all(map(grid.can_make, shared.values())):
            raise PlanError(
                "parameters that come later are needed on several stages of several replicas",
                hint="let the first step use all modules",
            )
        for name in sorted(fresh & read.keys()):
            owner = before.holders.get(name, placement.holders[name])[0]
            whole = now[name].data = now[name].data.to(grid.device)
            dist.broadcast(whole, grid.pipeline_ranks[owner], group=grid.pipeline_group)
            self._placed[name] = now[name]
        self._known = now
        grid.subgroups(list(shared.values()))
        local = set(placement.local(grid.place.pipeline))
        elsewhere = {name: placement.holders[name][0] for name in fresh & read.keys() if name not in local}
        self._absent.give_up(root, elsewhere, grid.device)
        parts = self.holding.parts
        self.sync.parameters = {
            name: parameter if parts is None else parts.part(name, parameter)
            for name, parameter in now.items()
            if name in local
        }
        self.sync.shared = shared
        self.holding.placement = placement
        self._every = list(now.values())
        if self.holding.shards is not None:
            self.holding.shards.take(sorted(fresh & read.keys() & local))

    def _check_local(self, shape: Cut) -> None:
        """A later step function may read only what the first one put here."""
        placement = self.holding.placement
        if placement is None:
            return
        trace = shape.trace
        for name, stages in sorted(shape.users().items()):
            for stage in sorted(stages):
                if self._grid.seat(stage) not in placement.holders[name]:
                    problem = f"{name} is needed on stage {stage}, but the first step put it on another rank"
                    if trace.entries > 1 and not (trace.has_backward or trace.random or torch.is_grad_enabled()):
                        raise SeveralPasses(problem)
                    raise PlanError(
                        problem,
                        hint="call the model as often in the first step, or let that one use all modules"
                        if trace.entries > 1
                        else "let the first step use all modules, or put the module there with set_partition",
                    )

    def _build(self, ways: list[RecordedForward], microbatches: int) -> Prepared:
        cuts = [way.cut for way in ways]
        stages = len(cuts[0].starts)
        training = cuts[0].trace.has_backward
        mine = [stage for stage in range(stages) if self._grid.seat(stage) == self._grid.place.pipeline]
        self.frame.stages = len(mine)
        fit = ALL_KEPT
        if training and self._recomputation is not None and self.plan is not None:
            fit = self._recomputation.choose(self.plan, cuts, microbatches)
        modules = [StageModule(cuts, stage, self.frame, fit) for stage in mine]
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


def _done(_name: str, _own: bool) -> None:
    """A parameter has its values, and stays as it is."""
