"""Whole tensors that a script takes together with divided ones between steps: averages, teachers, noise, states by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import trainshed.parallel as pipe

from .reads import SHARDED, TENSOR, OneByOne, gradients, net, rows, stepped, trained
from .table import begin, case, refused, same
from .training import Alone, sgd, squared

IN_PARTS = (TENSOR, SHARDED)
Move = Callable[[Any, nn.Module], Any]


def follows(make: Callable[[nn.Module], nn.Module], move: Move, **settings: Any) -> None:
    """A copy that a script moves after each step goes where it goes in one process."""
    begin(microbatches=2, **settings)
    replicas = pipe.dp_size()
    torch.manual_seed(3)
    module = net(9)
    alone, model = copy.deepcopy(module), pipe.PipelineModel(module)
    expected, found = make(alone), make(module)
    one, own = Alone(alone, 0.5 / replicas), sgd(alone.parameters())
    update, step = pipe.PipelineOptimizer(sgd(model.parameters())), pipe.step(squared)
    for number in range(3):
        own.zero_grad(), update.zero_grad()
        for part in [part for replica in range(replicas) for part in rows(number, replica, 9).chunk(2)]:
            squared(one, part)
        step(model, rows(number, pipe.dp_rank(), 9))
        own.step(), update.step()
        move(expected, alone), move(found, module)
    same(found.state_dict(), expected.state_dict())
    pipe.shutdown()


def averaged(module: nn.Module) -> nn.Module:
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def teacher(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def moved(copied: nn.Module, module: nn.Module) -> None:
    for mine, its in zip(copied.parameters(), module.parameters(), strict=True):
        mine.mul_(0.9).add_(its, alpha=0.1)


@case(ranks=2)
def averages_and_teachers_go_with_the_model() -> None:
    for way in IN_PARTS:
        follows(AveragedModel, lambda average, module: average.update_parameters(module), **way)
        follows(averaged, lambda average, module: average.update_parameters(module), **way)
        follows(teacher, moved, **way)


def noisy(model: nn.Module) -> list[float]:
    drawn = torch.Generator().manual_seed(7)
    for one in gradients(model):
        one.add_(torch.randn(one.shape, generator=drawn), alpha=0.01)
    return []


def cut(model: nn.Module) -> list[float]:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    return []


class Factored(OneByOne):
    """Second moments by row and column, whole on each rank."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, lr)

    def _update(self, one: Any, lr: float) -> None:
        squares, state = one.grad.square() + 1e-12, self.state[one]
        for key, axis in (("rows", -1), ("columns", 0)):
            sizes = list(one.shape)
            sizes[axis] = 1
            state.setdefault(key, torch.zeros(sizes)).mul_(0.9).add_(squares.mean(axis, keepdim=True), alpha=0.1)
        one.add_(one.grad * (state["rows"] * state["columns"] / state["rows"].mean()).rsqrt(), alpha=-lr)


class Back(torch.optim.SGD):
    """Every second step goes back half of the way to copies that were made before the first one."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.5)
        self.slow = [one.detach().clone() for one in self.param_groups[0]["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.count += 1
        for one, slow in zip(self.param_groups[0]["params"], self.slow, strict=False) if self.count % 2 == 0 else ():
            slow.add_(one - slow, alpha=0.5)
            one.copy_(slow)


@case(ranks=2)
def noise_and_states_that_are_whole() -> None:
    for way in IN_PARTS:
        for read in (noisy, cut):
            trained(read, **way)
        for optimizer in (Factored, Back, partial(torch.optim.Adafactor, lr=0.01)):
            trained(None, optimizer, **way)


@case(ranks=2)
def what_does_not_go_together_is_refused_in_words() -> None:
    for way in IN_PARTS:
        model, first = stepped(**way)
        row = torch.ones(first.shape[1])
        refused(lambda first=first, row=row: first.detach() * row, "divided among ranks", "full_tensor()")
        refused(lambda model=model: copy.deepcopy(model.module), "among ranks and cannot be copied")
        pipe.shutdown()
