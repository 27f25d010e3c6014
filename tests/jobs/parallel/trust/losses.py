"""What a step function does with its losses: leaves some out, or computes gradients itself; checkpoints, gradient hooks."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

import trainshed.parallel as pipe

from .forms import SCHEDULES, Chain
from .surroundings import BLOCKS, alone, rows
from .table import begin, case, refused
from .training import check


def only_finite(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    if torch.isfinite(loss):
        model.backward(loss)
    return loss


class Squashed(Chain):
    """Infinite inputs become infinite values in the blocks, whose gradients would be not-a-number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def with_bad(bad: dict[int, list[int]]) -> Any:
    """Step -> microbatches of four that hold an infinite number."""

    def batches(number: int, replica: int) -> tuple[torch.Tensor, ...]:
        x = rows(number, replica)[0].clone()
        for part in bad.get(number, []) if replica == 0 else []:
            x[2 * part, 1] = torch.inf
        return (x,)

    return batches


@case(ranks=2)
def a_bad_microbatch_is_left_out() -> None:
    for bad in ({1: [0], 2: [3]}, {0: [0, 2], 3: [1]}):
        for options in SCHEDULES:
            build = lambda: Squashed(lambda: nn.Linear(4, 4))  # noqa: E731
            check(build, with_bad(bad), step=only_finite, parts=4, steps=4, partitions=2, atomic=BLOCKS, **options)
            pipe.shutdown()


@case(ranks=4)
def a_bad_microbatch_of_one_replica_is_left_out() -> None:
    build = lambda: Squashed(lambda: nn.Linear(4, 4))  # noqa: E731
    check(build, with_bad({0: [1], 2: [0, 3]}), step=only_finite, parts=4, partitions=2, atomic=BLOCKS)


@case(ranks=4)
def a_bad_microbatch_is_left_out_with_four_stages() -> None:
    build = lambda: Squashed(lambda: nn.Linear(4, 4))  # noqa: E731
    check(build, with_bad({0: [1], 2: [0, 3]}), step=only_finite, parts=4, partitions=4, atomic=BLOCKS)


class Checkpointed(Chain):
    """As older models do it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
        return self.last(x)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.drop = nn.Linear(4, 4), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.line(x)).tanh()


@case(ranks=2)
def reentrant_checkpoints_around_blocks() -> None:
    """The first block has an input without gradient: as in one process it is not trained."""
    for options in SCHEDULES:
        check(lambda: Checkpointed(Wide), alone, parts=4, partitions=2, atomic=BLOCKS, **options)
        pipe.shutdown()


@case(ranks=4)
def reentrant_checkpoints_with_four_stages() -> None:
    check(lambda: Checkpointed(Wide), alone, parts=4, partitions=4, atomic=BLOCKS)


class Tied(Chain):
    """The first block's weight is the last module's, and a hook bounds its gradient."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(4, 4))
        self.last.weight = self.blocks[0].weight
        self.last.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))


@case(ranks=2)
def a_hook_on_a_tied_parameter_is_refused() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    model = pipe.PipelineModel(Tied())
    model.set_partition(model.module.blocks[0], 0)
    model.set_partition(model.module.last, 1)
    step = pipe.step(only_finite)
    refused(lambda: step(model, *rows(0, 0)), "blocks.0.weight", "hook", "one stage")


@case(ranks=2)
def a_hook_that_comes_later_on_a_tied_parameter_is_refused() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    module = Chain(lambda: nn.Linear(4, 4))
    module.last.weight = module.blocks[0].weight
    model = pipe.PipelineModel(module)
    model.set_partition(module.blocks[0], 0)
    model.set_partition(module.last, 1)
    step = pipe.step(only_finite)
    step(model, *rows(0, 0))
    module.last.weight.register_hook(lambda gradient: gradient * 2)
    refused(lambda: step(model, *rows(1, 0)), "blocks.0.weight", "hook")


def penalised(model: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    out = model(x).square().mean()
    (slope,) = torch.autograd.grad(out, x, create_graph=True)
    model.backward(out + slope.square().sum())
    return out


@case(ranks=2)
def a_gradient_penalty_is_refused() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    model = pipe.PipelineModel(Chain(lambda: nn.Linear(4, 4)))
    step = pipe.step(penalised)
    refused(lambda: step(model, *rows(0, 0)), "torch.autograd.grad", "one module", "`atomic`")
