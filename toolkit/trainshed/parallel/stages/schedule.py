"""Builds torch's schedule for a list of stages, and a plain loop where there is only one."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from trainshed.contract.wire.pipeline import V_SHAPED

from ..engine.batch import runs_evenly
from ..engine.zero_bubble import Inseparable
from ..ground.errors import PipelineError
from ..ground.schedule_work import seat_of
from ..plan.simulate import order
from .actions import ActionRuntime, with_messages
from .stage import ReplayStage, StageModule


class Schedule(Protocol):
    """Runs all microbatches of a step through this rank's stages."""

    def run(self) -> None:
        """One step."""

    def inseparable(self) -> dict[int, Inseparable]:
        """Stage -> why it does not split its backward, where the schedule asks for that."""

    def skipped(self) -> bool:
        """Returns whether a microbatch of the last step was left out of the backward."""


class TorchSchedule:
    """One of torch.distributed.pipelining's schedules; gradients are scaled by us, never by `scale_grads`."""

    def __init__(
        self, modules: list[StageModule], stages: int, microbatches: int, kind: str, training: bool, group: dist.ProcessGroup
    ) -> None:
        self._stages = built = [ReplayStage(module, stages, group) for module in modules]
        loss = _first if training else None
        self._microbatches, self._training = microbatches, training
        self._first, self._last = any(s.is_first for s in built), any(s.is_last for s in built)
        self._schedule: Any
        if kind in _INTERLEAVED:
            if not runs_evenly(kind, stages // len(built), microbatches):
                raise PipelineError(
                    f"{kind} cannot run {microbatches} microbatches in rounds of equal size",
                    hint="use a multiple of the number of pipeline ranks",
                )
            self._schedule = _INTERLEAVED[kind](built, microbatches, loss_fn=loss, scale_grads=False)
        elif kind in V_SHAPED:
            self._schedule = _Ordered(built, kind, microbatches, loss)
        else:  # with fewer microbatches than stages 1F1B and GPipe are the same
            made = Schedule1F1B if kind == "1f1b" and training and microbatches >= stages else ScheduleGPipe
            self._schedule = made(built[0], microbatches, loss_fn=loss, scale_grads=False)

    def run(self) -> None:
        """One step: every stage learns the numbers of the microbatches, and takes their data from the step itself."""
        numbers = torch.arange(self._microbatches)
        given = (numbers,) if self._first else ()
        target = numbers if self._last else None
        if self._training:
            self._schedule.step(*given, target=target, return_outputs=False)
        else:
            self._schedule.eval(*given, target=target, return_outputs=False)

    def inseparable(self) -> dict[int, Inseparable]:
        """As found in the steps so far."""
        return {stage.stage_index: stage.inseparable for stage in self._stages if stage.inseparable is not None}

    def skipped(self) -> bool:
        """On one of this rank's stages."""
        return any(stage.module.skipped for stage in self._stages)


class _Interleaved(ActionRuntime, ScheduleInterleaved1F1B):
    """torch's order."""


class _ZeroBubble(ActionRuntime, ScheduleInterleavedZeroBubble):
    """torch's order."""


_INTERLEAVED: dict[str, Any] = {"interleaved1f1b": _Interleaved, "interleavedzerobubble": _ZeroBubble}


class _Ordered(ActionRuntime):
    """An order of ours, with torch's messages; forwards alone where there is no `loss`."""

    def __init__(self, built: list[ReplayStage], kind: str, microbatches: int, loss: Any) -> None:
        super().__init__(built, microbatches, loss_fn=loss, scale_grads=False)
        stages, virtual = built[0].num_stages, len(built)
        ranks = stages // virtual
        seats = {stage: seat_of(stage, ranks, kind) for stage in range(stages)}
        self.stage_index_to_group_rank = seats
        for stage in built:
            stage.stage_index_to_group_rank = seats
        every = order(kind, ranks, virtual, microbatches)
        orders = [[one for one in mine if loss is not None or one.kind == "forward"] for mine in every]
        self.work = with_messages(orders, list(seats.values()))[self.rank]


class Loop:
    """One stage: forward and backward of each microbatch in turn."""

    def __init__(self, module: StageModule, microbatches: int, training: bool) -> None:
        self._module, self._microbatches, self._training = module, microbatches, training

    def run(self) -> None:
        """One step."""
        self._module.skipped.clear()
        for number in range(self._microbatches):
            self._module.take(number)
            loss = self._module()
            if self._training and number not in self._module.skipped:
                with self._module.turning_back(number):
                    loss.backward()

    def inseparable(self) -> dict[int, Inseparable]:
        """Nothing is split here."""
        return {}

    def skipped(self) -> bool:
        """As the last stage says."""
        return bool(self._module.skipped)


def _first(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    return output
