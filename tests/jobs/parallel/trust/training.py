"""Trains a small model in a pipeline and in one process, and compares the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .table import begin, same

State = dict[str, torch.Tensor]
Step = Callable[..., Any]


def squared(model: Any, *inputs: torch.Tensor) -> torch.Tensor:
    loss = model(*inputs).square().mean()
    model.backward(loss)
    return loss


def language(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The loss of one of transformers' language models, each token told by those before it."""
    loss: torch.Tensor = model(input_ids=x, labels=x).loss
    model.backward(loss)
    return loss


class Alone(nn.Module):
    """The same step functions in one process."""

    def __init__(self, module: nn.Module, scale: float) -> None:
        super().__init__()
        self.module, self.scale = module, scale

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.scale).backward()


Batches = Callable[[int, int], tuple[torch.Tensor, ...]]  # (step, replica) -> inputs
Between = Callable[[int, nn.Module], Any]  # (step, the user's model): before each step


def nothing(_step: int, _model: nn.Module) -> None:
    """Does nothing."""


def one_process(
    build: Callable[[], nn.Module],
    batches: Batches,
    replicas: int,
    parts: int,
    steps: int,
    between: Between,
    optimizer: Any,
    step: Step = squared,
) -> State:
    """The state after training on the batches of all replicas."""
    torch.manual_seed(3)
    module = build()
    model, update = Alone(module, 1 / parts / replicas), optimizer(module.parameters())
    for number in range(steps):
        between(number, module)
        update.zero_grad()
        for replica in range(replicas):
            for part in zip(*[value.chunk(parts) for value in batches(number, replica)], strict=True):
                step(model, *part)
        update.step()
    return {name: value.clone() for name, value in module.state_dict().items()}


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def slow_sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """For losses with which differences of rounding grow from step to step."""
    return torch.optim.SGD(parameters, lr=0.05)


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


def check(
    build: Callable[[], nn.Module],
    batches: Batches,
    *,
    step: Step = squared,
    parts: int = 2,
    steps: int = 3,
    between: Between = nothing,
    optimizer: Any = sgd,
    tolerance: float = 1e-5,
    pins: Mapping[str, int] | None = None,
    **settings: Any,
) -> pipe.PipelineModel:
    """Replicas train as one process does with the batches of all.

    Args:
        pins: module -> the stage that it is put on.
    """
    begin(microbatches=parts, **settings)
    replica, replicas = pipe.dp_rank(), pipe.dp_size()
    if settings.get("prescaled_batch"):
        replica, replicas = pipe.rdp_rank(), pipe.rdp_size()
    expected = one_process(build, batches, replicas, parts, steps, between, optimizer, step)
    torch.manual_seed(3)
    module = build()
    model = pipe.PipelineModel(module)
    for name, stage in (pins or {}).items():
        model.set_partition(module.get_submodule(name), stage)
    update = pipe.PipelineOptimizer(optimizer(model.parameters()))
    train = pipe.step(step)
    for number in range(steps):
        between(number, module)
        update.zero_grad()
        train(model, *batches(number, replica))
        update.step()
    same(model.state_dict(), expected, tolerance)
    return model
