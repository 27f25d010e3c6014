"""An error on one rank reaches the others as that error, at once, even if the script catches it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .table import begin, case, refused


class Fragile(nn.Module):
    """Fails for a value that only its own stage sees."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.abs().max() > 1e3):
            raise ValueError("a bad batch")
        return x


def squared(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


def fails(where: int, ranks: int) -> None:
    """The module at `where` fails in the second step; every rank hears of it."""
    lines = [nn.Linear(4, 4) for _ in range(4)]
    begin(partitions=2, microbatches=4)
    torch.manual_seed(3)
    model = pipe.PipelineModel(nn.Sequential(*lines[:where], Fragile(), *lines[where:]))
    model.set_partition(lines[1], 0)
    model.set_partition(lines[2], 1)
    step = pipe.step(squared)
    good = torch.ones(8, 4)
    step(model, good)
    bad = good.clone()
    bad[5] = 1e6 if pipe.dp_rank() == 0 else 1.0
    said = ""
    try:
        step(model, bad)
    except (ValueError, pipe.PipelineError) as error:
        said = str(error)
    assert "a bad batch" in said, said
    refused(lambda: step(model, good), "has stopped", "a bad batch")
    if ranks == 2:
        refused(model.state_dict, "has stopped")


@case(ranks=2)
def exception_on_the_first_stage_is_caught() -> None:
    fails(1, 2)


@case(ranks=2)
def exception_on_the_last_stage_is_caught() -> None:
    fails(4, 2)


@case(ranks=4)
def exception_on_one_replica_is_caught() -> None:
    fails(4, 4)


@case(ranks=2)
def what_all_ranks_refuse_stops_nothing() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    step = pipe.step(squared)
    step(model, torch.ones(4, 4))
    refused(lambda: step(model, torch.ones(3, 4)), "cannot be split")
    refused(lambda: step(model, torch.full((4, 4), float(pipe.rank()))), "another batch")
    step(model, torch.ones(4, 4))
