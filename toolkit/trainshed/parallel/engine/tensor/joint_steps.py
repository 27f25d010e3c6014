"""Steps of ranks that run the same batches together: the frame that engines of divided models share.

A step runs the undivided model where it is verified, then the divided one; ranks compare what came in and the losses, take
means of gradients, and compare with the undivided model before an optimizer moves anything. Where the model is sharded as
well, the first step does that after the undivided model has run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from ...ground.errors import PipelineError
from ...ground.grid import TensorGroup
from ...ground.shards import whole
from ...ground.tree import with_cloned_tensors
from ...plan.plan_file import Plan
from ...tracing import host_rng as dice
from ...tracing import rng
from ...tracing.captured_values import name_of
from ...tracing.subject import Backward
from ..alarm import Alarm
from ..batch import Microbatch, Ran, parts_of
from ..block_shards import refuse_hooks, run_by_all
from ..checking import same_everywhere
from ..holding import Holding
from ..losses import Losses, called
from ..object_collectives import FINDINGS, objects
from ..placement import broadcast_buffers
from ..shard_mesh import ShardMesh
from ..verify.tensor_digest import sketch
from ..verify.traces import waiting_hooks
from ..verify.unit_outputs import Watch
from .batch_rotation import Turn, exchange
from .gradient_averaging import Means
from .part_shards import PartShards
from .rank_agreement import apart, refuse_apart
from .reference import Reference

States = tuple[torch.Tensor, dice.State]


class JointStep:
    """scale: of the loss. average: whether it is divided by the number of microbatches as well. losses: by microbatch."""

    def __init__(self, function: Callable[..., Any], turns: list[Turn], scale: float, average: bool) -> None:
        self.function, self.turns, self.scale, self.average = function, turns, scale, average
        self.losses: list[torch.Tensor | None] = []

    @property
    def trains(self) -> bool:
        """Tells whether a loss was given to `model.backward`."""
        return any(one is not None for one in self.losses)

    def copied(self) -> JointStep:
        """The same with inputs that may be changed in place."""
        turns = [
            Turn([with_cloned_tensors(one) for one in turn.microbatches], turn.parts, turn.random, turn.rolled)
            for turn in self.turns
        ]
        return JointStep(self.function, turns, self.scale, self.average)


class Parted(Protocol):
    """The divided part of a model.

    inputs: what came in during this step, by name, in two numbers by which ranks can compare it.
    running: whether all ranks of the group run the same now.
    """

    inputs: list[tuple[str, torch.Tensor]]
    running: bool

    def installed(self) -> AbstractContextManager[None]:
        """A context for a step."""

    def watched(self, watch: Watch | None) -> AbstractContextManager[None]:
        """A context in which `watch` looks at the modules."""

    def backward(self) -> AbstractContextManager[None]:
        """A context for the backward of a microbatch."""

    def left(self, value: Any) -> Any:
        """Returns what the step function returned, whole."""

    def begin(self) -> None:
        """Before the microbatches of a step."""

    def forget(self) -> None:
        """After a microbatch: what is of it alone."""


class JointEngine:
    """Takes the place of `steps.Engine` in models without stages.

    Args:
        holding: of the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        on_parts: takes `id` -> name of the parameters before, and name -> parameter after the model was divided or sharded.
        loss_scale: gives the factor of the loss.
        average: whether to divide each microbatch's loss by their number.
        buffers: whether replicas take the buffers of replica 0 before each training step.
        bucket_bytes: bytes of gradients that are summed over ranks at once.

    Raises:
        PipelineError: the degree of sharding does not divide the number of ranks that have the same.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        on_parts: Callable[[Mapping[int, str], Mapping[str, nn.Parameter]], None],
        loss_scale: Callable[[], float],
        average: bool,
        buffers: bool,
        bucket_bytes: int,
    ) -> None:
        self.holding = holding
        self.plan: Plan | None = None
        self._grid, self._root = holding.grid, holding.root
        self._alarm = Alarm(holding.grid)
        self._attach, self._on_parts, self._loss_scale = attach, on_parts, loss_scale
        self._average, self._buffers, self._bucket_bytes = average, buffers, bucket_bytes
        self._steps = 0
        self._verified: set[str] = set()
        self._said: set[str] = set()
        self._where = ShardMesh(holding.grid) if holding.grid.settings.sharded_data_parallel_degree > 1 else None
        self._shards: PartShards | None = None

    def gathered(self) -> AbstractContextManager[None]:
        """Within this context no rank waits for one that has other shards. Collective over the ranks that have shards."""
        return nullcontext() if self._shards is None else self._shards.gathered()

    def run(
        self,
        function: Callable[..., Any],
        microbatches: list[Microbatch],
        rows: Callable[[Microbatch], int | None] | None = None,
    ) -> Ran:
        """Returns what `function` returned for each microbatch of this rank. Collective.

        Args:
            rows: tells how many rows a microbatch has, by which its loss counts.

        Raises:
            PipelineError: the ranks do not do the same, the model cannot be divided, or the step is not what the undivided
                model computes.
        """
        self._alarm.check()
        try:
            return self._run(function, microbatches, parts_of(microbatches, rows))
        except Exception as error:
            explained = self._explained(error)
            self._alarm.ring(explained, error)
            if explained is error:
                raise
            raise explained from error

    def _begun(self) -> tuple[Parted, TensorGroup]:
        """What is divided, or may be, and the ranks that run together; before the first step all take rank 0's model."""
        raise NotImplementedError

    def _reference(self, step: JointStep, due: bool, group: TensorGroup) -> Reference | None:
        """What the step will be compared with; None if it is not verified, or cannot be."""
        raise NotImplementedError

    def _divide(self) -> None:
        """Gives each rank its parts, in the first step."""

    def _after(self, step: JointStep) -> None:
        """When the divided model has run."""

    def _explained(self, error: Exception) -> Exception:
        """The error, or a better one; nothing is kept of the shards' connections."""
        shards, or_else = self._shards, ""
        if self._where is not None:
            self._where.let_go()
        if shards is not None:
            or_else = "the ranks ran different blocks, and with sharded_data_parallel_degree all run the same ones"
            or_else += f" (here {shards.last!r} was the last to begin)" if shards.last else ""
            shards.close()
            shards.let_go()
            if "mixed torch.Tensor and DTensor" in str(error):
                return PipelineError(
                    f"a parameter that is sharded is read outside of the block that has it: {error}",
                    hint="read it in the block's own forward, or leave out sharded_data_parallel_degree",
                )
        return self._alarm.explain(error, or_else)

    def between_steps(self) -> AbstractContextManager[None]:
        """A context for calls outside of steps."""
        return nullcontext()

    def _at_work(self) -> PartShards | None:
        """The shards, where modules are gathered when they run."""
        return self._shards if self._shards is not None and not self._shards.is_off else None

    def _before(self, step: JointStep) -> None:
        """Between the undivided model's run and the divided one's: divides and shards, in the first step."""
        where = self._where
        if where is not None:
            counts = [len(turn.microbatches) for turn in step.turns]
            same_everywhere(self._grid, repr(counts).encode(), f"how many microbatches they run ({counts})")
        if self.holding.partitioned:
            return
        names, ran = self.holding.names, set[str]()
        if where is not None:
            ran = self._run_by_all(step)
        self._divide()
        if where is not None:
            self._shards = self._shard(where, ran)
        self._on_parts(names, dict(self._root.named_parameters()))
        self.holding.settle()

    def _run_by_all(self, step: JointStep) -> set[str]:
        """Modules that every rank runs. Collective over all ranks."""
        firsts = [turn.microbatches[0] for turn in step.turns]
        return run_by_all(self._root, self._grid, self._attach, step.function, firsts)

    def _shard(self, where: ShardMesh, ran: set[str]) -> PartShards:
        return PartShards(self._root, self._grid, where, MixedPrecisionPolicy(), ran)

    def _run(self, function: Callable[..., Any], microbatches: list[Microbatch], parts: list[float]) -> Ran:
        grid, (parted, group) = self._grid, self._begun()
        trained = bytes(parameter.requires_grad for parameter in self._root.parameters())
        same_everywhere(grid, trained, "which parameters are trained")
        mode = f"{name_of(function)} {self._root.training} {torch.is_grad_enabled()}"
        same = group.kind == "context" or grid.settings.prescaled_batch
        turns = exchange(group, microbatches, parts, mode, grid.device, same=same)
        mine = 0 if len(turns) == 1 else group.ranks.index(grid.rank)
        if self._buffers and self._root.training and torch.is_grad_enabled():
            broadcast_buffers(self._root, grid)
        if shards := self._at_work():
            shards.begin()
            refuse_hooks(self._root)
        step = JointStep(function, turns, (1 / len(turns)) * self._loss_scale(), self._average)
        with parted.installed():
            results = self._compared(parted, group, step, mode, mine)
        counts = [len(turn.microbatches) for turn in turns]
        first = sum(counts[:mine])
        return Ran(results[first : first + counts[mine]], turns[mine].parts)

    def _compared(self, parted: Parted, group: TensorGroup, step: JointStep, mode: str, mine: int) -> list[Any]:
        """What the step function returned, after all comparisons; gradients are means."""
        device, turn = self._grid.device, step.turns[mine]
        before = rng.get_state(device), dice.get_state()
        due = self._is_due(mode)
        reference = self._reference(step, due, group)
        self._before(step)
        watch, sketches = None, {}
        if reference is not None:
            watch = Watch()
            sketches = {name: sketch(whole(p.detach())) for name, p in self._root.named_parameters()}
        means = Means(self._grid, self.holding.parameters, self._bucket_bytes, self._shards)
        try:
            with parted.watched(watch), waiting_hooks(self._root) as hooks:
                results, after = self._turns(parted, step, watch, mine)
            if shards := self._at_work():
                shards.close()
            self._after(step)
        except Exception:
            means.put_back()
            raise
        rng.set_state(after[0] if torch.equal(before[0], turn.random) else before[0], device)
        dice.set_state(after[1] if dice.same(before[1], turn.rolled) else before[1])
        self._compare_ranks(parted, group, step)
        if step.trains:
            means.finish()
        else:
            means.put_back()
        self._steps += step.trains
        if reference is not None and watch is not None:
            self._say(reference.compare(watch, results, sketches, self._steps))
        if step.trains:
            hooks()
            self.holding.step_ended(self._steps, due)
        return results

    def _turns(self, parted: Parted, step: JointStep, watch: Watch | None, mine: int) -> tuple[list[Any], States]:
        """Forward and backward of all microbatches; their results, and the states of the generators after turn `mine`."""
        device = self._grid.device
        results: list[Any] = []
        after = (step.turns[mine].random, step.turns[mine].rolled)
        step.losses.clear()
        parted.inputs.clear()
        parted.begin()
        parted.running = True
        try:
            for number, turn in enumerate(step.turns):
                rng.set_state(turn.random, device)
                dice.set_state(turn.rolled)
                for part, microbatch in zip(turn.parts, turn.microbatches, strict=True):
                    if watch is not None:
                        watch.begin(len(results))
                    losses = Losses()
                    results.append(parted.left(called(step.function, microbatch, losses, self._attach)))
                    if shards := self._at_work():
                        shards.compare(losses.any)
                    if watch is not None:
                        watch.backward(len(results) - 1)
                    scale = step.scale / (len(turn.microbatches) if step.average else 1)
                    with parted.backward():
                        step.losses.append(_backward(losses, scale * part if step.average else scale))
                    parted.forget()
                if number == mine:
                    after = rng.get_state(device), dice.get_state()
        finally:
            parted.running = False
            parted.forget()
        return results, after

    def _is_due(self, mode: str) -> bool:
        settings, fresh = self._grid.settings, mode not in self._verified
        self._verified.add(mode)
        if settings.verify_steps and self._steps % settings.verify_steps == 0:
            return True
        if settings.verify == "off" or not fresh:
            return False
        return settings.verify == "changes" or self._steps == 0

    def _compare_ranks(self, parted: Parted, group: TensorGroup, step: JointStep) -> None:
        """Ranks of a group have run the same batches.

        Raises:
            PipelineError: their modules had other inputs, or they found other losses: something that they read is not the
                same.
        """
        self._compare_in(group, parted.inputs, [math.nan if one is None else float(one) for one in step.losses])

    def _compare_in(self, group: TensorGroup, inputs: list[tuple[str, torch.Tensor]], losses: list[float]) -> None:
        """As `_compare_ranks`. Collective over the group."""
        found = objects(FINDINGS, (inputs, losses), group.ranks, group.group, self._grid.device)
        if what := apart(group.ranks, [given for given, _ in found], [own for _, own in found], group.kind):
            for parameter in self._root.parameters():
                parameter.grad = None
            refuse_apart(what, group.kind)

    def _say(self, line: str) -> None:
        if line and self._grid.rank == 0 and line not in self._said:
            print(line, flush=True)
        self._said.add(line)


def _backward(losses: Losses, scale: float) -> torch.Tensor | None:
    """The loss, after its backward; None if there is none."""
    total = losses.total()
    if total is None:
        return None
    if total.requires_grad:
        (total * scale).backward()
    return total.detach()
