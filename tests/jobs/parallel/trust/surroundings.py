"""What a forward does besides: random numbers of Python and numpy, counters, buffers; and what ranks compare."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import trainshed.parallel as pipe

from .table import begin, case, refused, same
from .training import check, sgd, squared


def rows(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * number + replica)),)


def alone(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
    return rows(number, 0)


class Drawing(nn.Module):
    """Draws in the blocks, between them and around them."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.blocks = nn.ModuleList(Noisy(where) for _ in range(4))
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.where == "layerdrop" and random.random() < 0.15:
                continue
            x = block(x)
            if self.where == "between":
                x = x * random.uniform(0.5, 1.5)
        return self.last(x) * (float(np.random.beta(2.0, 2.0)) + 0.5)


class Noisy(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.line, self.where = nn.Linear(4, 4), where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = random.uniform(0.5, 1.5) if self.where == "blocks" else 1.0
        return x + scale * self.line(x).tanh()


def mixup(model: Any, x: torch.Tensor) -> torch.Tensor:
    weight = float(np.random.beta(1.0, 1.0))
    order = torch.from_numpy(np.random.permutation(len(x)))
    target = weight * x + (1 - weight) * x[order]
    loss = (model(target) - target).square().mean() * random.uniform(1.0, 2.0)
    model.backward(loss)
    return loss


def trained(build: Callable[[], nn.Module], step: Any, seed: int = 4, **settings: Any) -> dict[str, torch.Tensor]:
    """The state after three steps in a pipeline, whose first rank's generators count."""
    begin(microbatches=4, **settings)
    torch.manual_seed(3)
    random.seed(seed + pipe.pp_rank())
    np.random.seed(seed + pipe.pp_rank())
    model = pipe.PipelineModel(build())
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    train = pipe.step(step)
    before = random.getstate(), np.random.get_state()[1].tolist()
    for number in range(3):
        update.zero_grad()
        train(model, *rows(number, 0))
        update.step()
    assert before == (random.getstate(), np.random.get_state()[1].tolist()), "the generators have moved"
    state = model.state_dict()
    pipe.shutdown()
    return state


def draws(where: str, step: Any = squared, seed: int = 4, **settings: Any) -> None:
    """The numbers do not depend on the number of stages."""
    options = {"atomic": BLOCKS, **settings}
    divided = trained(lambda: Drawing(where), step, seed, partitions=2, **options)
    same(divided, trained(lambda: Drawing(where), step, seed, partitions=1))


@case(ranks=2)
def mixup_numpy_in_step() -> None:
    draws("around", mixup)


@case(ranks=2)
def python_random_in_blocks() -> None:
    draws("blocks")


@case(ranks=2)
def python_random_in_blocks_and_virtual_stages() -> None:
    draws("blocks", mixup, virtual_stages=2, pipeline="interleaved1f1b")


@case(ranks=2)
def python_random_between_blocks() -> None:
    draws("between", mixup)


@case(ranks=2)
def python_random_leaves_layers_out() -> None:
    """With the first seed the first microbatch leaves nothing out; the plan then has all layers."""
    for seed in (4, 5, 6):
        draws("layerdrop", seed=seed)


class Counting(nn.Module):
    """The model and its blocks count their forwards and anneal by that."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CountingBlock() for _ in range(4))
        self.last = nn.Linear(4, 4)
        self.calls, self.history = 0, [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(self.history[-1] * 0.9)
        for block in self.blocks:
            x = block(x) * self.history[-1]
        return self.last(x) / self.calls


class CountingBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.count = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + self.line(x).tanh() / self.count


class Annealing(nn.Module):
    """What the model notes is the class's at first, an object's, a generator's and a plain tensor's."""

    rate = 1.0

    def __init__(self, tensor: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(AnnealingBlock() for _ in range(4))
        self.settings, self.dice, self.source = Settings(), random.Random(1), np.random.default_rng(2)
        self.total = torch.zeros(4) if tensor else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rate = self.rate * 0.9
        self.settings.scale *= 0.8
        if self.total is not None:
            self.total += x.mean(0)
            x = x - self.total
        shift = self.dice.random() + float(self.source.random())
        for block in self.blocks:
            x = block(x) * self.rate + shift
        return x * self.settings.scale


class Settings:
    def __init__(self) -> None:
        self.scale = 1.0


class AnnealingBlock(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.line, self.source = nn.Linear(4, 4), torch.Generator().manual_seed(7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x + self.line(x).tanh() / self.calls + torch.rand(4, generator=self.source)


BLOCKS = [f"blocks.{number}" for number in range(4)]


@case(ranks=2)
def notes_of_the_models_own() -> None:
    check(lambda: Annealing(True), alone, partitions=2, atomic=BLOCKS)


@case(ranks=2)
def notes_of_the_models_own_with_virtual_stages() -> None:
    check(lambda: Annealing(False), alone, partitions=2, atomic=BLOCKS, virtual_stages=2, pipeline="interleaved1f1b")


@case(ranks=2)
def python_counters() -> None:
    check(Counting, alone, partitions=2, atomic=BLOCKS)


@case(ranks=2)
def python_counters_with_virtual_stages() -> None:
    check(Counting, alone, partitions=2, atomic=BLOCKS, virtual_stages=2, pipeline="interleaved1f1b")


class Averaging(nn.Module):
    """Buffers of the model itself, changed at the end of its forward: one in place, one assigned anew."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(AveragingBlock() for _ in range(4))
        self.last = nn.Linear(4, 4)
        self.register_buffer("queue", torch.zeros(16, 4))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out = self.last(x)
        similar = out @ self.queue.t().clone()
        place = (int(self.at) + torch.arange(len(out))) % 16
        self.queue[place] = out.detach()
        self.at[0] = (int(self.at) + len(out)) % 16
        self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        return out - self.mean + 0.1 * similar.mean()


class AveragingBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.line(x).tanh()
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


@case(ranks=2)
def buffers_of_the_model_and_of_blocks() -> None:
    check(Averaging, alone, partitions=2, atomic=BLOCKS)


@case(ranks=2)
def buffers_with_virtual_stages() -> None:
    check(Averaging, alone, partitions=2, atomic=BLOCKS, virtual_stages=2, pipeline="interleaved1f1b")


class Siamese(nn.Module):
    """One batch norm runs twice: its statistics are one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lines[0](x).tanh()
        x = self.norm(self.lines[1](x))
        x = self.norm(self.lines[2](x))
        return self.lines[4](self.lines[3](x).tanh())


class Observing(nn.Module):
    """Buffers that are read and assigned anew between the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        for number in range(6):
            self.register_buffer(f"high{number}", torch.tensor(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            high = torch.maximum(getattr(self, f"high{number}"), x.detach().max())
            setattr(self, f"high{number}", high)
            x = block(x / high).tanh()
        return x


@case(ranks=2)
def buffers_assigned_anew_between_blocks() -> None:
    for options in ({}, {"virtual_stages": 2, "pipeline": "interleaved1f1b"}):
        check(Observing, alone, partitions=2, **options)
        pipe.shutdown()


@case(ranks=2)
def a_batch_norm_that_runs_twice() -> None:
    check(Siamese, alone, partitions=2)


@case(ranks=2)
def ranks_disagree_about_data_later() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    step = pipe.step(squared)
    for number in range(5):
        step(model, *rows(number, 0))
    wrong = rows(6, 0)[0]
    wrong[3, 1] += pipe.rank()
    refused(lambda: step(model, wrong), "rank 1 was given another batch than rank 0")


@case(ranks=2)
def state_dict_on_rank_0_only() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    step = pipe.step(squared)
    step(model, *rows(0, 0))
    words = ("model.state_dict()", "a step", "call it on all ranks")
    refused(model.state_dict if pipe.rank() == 0 else lambda: step(model, *rows(1, 0)), *words)


@case(ranks=2)
def another_mode_on_one_rank() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    step = pipe.step(squared)
    step(model, *rows(0, 0))
    model.train(pipe.rank() == 0)
    refused(lambda: step(model, *rows(1, 0)), "another mode")
