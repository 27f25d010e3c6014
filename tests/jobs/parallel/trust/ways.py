"""Ways over what is refused, as the messages name them: each trains as one process does."""

from __future__ import annotations

import copy
import io
import random
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import trainshed.parallel as pipe

from .calls import SCHEDULES, Chain
from .surroundings import BLOCKS, alone
from .table import begin, case, refused, same
from .training import check, sgd, squared


class Critic(nn.Module):
    """The penalty is computed where the modules are that it goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        between = x.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.score(between).sum(), between, create_graph=True)
        return self.score(x), (slope.norm(2, 1) - 1).square().mean()


class Generated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.critic = Chain(), Critic()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.critic(self.blocks(x))


def penalised(model: Any, x: torch.Tensor) -> torch.Tensor:
    score, penalty = model(x)
    loss = -score.mean() + 10 * penalty
    model.backward(loss)
    return loss


def penalised_outside(model: Any, x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    score, _ = model(x)
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    loss = slope.norm(2, 1).mean()
    model.backward(loss)
    return loss


@case(ranks=2)
def penalty_of_gradients_in_a_module_of_its_own() -> None:
    for schedule in SCHEDULES:
        check(Generated, alone, step=penalised, parts=4, partitions=2, atomic=["critic"], **schedule)
        pipe.shutdown()
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Generated())
    refused(lambda: pipe.step(penalised_outside)(model, torch.ones(4, 4)), "one module", "`atomic`")


class Follows(Chain):
    """A copy of the model is moved by the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.copy = copy.deepcopy(self.blocks).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for mine, other in zip(self.copy.parameters(), self.blocks.parameters(), strict=True):
                mine.lerp_(other, 0.1)
        return super().forward(x)


def taught(model: Any, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(model(x), wanted)
    model.backward(loss)
    return loss


@case(ranks=2)
def a_copy_that_follows_the_model_is_outside_of_it() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    torch.manual_seed(3)
    whole = Chain()
    one, copies = copy.deepcopy(whole), [copy.deepcopy(whole) for _ in range(2)]
    model = pipe.PipelineModel(whole)
    update, mine, step = pipe.PipelineOptimizer(sgd(model.parameters())), sgd(one.parameters()), pipe.step(taught)
    for number in range(3):
        x = alone(number, 0)[0]
        with torch.no_grad():
            wanted = [teacher(x.flip(1)) for teacher in copies]
        update.zero_grad()
        step(model, x, wanted[0])
        update.step()
        mine.zero_grad()
        F.mse_loss(one(x), wanted[1]).backward()
        mine.step()
        for teacher, state in zip(copies, (model.state_dict(), one.state_dict()), strict=True):
            with torch.no_grad():
                for name, value in teacher.state_dict().items():
                    value.lerp_(state[name], 0.1)
    same(copies[0].state_dict(), copies[1].state_dict())
    pipe.shutdown()
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Follows())
    refused(lambda: pipe.step(squared)(model, torch.ones(4, 4)), "changes a parameter", "outside of it")


class Drops(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if torch.rand(()) > 0.3:
                x = x + block(x)
        return self.head(x)


class DropsByPython(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if random.random() > 0.3:
                x = x + block(x)
        return self.head(x)


@case(ranks=2)
def layers_are_left_out_by_numbers_of_python() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Drops())
    refused(lambda: pipe.step(squared)(model, torch.ones(4, 4)), "decides by a tensor's values", "Python's `random`")
    pipe.shutdown()
    begin(partitions=2, microbatches=2, verify="changes")
    random.seed(0)  # else the first step may leave out all of them, and there are too few parts for a plan
    np.random.seed(0)  # a step's draws depend on numpy's generator, too
    model = pipe.PipelineModel(DropsByPython())
    step = pipe.step(squared)
    losses = {float(step(model, alone(0, 0)[0]).reduce_mean()) for _ in range(6)}
    assert len(losses) > 1, losses


@case(ranks=2)
def ranks_get_fewer_stages_where_the_model_has_too_few_parts() -> None:
    for kind in ("interleaved1f1b", "interleavedzerobubble"):
        settings = {"partitions": 2, "virtual_stages": 4, "pipeline": kind, "atomic": BLOCKS}
        with redirect_stdout(io.StringIO()) as said:
            model = check(Chain, alone, parts=4, verify="changes", **settings)
        plan = model.plan
        assert plan is not None and plan.stages == 4, plan
        assert ("2 stages instead of 4: the model has 5 parts" in said.getvalue()) == (pipe.rank() == 0), said.getvalue()
        pipe.shutdown()


@case(ranks=2)
def a_plan_with_fewer_stages_is_used_again() -> None:
    settings = {"partitions": 2, "virtual_stages": 4, "pipeline": "interleaved1f1b", "atomic": BLOCKS}
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "plan.json"))  # the first rank's, which counts
        first = check(Chain, alone, parts=4, partition_file=path, **settings).plan
        pipe.shutdown()
        assert check(Chain, alone, parts=4, partition_file=path, **settings).plan == first
        pipe.shutdown()
        begin(microbatches=4, partition_file=path, **{**settings, "virtual_stages": 3})
        model = pipe.PipelineModel(Chain())
        refused(lambda: pipe.step(squared)(model, alone(0, 0)[0]), "has 4 stages, this job has 6")


@case(ranks=2)
def stages_by_number_are_not_renumbered() -> None:
    begin(partitions=2, virtual_stages=4, pipeline="interleaved1f1b", microbatches=4, atomic=BLOCKS)
    model = pipe.PipelineModel(Chain())
    model.set_partition(model.module.head, 6)
    refused(lambda: pipe.step(squared)(model, alone(0, 0)[0]), "has 5 parts that can be a stage, but 8 stages")
