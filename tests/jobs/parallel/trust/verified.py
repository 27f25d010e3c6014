"""What is right is not called wrong, and verifying leaves no trace."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.engine.gradients import GradientSync
from trainshed.parallel.engine.verify import verify_budget as room
from trainshed.parallel.stages.stage import StageModule

from .defects import after, at_gradients
from .table import begin, case, refused, same
from .training import squared


class Noting(nn.Module):
    """Counts its calls, keeps an average, and draws from generators of its own and from the global one."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)
        self.calls, self.average = 0, torch.zeros(4)
        self.own = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.drop(self.norm(self.line(x)))
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x * (1 + torch.rand((), generator=self.own))


def staged(first: nn.Module, last: nn.Module, **settings: Any) -> tuple[nn.Module, pipe.PipelineModel]:
    """Two modules on two stages."""
    begin(partitions=2, microbatches=2, atomic=["0", "1"], **{"verify": "changes", **settings})
    module = nn.Sequential(first, last)
    model = pipe.PipelineModel(module)
    for number, part in enumerate(module):
        model.set_partition(part, number)
    return module, model


def said_by(steps: int, model: Any, function: Callable[..., Any] = squared) -> str:
    """Trains; what this rank prints."""
    update = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train = pipe.step(function)
    with redirect_stdout(io.StringIO()) as said:
        for number in range(steps):
            train(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(number)))
            update.step()
            update.zero_grad()
    return said.getvalue()


@case(ranks=2)
def verifying_leaves_no_trace() -> None:
    states = []
    for verify in ("off", "changes"):
        pipe.shutdown()
        torch.manual_seed(3)
        random.seed(4)
        count = 0
        teacher = nn.BatchNorm1d(4)

        def counted(model: Any, x: torch.Tensor, teacher: nn.Module = teacher) -> torch.Tensor:
            nonlocal count
            count += 1
            loss = (model(x) - teacher(x)).square().mean()
            model.backward(loss)
            return loss

        module, model = staged(Noting(), Noting(), verify=verify)
        said_by(2, model, counted)
        mine: Any = module[pipe.pp_rank()]
        notes = {"average": mine.average, "calls": torch.tensor(mine.calls), "count": torch.tensor(count)}
        notes |= {"random": torch.get_rng_state(), "own": mine.own.get_state(), "python": torch.tensor(random.random())}
        states.append({**model.state_dict(), **notes, "teacher": teacher.running_mean.clone()})
    same(states[1], states[0], tolerance=0.0)


class Unsteady(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x) * (1 + int.from_bytes(os.urandom(4), "big") / 2**32)  # of one byte, one in 256 is the same again


@case(ranks=2)
def a_model_that_is_not_deterministic_is_refused_with_words() -> None:
    _, model = staged(Unsteady(), nn.Linear(4, 2))
    refused(
        lambda: pipe.step(squared)(model, torch.randn(4, 4)), "gives another result when it runs again with the same inputs"
    )


class UnsteadyOnOne(Unsteady):
    """On the second rank its forward gives the same each time, as it may by chance."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if pipe.rank() == 0 else self.line(x)


@case(ranks=2)
def a_model_that_seems_deterministic_to_one_rank_is_refused_with_the_same_words() -> None:
    _, model = staged(UnsteadyOnOne(), nn.Linear(4, 2))
    refused(
        lambda: pipe.step(squared)(model, torch.randn(4, 4)), "gives another result when it runs again with the same inputs"
    )


class Tie(nn.Module):
    """Chooses one of two experts for each row, by scores that are equal but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = (x[:, 0] + x[:, 1] + x[:, 2]) > (x[:, 2] + x[:, 1] + x[:, 0])
        return torch.where(first[:, None], self.one(x), self.other(x))


@case(ranks=2)
def routes_that_rounding_decides_are_not_called_wrong() -> None:
    def rounded(sent: Any, *_: Any) -> Any:
        return (sent[0] * (1 + 1e-7 * torch.randn(sent[0].shape, generator=torch.Generator().manual_seed(9))), *sent[1:])

    with after(StageModule, "_outgoing", rounded):
        said_by(1, staged(nn.Linear(4, 4), Tie())[1])


@case(ranks=2)
def an_overflow_in_float16_is_not_called_wrong() -> None:
    _, model = staged(nn.Linear(4, 4), nn.Linear(4, 4), fp16=True)
    pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), pipe.GradScaler(init_scale=2.0**60))
    train = pipe.step(squared)
    train(model, torch.ones(8, 4))
    assert not all(torch.isfinite(p.grad).all() for p in model.local_parameters() if p.grad is not None)


def doubled() -> Any:
    def double(sync: GradientSync) -> None:
        for parameter in sync.parameters.values():
            parameter.grad *= 2  # type: ignore[operator]

    return at_gradients(double)


@case(ranks=2)
def the_check_can_be_switched_off() -> None:
    with doubled():
        said_by(1, staged(nn.Linear(4, 4), nn.Linear(4, 4), verify="off")[1])


@case(ranks=2)
def a_defect_of_a_later_step_is_found_where_every_second_one_is_verified() -> None:
    _, model = staged(nn.Linear(4, 4), nn.Linear(4, 4), verify="first", verify_steps=2)
    said_by(2, model)
    with doubled():
        refused(lambda: said_by(1, model), "step 3 is not right", "module '1'", "2 times")


@case(ranks=2)
def without_room_the_step_goes_on_and_says_so() -> None:
    with patch.object(room, "free_bytes", lambda _device: 0.0):
        said = said_by(1, staged(nn.Linear(4, 4), nn.Linear(4, 4))[1])
    assert ("has no room" in said) == (pipe.rank() == 0), said


@case(ranks=4)
def a_defect_on_one_replica_stops_all_ranks() -> None:
    _, model = staged(nn.Linear(4, 4), nn.Linear(4, 4))

    def double(sync: GradientSync) -> None:
        if pipe.rank() == 3:
            for parameter in sync.parameters.values():
                parameter.grad *= 2  # type: ignore[operator]

    with at_gradients(double):
        refused(lambda: said_by(1, model), "step 1 is not right", "module '1'", "rank 3", "2 times")
