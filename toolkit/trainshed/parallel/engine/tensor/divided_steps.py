"""Steps of a model without stages whose modules are divided among the ranks of a tensor group, which has replicas.

The first step runs the undivided model, to see who reads which parameter, and to compare; then it divides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ...errors import PipelineError
from ...plan.plan_file import Plan
from ...record.at_hand import name_of
from ...record.subject import Backward
from ...replay import dice, rng
from ...shards import whole
from ...tree import map_leaves
from ..alarm import Alarm
from ..batch import Microbatch, Ran, parts_of
from ..checking import same_everywhere
from ..holding import Holding
from ..meeting import FINDINGS, UNDIVIDED, objects
from ..placement import broadcast_buffers, broadcast_state
from ..suitable import check_values
from ..verify.sketch import sketch
from ..verify.traces import Traces
from ..verify.unit_outputs import Watch
from .division import Division, apart, in_words, refuse_apart, tensor_mesh
from .means import Means
from .one_round import Losses, Step, detached
from .reference import Reference
from .turns import exchange


class TensorEngine:
    """Takes the place of `steps.Engine`.

    Args:
        holding: of the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        loss_scale: gives the factor of the loss.
        on_parts: takes `id` -> name of the parameters before, and name -> parameter after the model was divided.
        wanted: tells whether the script wants a module divided.
        average: whether to divide each microbatch's loss by their number.
        buffers: whether replicas take the buffers of replica 0 before each training step.
        bucket_bytes: bytes of gradients that are summed over replicas at once.

    division: the modules that are divided, from the first step on.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        loss_scale: Callable[[], float],
        on_parts: Callable[[Mapping[int, str], Mapping[str, nn.Parameter]], None],
        wanted: Callable[[nn.Module], bool],
        average: bool,
        buffers: bool,
        bucket_bytes: int,
    ) -> None:
        self.holding = holding
        self.plan: Plan | None = None
        self.division: Division | None = None
        self._grid, self._root = holding.grid, holding.root
        self._alarm = Alarm(holding.grid)
        self._attach, self._loss_scale, self._on_parts, self._wanted = attach, loss_scale, on_parts, wanted
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
        """What `function` returned for each microbatch of this rank. Collective.

        Args:
            rows: tells how many rows a microbatch has, by which its loss counts.

        Raises:
            PipelineError: the ranks do not do the same, or the step is not what the undivided model computes.
        """
        self._alarm.check()
        try:
            return self._run(function, microbatches, parts_of(microbatches, rows))
        except Exception as error:
            explained = in_words(error) or self._alarm.explain(error)
            self._alarm.ring(explained, error)
            if explained is error:
                raise
            raise explained from error

    def _run(self, function: Callable[..., Any], microbatches: list[Microbatch], parts: list[float]) -> Ran:
        grid, settings = self._grid, self._grid.settings
        group = grid.tensor
        if group is None:
            raise RuntimeError("there is no tensor group")
        if self.division is None:
            self._begin()
        trained = bytes(parameter.requires_grad for parameter in self._root.parameters())
        same_everywhere(grid, trained, "which parameters are trained")
        mode = f"{name_of(function)} {self._root.training} {torch.is_grad_enabled()}"
        turns = exchange(group, microbatches, parts, mode, grid.device, same=settings.prescaled_batch)
        mine = 0 if len(turns) == 1 else group.ranks.index(grid.rank)
        if self._buffers and self._root.training and torch.is_grad_enabled():
            broadcast_buffers(self._root, grid)
        before = rng.get_state(grid.device), dice.get_state()
        step = Step(function, turns, (1 / len(turns)) * self._loss_scale(), self._average)
        reference = self._reference(step, mode)
        if not self.holding.partitioned:
            self._divide()
        division = self.division
        if division is None:
            raise RuntimeError("the model is not divided")
        watch = Watch() if reference is not None else None
        sketches = {}
        if reference is not None:
            sketches = {name: sketch(whole(p.detach())) for name, p in self._root.named_parameters()}
        means = Means(grid, self.holding.parameters, self._bucket_bytes)
        try:
            with division.watched(watch):
                results, after = self._turns(step, watch, mine)
        except Exception:
            means.put_back()
            raise
        rng.set_state(after[0] if torch.equal(before[0], turns[mine].random) else before[0], grid.device)
        dice.set_state(after[1] if dice.same(before[1], turns[mine].rolled) else before[1])
        self._compare_ranks(step, division)
        if step.trains:
            means.finish()
        else:
            means.put_back()
        self._steps += step.trains
        if reference is not None and watch is not None:
            self._say(reference.compare(watch, results, sketches, self._steps))
        counts = [len(turn.microbatches) for turn in turns]
        first = sum(counts[:mine])
        return Ran(results[first : first + counts[mine]], turns[mine].parts)

    def _turns(self, step: Step, watch: Watch | None, mine: int) -> tuple[list[Any], tuple[torch.Tensor, dice.State]]:
        """Forward and backward of all microbatches; their results, and the states of the generators after turn `mine`."""
        device, division = self._grid.device, self.division
        if division is None:
            raise RuntimeError("the model is not divided")
        results: list[Any] = []
        after = (step.turns[mine].random, step.turns[mine].rolled)
        step.losses.clear()
        division.inputs.clear()
        division.running = True
        try:
            for number, turn in enumerate(step.turns):
                rng.set_state(turn.random, device)
                dice.set_state(turn.rolled)
                for part, (args, kwargs) in zip(turn.parts, turn.microbatches, strict=True):
                    if watch is not None:
                        watch.begin(len(results))
                    losses = Losses()
                    self._attach(losses)
                    try:
                        result = step.function(*args, **kwargs)
                    finally:
                        self._attach(None)
                        division.entrance.forget()
                    results.append(map_leaves(detached, result))
                    del result
                    scale = step.scale / (len(turn.microbatches) if step.average else 1)
                    step.losses.append(losses.run(scale * part if step.average else scale))
                if number == mine:
                    after = rng.get_state(device), dice.get_state()
        finally:
            division.running = False
            division.entrance.forget()
        return results, after

    def _begin(self) -> None:
        """The undivided model of rank 0, on all ranks."""
        check_values(self._root)
        self._root.to(self._grid.device)
        broadcast_state(self._root, self._grid)
        group = self._grid.tensor
        if group is None:
            raise RuntimeError("there is no tensor group")
        mesh = tensor_mesh(group.group, self._grid.device)
        self.division = Division(self._root, mesh, self._wanted, self._grid.settings.atomic)

    def _divide(self) -> None:
        division, names = self.division, self.holding.names
        if division is None:
            raise RuntimeError("there is nothing to divide")
        division.divide(self._reasons)
        self._on_parts(names, dict(self._root.named_parameters()))
        self._say(division.line())
        self.holding.settle()

    def _reasons(self, mine: dict[str, str]) -> dict[str, str]:
        """Why modules stay whole, for the first rank that finds it: all ranks divide the same. Collective."""
        grid = self._grid
        found = objects(UNDIVIDED, mine, range(grid.world), grid.control_group, torch.device("cpu"))
        return {name: reason for reasons in reversed(found) for name, reason in reasons.items()}

    def _reference(self, step: Step, mode: str) -> Reference | None:
        """What the step will be compared with; None if it is not verified. An undivided model runs in any case."""
        division, first = self.division, not self.holding.partitioned
        if division is None:
            raise RuntimeError("the model is not divided")
        due = self._is_due(mode)
        if not (due or first):
            return None
        seen = first

        def run(watch: Watch) -> list[Any]:
            nonlocal seen
            uses, seen = seen, False
            with division.watched(watch, uses=uses):
                return self._turns(step.copied(), watch, 0)[0]

        traces = Traces(self._root, step.function, self._grid.device)
        undivided = nullcontext if first else division.whole
        reference = Reference(self._root, self._grid, traces, undivided, run, training=True)
        if reason := reference.stopped():
            if first:
                raise PipelineError(
                    f"the step did not run before the model was divided, from which it is seen what can be: {reason}",
                    hint="the whole model has to run once on each rank",
                ) from reference.failure
            self._say(f"this step is not verified: {reason}")
            return None
        return reference if due else None

    def _is_due(self, mode: str) -> bool:
        settings, fresh = self._grid.settings, mode not in self._verified
        self._verified.add(mode)
        if settings.verify_steps and self._steps % settings.verify_steps == 0:
            return True
        if settings.verify == "off" or not fresh:
            return False
        return settings.verify == "changes" or self._steps == 0

    def _compare_ranks(self, step: Step, division: Division) -> None:
        """Ranks of a group have run the same batches.

        Raises:
            PipelineError: their modules had other inputs, or they found other losses: something that they read is not the
                same.
        """
        group = self._grid.tensor
        if group is None:
            raise RuntimeError("there is no tensor group")
        losses = [math.nan if one is None else float(one) for one in step.losses]
        found = objects(FINDINGS, (division.inputs, losses), group.ranks, group.group, self._grid.device)
        if what := apart(group.ranks, [inputs for inputs, _ in found], [own for _, own in found]):
            for parameter in self._root.parameters():
                parameter.grad = None
            refuse_apart(what)

    def _say(self, line: str) -> None:
        if line and self._grid.rank == 0 and line not in self._said:
            print(line, flush=True)
        self._said.add(line)
