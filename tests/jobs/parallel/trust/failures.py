"""An error on one rank reaches the others as that error, at once, even if the script catches it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .table import begin, case, refused

SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"virtual_stages": 2, "pipeline": "interleaved1f1b"},
    {"virtual_stages": 2, "pipeline": "interleavedzerobubble"},
)


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


class Sour(torch.autograd.Function):
    """Fails in the backward of values that are too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if bool(ctx.saved_tensors[0].abs().max() > 1e3):
            raise ValueError("a bad batch")
        return gradient


class Refluent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sour.apply(x)


def is_heard(kind: type[nn.Module], where: int, **settings: Any) -> None:
    """A rank of four fails in the second step; the others do not wait for it until their time is over."""
    begin(partitions=4, microbatches=4, atomic=[str(number) for number in range(8)], **settings)
    torch.manual_seed(3)
    model = pipe.PipelineModel(nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), kind()) for _ in range(8)]))
    step, good = pipe.step(squared), torch.ones(8, 4)
    step(model, good)
    with torch.no_grad():
        model.module[where][0].bias.fill_(1e6)
    try:
        step(model, good)
    except (ValueError, pipe.PipelineError) as error:
        assert "a bad batch" in str(error), error
        assert "imed out" not in str(getattr(error, "details", "")), error
    else:
        raise AssertionError("the step did not fail")
    refused(lambda: step(model, good), "has stopped", "a bad batch")
    pipe.shutdown()


@case(ranks=4)
def exceptions_are_heard_in_every_schedule() -> None:
    for schedule in SCHEDULES:
        for where in (0, 3):
            is_heard(Fragile, where, **schedule)
        is_heard(Refluent, 3, **schedule)


@case(ranks=2)
def what_all_ranks_refuse_stops_nothing() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    step = pipe.step(squared)
    step(model, torch.ones(4, 4))
    refused(lambda: step(model, {"x": torch.ones(4, 4), "y": torch.ones(1)}), "cannot be split")
    refused(lambda: step(model, torch.full((4, 4), float(pipe.rank()))), "another batch")
    step(model, torch.ones(4, 4))
