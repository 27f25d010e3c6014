"""What a step function may be besides a function: a partial, a method, an object that can be called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import trainshed.parallel as pipe

from .calls import Chain
from .surroundings import BLOCKS, alone
from .table import begin, case, refused, same
from .training import Alone, sgd

SCHEDULES: tuple[dict[str, Any], ...] = ({}, {"virtual_stages": 2, "pipeline": "interleaved1f1b"})
Maker = Callable[[Any], Callable[[torch.Tensor], Any]]  # of a model: what is called with a batch


def scaled(model: Any, scale: float, x: torch.Tensor, power: int = 2) -> torch.Tensor:
    loss = model(x).abs().pow(power).mean() * scale
    model.backward(loss)
    return loss


class Trainer:
    """Counts what it was called for, and decides by that."""

    def __init__(self, model: Any) -> None:
        self.model, self.seen, self.scale, self.history = model, 0, 1.0, [1.0]

    def train_step(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.scale *= 0.9
        loss = self.model(x * self.scale).square().mean() * (1 + 0.1 * (self.seen % 3)) * self.history[-1]
        self.history.append(0.5 + 0.1 * len(self.history))
        self.model.backward(loss)
        return loss

    __call__ = train_step


class Slotted:
    __slots__ = ("model",)

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(self.model, 0.5, x)


def trains(make: Maker, steps: int = 4) -> None:
    """As in one process, where the same is called for each microbatch."""
    for schedule in SCHEDULES:
        begin(partitions=2, microbatches=4, atomic=BLOCKS, **schedule)
        torch.manual_seed(3)
        whole = Chain()
        update, step = sgd(whole.parameters()), make(Alone(whole, 1 / 4))
        losses = []
        for number in range(steps):
            update.zero_grad()
            losses.append(torch.stack([step(part).detach() for part in alone(number, 0)[0].chunk(4)]))
            update.step()
        torch.manual_seed(3)
        model = pipe.PipelineModel(Chain())
        update, step = pipe.PipelineOptimizer(sgd(model.parameters())), pipe.step(make(model))
        for number in range(steps):
            update.zero_grad()
            found = torch.stack(step(*alone(number, 0)).outputs)
            same({"losses": found}, {"losses": losses[number]})
            update.step()
        same(model.state_dict(), whole.state_dict())
        pipe.shutdown()


@case(ranks=2)
def a_partial_is_a_step() -> None:
    trains(lambda model: functools.partial(scaled, model, 0.5))
    trains(lambda model: functools.partial(functools.partial(scaled, power=3), model, 0.5))


@case(ranks=2)
def an_object_is_a_step() -> None:
    trains(Slotted)
    trains(Trainer)


@case(ranks=2)
def a_method_is_a_step() -> None:
    trains(lambda model: Trainer(model).train_step)


@case(ranks=2)
def a_partial_of_a_method_is_a_step() -> None:
    trains(lambda model: functools.partial(Trainer.train_step, Trainer(model)))


@case(ranks=2)
def a_step_is_decorated_in_its_class() -> None:
    class Decorated(Trainer):
        train_step = pipe.step(Trainer.train_step)

    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    torch.manual_seed(3)
    whole = Chain()
    update, trainer = sgd(whole.parameters()), Trainer(Alone(whole, 1 / 4))
    torch.manual_seed(3)
    model = pipe.PipelineModel(Chain())
    pipelined, decorated = pipe.PipelineOptimizer(sgd(model.parameters())), Decorated(model)
    for number in range(3):
        for one in (update, pipelined):
            one.zero_grad()
        losses = [trainer.train_step(part).detach() for part in alone(number, 0)[0].chunk(4)]
        same({"losses": torch.stack(decorated.train_step(*alone(number, 0)).outputs)}, {"losses": torch.stack(losses)})
        update.step()
        pipelined.step()
    same(model.state_dict(), whole.state_dict())


@case(ranks=2)
def a_variable_behind_a_partial_is_seen() -> None:
    depth = [4]

    def train(number: int, model: Any, x: torch.Tensor) -> torch.Tensor:
        for block in model.module.blocks[: depth[0]]:
            x = x + block(x).tanh() * number
        loss = x.square().mean()
        model.backward(loss)
        return loss

    begin(partitions=2, microbatches=2, atomic=BLOCKS)
    whole = Chain()
    model = pipe.PipelineModel(Chain())
    model.load_state_dict(whole.state_dict())
    step = pipe.step(functools.partial(train, 1))
    for length in (4, 3, 4):
        depth[0] = length
        x = alone(0, 0)[0]
        expected = torch.stack([train(1, Alone(whole, 1.0), part).detach() for part in x.chunk(2)])
        same({"losses": torch.stack(step(model, x).outputs)}, {"losses": expected})


@case(ranks=2)
def rows_that_do_not_fit_are_refused_by_name() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    model = pipe.PipelineModel(Chain())
    step = pipe.step(functools.partial(lambda one, model, x, y: model(x), 1))
    refused(lambda: step(model, torch.ones(8, 4), torch.ones(2)), "<lambda>(y)", "2 rows")
