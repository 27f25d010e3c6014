"""A forward that Python changes after the first step: numbers, switches, modules that are added, and what changes always."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .surroundings import BLOCKS, alone, rows
from .table import begin, case, refused, same
from .training import Between, Step, check, sgd, squared

V2 = {"virtual_stages": 2, "pipeline": "interleaved1f1b"}
ZERO = {"pipeline": "interleavedzerobubble"}


class Model(nn.Module):
    """Blocks whose number, and what is done around them, Python decides."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.extra, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.depth, self.use_extra, self.temperature = blocks, False, 1.0
        self.kind: Any = "tanh"
        self.config = SimpleNamespace(factor=1.0, skip=False)

    def forward(self, x: torch.Tensor, depth: int | None = None, scale: float = 1.0) -> torch.Tensor:
        for block in self.blocks[: depth or self.depth]:
            y = block(x) * self.temperature * scale * self.config.factor
            x = y if self.config.skip else x + y
        if self.use_extra:
            x = x + self.extra(x)
        return self.last(x.tanh() if self.kind == "tanh" else x.sin())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.wide, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.0)
        self.temperature, self.use_wide = 1.0, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.line(x).tanh()) * self.temperature
        return x + self.wide(x) if self.use_wide else x


def trains(
    between: Between,
    *,
    again: int,
    build: Callable[[], nn.Module] = Model,
    step: Step = squared,
    steps: int = 6,
    atomic: list[str] = BLOCKS,
    **settings: Any,
) -> None:
    """As in one process, and rank 0 says so often that the forward is recorded again: once for each name."""
    said = io.StringIO()
    with redirect_stdout(said):
        check(build, alone, step=step, parts=4, steps=steps, between=between, atomic=atomic, **settings)
    times = said.getvalue().count("recorded again")
    assert times == (again if pipe.rank() == 0 else 0), said.getvalue()
    pipe.shutdown()


def everywhere(between: Between, **options: Any) -> None:
    """Two stages, four on two ranks, and a backward in two parts."""
    for schedule in ({}, V2, ZERO):
        trains(between, partitions=2, **options, **schedule)


def by_step(name: str, *values: Any) -> Between:
    """Sets an attribute of the model before each step."""

    def between(number: int, model: nn.Module) -> None:
        where, _, key = name.rpartition(".")
        setattr(model.get_submodule(where) if where != "config" else model.config, key, values[number % len(values)])

    return between


@case(ranks=2)
def an_attribute_decides_the_depth() -> None:
    everywhere(by_step("depth", 4, 4, 3, 4, 2, 3), again=1)


@case(ranks=4)
def an_attribute_decides_the_depth_with_four_stages() -> None:
    trains(by_step("depth", 4, 4, 3, 4, 2, 3), again=1, partitions=4)


@case(ranks=2)
def a_switch_in_the_model() -> None:
    everywhere(by_step("use_extra", False, True, True, False), again=1)


@case(ranks=2)
def a_text_and_a_configuration() -> None:
    everywhere(by_step("kind", "tanh", "sin", "tanh"), again=1)
    everywhere(by_step("config.skip", False, True, False), again=1)


@case(ranks=2)
def a_switch_in_a_block() -> None:
    everywhere(by_step("blocks.3.use_wide", False, True, True, False), again=1)


def with_depth(model: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
    loss = model(x, depth).square().mean()
    model.backward(loss)
    return loss


def argument(name: str, values: list[Any], again: int, **settings: Any) -> None:
    """As in one process with another value of an argument in each step."""
    begin(microbatches=4, atomic=BLOCKS, **settings)

    def step(model: Any, x: torch.Tensor, given: Any) -> torch.Tensor:
        loss = model(x, **{name: given}).square().mean()
        model.backward(loss)
        return loss

    torch.manual_seed(3)
    alone_model = Model()
    update = sgd(alone_model.parameters())
    for number, value in enumerate(values):
        update.zero_grad()
        for part in rows(number, pipe.dp_rank())[0].chunk(4):
            (alone_model(part, **{name: value}).square().mean() / 4).backward()
        update.step()
    torch.manual_seed(3)
    model = pipe.PipelineModel(Model())
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    train, said = pipe.step(step), io.StringIO()
    with redirect_stdout(said):
        for number, value in enumerate(values):
            update.zero_grad()
            train(model, *rows(number, pipe.dp_rank()), value)
            update.step()
    same(model.state_dict(), alone_model.state_dict())
    assert said.getvalue().count("recorded again") == (again if pipe.rank() == 0 else 0), said.getvalue()
    pipe.shutdown()


@case(ranks=2)
def a_number_argument_decides_the_depth() -> None:
    for schedule in ({}, V2, ZERO):
        argument("depth", [4, 4, 3, 4, 2, 3], 1, partitions=2, **schedule)


@case(ranks=4)
def a_number_argument_decides_the_depth_with_four_stages() -> None:
    argument("depth", [4, 4, 3, 4, 2, 3], 1, partitions=4)


@case(ranks=2)
def a_factor_changes_in_every_step() -> None:
    """Never stale, and never recorded again."""
    falling = [0.9**number for number in range(6)]
    argument("scale", falling, 0, partitions=2)
    trains(by_step("temperature", *falling), again=0, partitions=2)
    trains(by_step("config.factor", *falling), again=0, partitions=2, **V2)
    trains(by_step("blocks.0.temperature", *falling), again=0, partitions=2)
    trains(by_step("blocks.3.temperature", *falling), again=0, partitions=2)


@case(ranks=2)
def a_label_in_a_block_changes_in_every_step() -> None:
    """It does nothing, which is learnt."""
    trains(by_step("blocks.3.label", *"abcdef"), again=1, partitions=2)


class Counting(nn.Module):
    """Counts at the end of its forward, reads that at the start, and goes another way in the middle of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.last, self.calls, self.scale = nn.Linear(4, 4), 0, [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale[-1]
        for block in self.blocks:
            x = x + block(x).tanh() / (1 + self.calls)
        if self.calls > 9:
            x = x * x.sin()
        x = self.last(x)
        self.calls += 1
        self.scale.append(self.scale[-1] * 0.9)
        return x


def nothing(_number: int, _model: nn.Module) -> None:
    """Changes nothing."""


@case(ranks=2)
def a_counter_at_the_end_of_the_forward() -> None:
    everywhere(nothing, again=0, build=Counting)


@case(ranks=4)
def a_counter_at_the_end_of_the_forward_with_four_stages() -> None:
    trains(nothing, again=0, build=Counting, partitions=4)


@case(ranks=4)
def replicas_change_at_other_times() -> None:
    begin(partitions=2, microbatches=2, atomic=BLOCKS)
    depths = [[4, 3, 3, 4, 2], [4, 4, 2, 2, 3]]
    torch.manual_seed(3)
    alone_model = Model()
    update = sgd(alone_model.parameters())
    for number in range(5):
        update.zero_grad()
        for replica in range(2):
            for part in rows(number, replica)[0].chunk(2):
                (alone_model(part, depths[replica][number]).square().mean() / 4).backward()
        update.step()
    torch.manual_seed(3)
    model = pipe.PipelineModel(Model())
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    train = pipe.step(with_depth)
    for number in range(5):
        update.zero_grad()
        train(model, *rows(number, pipe.dp_rank()), depths[pipe.dp_rank()][number])
        update.step()
    same(model.state_dict(), alone_model.state_dict())


@case(ranks=2)
def ranks_switch_differently() -> None:
    begin(partitions=2, microbatches=2, atomic=BLOCKS)
    module = Model()
    model = pipe.PipelineModel(module)
    step = pipe.step(squared)
    step(model, *rows(0, 0))
    for name, value in (("depth", 3), ("use_extra", True)):
        before = getattr(module, name)
        if pipe.rank() == 1:
            setattr(module, name, value)
        refused(lambda: step(model, *rows(1, 0)), name, "rank 1", "rank 0")
        setattr(module, name, before)
        step(model, *rows(1, 0))  # the pipeline goes on


@case(ranks=2)
def a_variable_of_the_script() -> None:
    options = {"skip": False}
    depth = 4

    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x, depth).square().mean()
        if options["skip"]:
            loss = loss * x.mean() + model.module.last(x).mean()
        model.backward(loss)
        return loss

    def between(number: int, _model: nn.Module) -> None:
        nonlocal depth
        depth = [4, 2, 2, 4, 3, 4][number]
        options["skip"] = number == 3

    trains(between, again=2, step=step, partitions=2)


@case(ranks=2)
def a_dropout_that_comes_later() -> None:
    """The numbers drawn do not depend on the number of stages."""

    def trained(partitions: int) -> dict[str, torch.Tensor]:
        begin(partitions=partitions, microbatches=4, atomic=BLOCKS)
        torch.manual_seed(3)
        module = Model()
        module.blocks[2].eval()
        model = pipe.PipelineModel(module)
        update = pipe.PipelineOptimizer(sgd(model.parameters()))
        train = pipe.step(squared)
        for number in range(5):
            if number == 2:
                module.blocks[1].drop.p = 0.5
            if number == 4:
                module.blocks[2].drop.p = 0.5
                module.blocks[2].train()
            update.zero_grad()
            train(model, *rows(number, 0))
            update.step()
        state = model.state_dict()
        pipe.shutdown()
        return state

    same(trained(2), trained(1))


@case(ranks=2)
def blocks_that_come_later() -> None:
    """Progressive growing with modules that were there from the start, at the end, at the front, and in between."""

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
            self.last = nn.Linear(4, 4)
            self.used = [2, 3]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number in self.used:
                x = x + self.blocks[number](x).tanh()
            return self.last(x)

    grown = by_step("used", [2, 3], [2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [0, 3], [2, 3])
    for options in ({}, ZERO):
        trains(grown, again=1, build=Growing, atomic=[], partitions=2, **options)


@case(ranks=2)
def modules_that_are_added_later() -> None:
    begin(partitions=2, microbatches=2, atomic=BLOCKS)

    def grow(number: int, module: nn.Module) -> list[nn.Parameter]:
        if number not in (2, 4):
            return []
        torch.manual_seed(number)
        new = nn.Linear(4, 4)
        module.blocks.append(new)
        module.depth += 1
        return list(new.parameters())

    torch.manual_seed(3)
    alone_model = Model()
    update: Any = sgd(alone_model.parameters())
    for number in range(6):
        if new := grow(number, alone_model):
            update.add_param_group({"params": new})
        update.zero_grad()
        for part in rows(number, 0)[0].chunk(2):
            (alone_model(part).square().mean() / 2).backward()
        update.step()
    torch.manual_seed(3)
    module = Model()
    model = pipe.PipelineModel(module)
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    train = pipe.step(squared)
    for number in range(6):
        if new := grow(number, module):
            update.add_param_group({"params": new})
        update.zero_grad()
        train(model, *rows(number, 0))
        update.step()
    same(model.state_dict(), alone_model.state_dict())
