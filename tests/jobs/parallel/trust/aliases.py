"""Modules that are registered in several places, of which each has a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .surroundings import alone, rows
from .table import begin, case, same
from .training import check, sgd, squared

SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"virtual_stages": 2, "pipeline": "interleaved1f1b"},
    {"pipeline": "interleavedzerobubble"},
)


class Block(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.first, self.shared, self.second = nn.Linear(4, 4), shared, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.shared(self.first(x)).tanh())


class Shared(nn.Module):
    """Two blocks, so that each is opened, with one module in both."""

    def __init__(self, shared: Callable[[], nn.Module] = lambda: nn.LayerNorm(4)) -> None:
        super().__init__()
        one = shared()
        self.blocks = nn.ModuleList(Block(one) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Counting(nn.Module):
    """Scales by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * (1 + 0.1 * (self.calls % 3))


@case(ranks=2, heavy=True)
def one_module_in_all_blocks() -> None:
    for shared in (lambda: nn.LayerNorm(4), nn.GELU, lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU())):
        for schedule in SCHEDULES:
            check(lambda: Shared(shared), alone, parts=4, partitions=2, **schedule)  # noqa: B023
            pipe.shutdown()


@case(ranks=2, heavy=True)
def a_module_that_counts_in_all_blocks() -> None:
    """Its number is that of the calls on all stages, whether a block is opened or not."""
    for atomic in (["blocks.0", "blocks.1"], ["blocks.0"], ["blocks.1"], ["blocks.0.shared"]):
        for schedule in ({}, {"pipeline": "interleavedzerobubble", "virtual_stages": 1}):
            pins = {"blocks.0": 0, "blocks.1": 1}
            check(lambda: Shared(Counting), alone, parts=4, partitions=2, pins=pins, atomic=atomic, **schedule)
            pipe.shutdown()
            if "blocks.0" not in atomic or "blocks.1" not in atomic:
                check(lambda: Shared(Counting), alone, parts=4, partitions=2, atomic=atomic, **SCHEDULES[1])
                pipe.shutdown()


@case(ranks=2)
def blocks_with_a_common_module_on_stages_by_hand() -> None:
    model = check(Shared, alone, parts=4, partitions=2, pins={"blocks.0": 0, "blocks.1": 1})
    assert model.plan is not None
    stages = {(unit.unit, unit.call): unit.stage for unit in model.plan.units}
    assert stages.get(("blocks.0.shared", 1), 1) == 1, stages


class Twins(nn.Module):
    """Names of one module for several purposes, as wrappers and taskwise heads have them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))
        self.alias = self.blocks[1]
        self.also = nn.Sequential(self.blocks[2], nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        names = self.blocks if self.training else (self.blocks[0], self.alias, self.also, self.blocks[3])
        for block in names:
            x = x + block(x)
        return x


@case(ranks=2)
def other_names_are_used_later() -> None:
    """Evaluation calls modules by names, and in a container, that training does not use."""
    for schedule in SCHEDULES:
        begin(partitions=2, microbatches=4, **schedule)
        torch.manual_seed(3)
        whole, module = Twins(), Twins()
        module.load_state_dict(whole.state_dict())
        model = pipe.PipelineModel(module)
        update, train, look = (
            pipe.PipelineOptimizer(sgd(model.parameters())),
            pipe.step(squared),
            pipe.step(lambda m, x: m(x)),
        )
        for number in range(2):
            update.zero_grad()
            train(model.train(), *alone(number, 0))
            update.step()
            whole.load_state_dict(model.state_dict())
            with torch.no_grad():
                same({"out": look(model.eval(), *rows(9, 0)).concat()}, {"out": whole.eval()(*rows(9, 0))})
        pipe.shutdown()


@case(ranks=2)
def a_module_is_kept_whole_by_any_of_its_names() -> None:
    begin(partitions=2, microbatches=2, atomic=["alias", "also.0"])
    model = pipe.PipelineModel(Twins())
    pipe.step(squared)(model, *rows(0, 0))
    assert model.plan is not None
    units = {unit.unit for unit in model.plan.units}
    assert {"blocks.1", "blocks.2"} <= units, units


@case(ranks=2)
def states_have_every_name() -> None:
    begin(partitions=2, microbatches=2)
    whole = Twins()
    model = pipe.PipelineModel(Twins())
    pipe.step(squared)(model, *rows(0, 0))
    assert model.state_dict().keys() == whole.state_dict().keys()
    model.load_state_dict(whole.state_dict())
    same(model.state_dict(), whole.state_dict())
