"""Steps of a model without stages, inside of whose blocks each rank of a context group has a part of the sequence.

All of them are given the same batch, and run all that is around the blocks whole. Context groups are replicas of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...errors import PipelineError
from ...grid import TensorGroup
from ...plan.plan_file import Plan
from ...record.at_hand import name_of
from ...record.subject import Backward
from ...replay import dice, rng
from ...tree import map_leaves
from ..alarm import Alarm
from ..batch import Microbatch, Ran, parts_of
from ..checking import same_everywhere
from ..holding import Holding
from ..meeting import FINDINGS, objects
from ..placement import broadcast_buffers, broadcast_state
from ..suitable import check_values
from ..tensor.division import apart, refuse_apart
from ..tensor.means import Means
from ..tensor.one_round import Losses, Step, detached
from ..tensor.reference import Reference
from ..tensor.turns import exchange
from ..verify.sketch import sketch
from ..verify.traces import Traces
from ..verify.unit_outputs import Watch
from .crossing import Crossing
from .region import Region


class ContextEngine:
    """Takes the place of `steps.Engine`.

    Args:
        holding: of the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        loss_scale: gives the factor of the loss.
        marks: what the script says of a module: that it is a block, that it is none, or nothing.
        average: whether to divide each microbatch's loss by their number.
        buffers: whether replicas take the buffers of replica 0 before each training step.
        bucket_bytes: bytes of gradients that are summed over ranks at once.

    region: the model's blocks, from the first step on.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        loss_scale: Callable[[], float],
        marks: Callable[[nn.Module], bool | None],
        average: bool,
        buffers: bool,
        bucket_bytes: int,
    ) -> None:
        self.holding = holding
        self.plan: Plan | None = None
        self.region: Region | None = None
        self._grid, self._root = holding.grid, holding.root
        self._alarm = Alarm(holding.grid)
        self._attach, self._loss_scale, self._marks = attach, loss_scale, marks
        self._average, self._buffers, self._bucket_bytes = average, buffers, bucket_bytes
        self._steps = 0
        self._verified: set[str] = set()
        self._said: set[str] = set()

    def run(
        self,
        function: Callable[..., Any],
        microbatches: list[Microbatch],
        rows: Callable[[Microbatch], int | None] | None = None,
    ) -> Ran:
        """What `function` returned for each microbatch. Collective.

        Args:
            rows: tells how many rows a microbatch has, by which its loss counts.

        Raises:
            PipelineError: the ranks do not do the same, a block cannot be divided, or the step is not what the undivided
                model computes.
        """
        self._alarm.check()
        try:
            return self._run(function, microbatches, parts_of(microbatches, rows))
        except Exception as error:
            explained = self._alarm.explain(error)
            self._alarm.ring(explained, error)
            if explained is error:
                raise
            raise explained from error

    def _run(self, function: Callable[..., Any], microbatches: list[Microbatch], parts: list[float]) -> Ran:
        grid = self._grid
        group = grid.context
        if group is None:
            raise RuntimeError("there is no context group")
        region = self._begun(group)
        trained = bytes(parameter.requires_grad for parameter in self._root.parameters())
        same_everywhere(grid, trained, "which parameters are trained")
        mode = f"{name_of(function)} {self._root.training} {torch.is_grad_enabled()}"
        turns = exchange(group, microbatches, parts, mode, grid.device, same=True)
        if self._buffers and self._root.training and torch.is_grad_enabled():
            broadcast_buffers(self._root, grid)
        before = rng.get_state(grid.device), dice.get_state()
        step = Step(function, turns, self._loss_scale(), self._average)
        with region.installed():
            reference = self._reference(region, step, mode)
            watch = Watch() if reference is not None else None
            sketches = {}
            if reference is not None:
                sketches = {name: sketch(p.detach()) for name, p in self._root.named_parameters()}
            means = Means(grid, self.holding.parameters, self._bucket_bytes)
            try:
                with region.watched(watch):
                    results, after = self._microbatches(region, step, watch)
                if step.trains:
                    self._check_divided(region)
            except Exception:
                means.put_back()
                raise
            rng.set_state(after[0] if torch.equal(before[0], turns[0].random) else before[0], grid.device)
            dice.set_state(after[1] if dice.same(before[1], turns[0].rolled) else before[1])
            self._compare_ranks(group, region, step)
            if step.trains:
                means.finish()
            else:
                means.put_back()
            self._steps += step.trains
            if reference is not None and watch is not None:
                self._say(reference.compare(watch, results, sketches, self._steps))
        return Ran(results, turns[0].parts)

    def _begun(self, group: TensorGroup) -> Region:
        """The blocks; before the first step all ranks take the model of rank 0."""
        if self.region is None:
            check_values(self._root)
            self._root.to(self._grid.device)
            broadcast_state(self._root, self._grid)
            crossing = Crossing(group, self._grid.rank, self._grid.device)
            self.region = Region(self._root, crossing, self._marks, self._grid.settings.atomic)
            self.holding.settle()
        return self.region

    def _microbatches(
        self, region: Region, step: Step, watch: Watch | None
    ) -> tuple[list[Any], tuple[torch.Tensor, dice.State]]:
        """Forward and backward of all; their results, and the states of the generators after the last."""
        device, turn = self._grid.device, step.turns[0]
        results: list[Any] = []
        step.losses.clear()
        region.begin()
        region.running = True
        rng.set_state(turn.random, device)
        dice.set_state(turn.rolled)
        try:
            for part, (args, kwargs) in zip(turn.parts, turn.microbatches, strict=True):
                if watch is not None:
                    watch.begin(len(results))
                losses = Losses()
                self._attach(losses)
                try:
                    result = step.function(*args, **kwargs)
                finally:
                    self._attach(None)
                results.append(map_leaves(detached, result))
                del result
                scale = step.scale / (len(turn.microbatches) if step.average else 1)
                with region.recomputing():
                    step.losses.append(losses.run(scale * part if step.average else scale))
                region.forget()
        finally:
            region.running = False
            region.forget()
        return results, (rng.get_state(device), dice.get_state())

    def _check_divided(self, region: Region) -> None:
        """After the first training step.

        Raises:
            PipelineError: no block was divided, though a sequence was long enough.
        """
        if region.divided():
            self._say(region.line())
        elif reason := region.reasons():
            raise PipelineError(
                f"context_parallel_degree = {region.crossing.ranks} divides nothing: {reason}",
                hint="attention has to be that of torch (attn_implementation='sdpa' in transformers); or name the blocks: "
                "pipe.set_context_parallelism(block, True)",
            )
        else:
            self._say(
                f"sequences are too short to be divided: each rank needs 2 positions, and there are {self._grid.world}"
            )

    def _reference(self, region: Region, step: Step, mode: str) -> Reference | None:
        """What the step will be compared with; None if it is not verified."""
        if not self._is_due(mode):
            return None

        def run(watch: Watch) -> list[Any]:
            with region.watched(watch):
                return self._microbatches(region, step.copied(), watch)[0]

        traces = Traces(self._root, step.function, self._grid.device)
        reference = Reference(self._root, self._grid, traces, region.undivided, run, training=True)
        if reason := reference.stopped():
            self._say(f"this step is not verified: {reason}")
            return None
        return reference

    def _is_due(self, mode: str) -> bool:
        settings, fresh = self._grid.settings, mode not in self._verified
        self._verified.add(mode)
        if settings.verify_steps and self._steps % settings.verify_steps == 0:
            return True
        if settings.verify == "off" or not fresh:
            return False
        return settings.verify == "changes" or self._steps == 0

    def _compare_ranks(self, group: TensorGroup, region: Region, step: Step) -> None:
        """Ranks of a group have run the same.

        Raises:
            PipelineError: what came into their blocks or their losses differ: something that they read is not the same.
        """
        losses = [math.nan if one is None else float(one) for one in step.losses]
        found = objects(FINDINGS, (region.inputs, losses), group.ranks, group.group, self._grid.device)
        what = apart(group.ranks, [inputs for inputs, _ in found], [own for _, own in found], group.kind)
        if what:
            for parameter in self._root.parameters():
                parameter.grad = None
            refuse_apart(what, group.kind)

    def _say(self, line: str) -> None:
        if line and self._grid.rank == 0 and line not in self._said:
            print(line, flush=True)
        self._said.add(line)
