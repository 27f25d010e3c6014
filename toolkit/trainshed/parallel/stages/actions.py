"""Runs an order of forwards, backwards and messages on the stages of one rank.

torch's own runtime does so, too. Beside each action it opens a range of the profiler, writes a line of a log and looks for
FSDP, which takes a twentieth of a step with small stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import _batch_p2p, _ComputationType, _PipelineScheduleRuntime

from .stage import ReplayStage

_Key = tuple[_ComputationType, int, int]
_FORWARD, _SEND_FORWARD, _RECEIVE_FORWARD = _ComputationType.FORWARD, _ComputationType.SEND_F, _ComputationType.RECV_F
_WHOLE, _INPUT, _WEIGHT = (
    _ComputationType.FULL_BACKWARD,
    _ComputationType.BACKWARD_INPUT,
    _ComputationType.BACKWARD_WEIGHT,
)
_SEND_BACKWARD, _RECEIVE_BACKWARD = _ComputationType.SEND_B, _ComputationType.RECV_B


class ActionRuntime(_PipelineScheduleRuntime):
    """The schedule of `pipeline_order_with_comms`; forwards and their messages alone where there is no loss."""

    def _step_microbatches(
        self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None, *_others: Any, **_options: Any
    ) -> None:
        given = arg_mbs or [()] * self._n_microbatches
        self._initialize_stages(given[0], kwarg_mbs[0] if kwarg_mbs else {})
        stages: dict[int, Any] = {stage.stage_index: stage for stage in self._stages}
        coming: dict[_Key, list[dist.Work]] = {}
        sent: list[dist.Work] = []
        losses: dict[int, torch.Tensor] = {}
        for action in self.pipeline_order_with_comms[self.rank]:
            index, kind, number = action.stage_index, action.computation_type, action.microbatch_index
            if number is None:  # what is about FSDP
                continue
            stage: ReplayStage = stages[index]
            if kind is _FORWARD:
                if not stage.is_first and index - 1 not in stages:
                    _wait(coming.pop((_RECEIVE_FORWARD, index, number)))
                output = stage.forward_one_chunk(number, given[number])
                if stage.is_last:
                    losses[number] = output
                elif index + 1 in stages:
                    stages[index + 1].set_local_fwd_input(output, number)
            elif kind is _RECEIVE_FORWARD:
                coming[kind, index, number] = _batch_p2p(stage.get_fwd_recv_ops(number))
            elif kind is _SEND_FORWARD:
                sent += _batch_p2p(stage.get_fwd_send_ops(number))
            elif not self._has_backward:
                continue
            elif kind is _WHOLE or kind is _INPUT:
                if not stage.is_last and index + 1 not in stages:
                    _wait(coming.pop((_RECEIVE_BACKWARD, index, number)))
                stage.backward_one_chunk(number, losses.pop(number) if stage.is_last else None, kind is _WHOLE)
                if index - 1 in stages:
                    stages[index - 1].set_local_bwd_input(stage.get_local_bwd_output(number), number)
            elif kind is _WEIGHT:
                stage.backward_weight_one_chunk(number)
            elif kind is _RECEIVE_BACKWARD:
                coming[kind, index, number] = _batch_p2p(stage.get_bwd_recv_ops(number))
            elif kind is _SEND_BACKWARD:
                sent += _batch_p2p(stage.get_bwd_send_ops(number))
        _wait(sent)


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()
