"""Activations that are kept on the CPU between forward and backward."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.engine.offload import Offload
from trainshed.parallel.engine.remote_parameters import AbsentParameter
from trainshed.parallel.ground.shards import local
from trainshed.parallel.stages import preparing

from .table import begin, case, refused, same
from .training import adam, squared


class Block(nn.Module):
    """Saves its input, masks of dropout, its weight, and what a checkpoint keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + checkpoint(self.norm, x, use_reentrant=False)
        return x + self.drop(self.line(x).tanh())


def trained(**settings: Any) -> dict[str, torch.Tensor]:
    pipe.shutdown()
    begin(microbatches=4, **settings)
    torch.manual_seed(3)
    model = pipe.PipelineModel(nn.Sequential(*[Block() for _ in range(4)]))
    update, run = pipe.PipelineOptimizer(adam(model.parameters())), pipe.step(squared)
    for number in range(3):
        torch.manual_seed(number)
        update.zero_grad()
        run(model, torch.randn(8, 4))
        update.step()
    return model.state_dict()


class Counting(Offload):
    """Any tensor goes, also from the CPU."""

    went = came = 0

    def __init__(self, root: nn.Module, grid: Any) -> None:
        super().__init__(root, grid.device, smallest=1, everything=grid.settings.offload_activations == "all")

    def _put(self, tensor: torch.Tensor) -> Any:
        kept = super()._put(tensor)
        if kept is not tensor:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                every = [local(one) for one in self._root.parameters() if not isinstance(one, AbsentParameter)]
                assert tensor.untyped_storage().data_ptr() not in {one.untyped_storage().data_ptr() for one in every}
        Counting.went += kept is not tensor
        return kept

    def _back(self, kept: Any) -> torch.Tensor:
        found = super()._back(kept)
        Counting.came += found is not kept
        return found


@case(ranks=2)
def what_comes_back_is_what_went() -> None:
    schedules: tuple[dict[str, Any], ...] = (
        {"partitions": 2},
        {"partitions": 2, "pipeline": "interleavedzerobubble", "virtual_stages": 2},
        {"partitions": 1},
    )
    for settings in schedules:
        expected = trained(**settings)
        Counting.went = Counting.came = 0
        with patch.object(preparing, "offload_for", Counting):
            same(trained(offload_activations=True, **settings), expected, 0.0)
        assert Counting.went >= 12 and Counting.came >= 12, (Counting.went, Counting.came)  # not all are asked for


@case(ranks=4)
def what_comes_back_to_divided_stages_is_what_went() -> None:
    parts = {"partitions": 2, "tensor_parallel_degree": 2, "prescaled_batch": True}
    for settings in (parts, {**parts, "pipeline": "interleavedzerobubble", "virtual_stages": 2}):
        expected = trained(**settings)
        Counting.went = Counting.came = 0
        with patch.object(preparing, "offload_for", Counting):
            same(trained(offload_activations=True, **settings), expected, 0.0)
        assert Counting.went >= 12 and Counting.came >= 12, (Counting.went, Counting.came)


@case(ranks=2)
def on_a_cpu_it_changes_nothing_and_says_so() -> None:
    said = io.StringIO()
    with redirect_stdout(said):
        trained(partitions=2, sm_activation_offloading=True, activation_loading_horizon=4)
    assert ("in the CPU's memory already" in said.getvalue()) == (pipe.rank() == 0), said.getvalue()


@case(ranks=2)
def engines_without_stages_refuse_it() -> None:
    for name in ("tensor_parallel_degree", "sharded_data_parallel_degree", "context_parallel_degree"):
        settings = {name: 2, "offload_activations": True}
        refused(
            lambda settings=settings: begin(**settings), "offload_activations", name, "needs stages", kind=pipe.NotServed
        )
