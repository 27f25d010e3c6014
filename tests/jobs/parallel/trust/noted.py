"""What Python code notes outside of tensors: iterators, closures, classes, variables, objects that several modules hold."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .surroundings import BLOCKS, alone, rows
from .table import begin, case, refused
from .training import check, squared

V2 = {"virtual_stages": 2, "pipeline": "interleaved1f1b"}
_STATE: dict[str, Any] = {}


def everywhere(build: Callable[[], nn.Module], **options: Any) -> None:
    for schedule in ({}, V2, {"pipeline": "interleavedzerobubble"}):
        check(build, alone, parts=4, partitions=2, atomic=BLOCKS, **schedule, **options)
        pipe.shutdown()


class Chain(nn.Module):
    """Four blocks with something of the model's own before, between and after them."""

    def __init__(self, block: Callable[[], nn.Module] = lambda: nn.Linear(4, 4)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))

    def before(self) -> float:
        return 1.0

    def between(self) -> float:
        return 0.0

    def after(self) -> float:
        return 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.before()
        for block in self.blocks:
            x = x + block(x).tanh() + self.between()
        return x * self.after()


def warming() -> Iterator[float]:
    gain = 0.5
    while True:
        yield gain
        gain *= 1.1


class Iterating(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.gains, self.warm = itertools.cycle([1.0, 0.5, 2.0, 0.25, 3.0]), warming()
        self.listed = iter([0.1 * number for number in range(1000)])

    def before(self) -> float:
        return next(self.warm)

    def between(self) -> float:
        return next(self.listed)

    def after(self) -> float:
        return next(self.gains)


@case(ranks=2)
def iterators_of_the_model() -> None:
    everywhere(Iterating)


def counting() -> Callable[[], int]:
    count = 0

    def call() -> int:
        nonlocal count
        count += 1
        return count

    return call


class Counting(Chain):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.count = counting()
        _STATE.clear()
        _STATE.update(step=0, seen=[0.0])
        Counting.calls = 0

    def before(self) -> float:
        _STATE["step"] += 1
        type(self).calls += 1
        return 1.0 / (1 + 0.1 * self.calls)

    def between(self) -> float:
        _STATE["seen"].append(_STATE["seen"][-1] + 0.01)
        return sum(_STATE["seen"][-3:])

    def after(self) -> float:
        return 0.95 ** _STATE["step"] / (1 + 0.1 * self.count())


@case(ranks=2)
def closures_classes_and_variables_of_the_script() -> None:
    everywhere(Counting)


class Rolling(Chain):
    """A generator of the model's own, between the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(3)

    def between(self) -> float:
        return self.dice.random()


@case(ranks=2)
def generator_between_blocks() -> None:
    everywhere(Rolling)


class Shared:
    def __init__(self) -> None:
        self.calls = 0


class Numbered(nn.Module):
    """Counts in its class and in an object that all blocks hold, and reads both."""

    runs = 0

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.line, self.shared = nn.Linear(4, 4), shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).runs += 1
        self.shared.calls += 2
        return self.line(x) / (1 + 0.1 * (self.runs % 5)) + 0.01 * self.shared.calls


class Shares(Chain):
    def __init__(self) -> None:
        Numbered.runs, shared = 0, Shared()
        super().__init__(lambda: Numbered(shared))


@case(ranks=2)
def blocks_count_together() -> None:
    everywhere(Shares)


class Varying(nn.Module):
    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.line, self.shared = nn.Linear(4, 4), shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shared.calls += 1 + int((x > 0.5).sum())
        return self.line(x) / self.shared.calls


@case(ranks=2)
def blocks_that_count_by_values_are_refused() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    shared = Shared()
    model = pipe.PipelineModel(Chain(lambda: Varying(shared)))
    step = pipe.step(squared)
    refused(lambda: step(model, *rows(0, 0)), "adds another number to", "attribute of its own")


class Clock(Chain):
    def after(self) -> float:
        return 1 + time.perf_counter() % 1


class Odd:
    """An iterator of a class of the script's own, which nobody can put back."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> float:
        self.at += 1
        return self.at / 3


class Draws(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.odd = Odd()

    def before(self) -> float:
        return next(self.odd)  # type: ignore[call-overload]


@case(ranks=2)
def what_nobody_can_put_back_is_refused() -> None:
    for build in (Clock, Draws):
        for passes in ({}, {"partition_file": ""}):
            begin(partitions=2, microbatches=4, atomic=BLOCKS, **passes)
            model = pipe.PipelineModel(build())
            step = pipe.step(squared)
            refused(lambda step=step, model=model: step(model, *rows(0, 0)), "another result when it runs again")
            pipe.shutdown()
