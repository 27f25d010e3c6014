"""Mixtures of experts in stages that tensor groups divide among them: each rank has some of the experts of its stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.nn.functional as F
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.engine.tensor import experts

from .mixtures import Counting, Mixture, Net, Packed, Written, _mixtral, _qwen
from .table import case, long_case
from .tensor import words
from .tensor_stages import _found, stages_with_dropout, trains
from .training import adam, check

CUT = {"middle": 0, "more.0": 1}


def _two(**options: Any) -> nn.Module:
    return Net(Mixture(**options), Mixture(**options))


class Hit(Packed):
    """Calls those experts alone that have tokens, as transformers' do."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for number in chosen[chosen < self.num_experts].unique().tolist():
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            one = (x[rows] @ self.up[number].T).tanh() @ self.down[number].T
            found = found.index_add(0, rows, one * weights[rows, choice, None])
        return found


BOTH = ({"middle.experts"}, {"more.0.experts"})


def divided(build: Callable[[], nn.Module], expected: Sequence[set[str]] = BOTH, **options: Any) -> None:
    """Trains as one process does, with the experts of each stage divided."""
    model = trains(build, words, pins=CUT, **options)
    names = {id(module): name for name, module in model.module.named_modules()}
    found = {names[id(one)] for one in model.distributed_modules()}
    assert {name for name in found if name.endswith("experts")} == expected[pipe.pp_rank()], found
    pipe.shutdown()


@case(ranks=4)
def experts_of_stages() -> None:
    divided(_two)
    divided(lambda: _two(kind=Hit, only=2), optimizer=adam, tolerance=1e-4)
    divided(lambda: _two(room=2))


@case(ranks=4, heavy=True)
def experts_of_stages_of_many_kinds() -> None:
    divided(_two, optimizer=adam, tolerance=1e-4, verify_steps=1, placement_strategy="spread")
    for kind in (Packed, Hit):
        for only in (2, 3):  # no token reaches any of the second rank, or some of it
            divided(lambda kind=kind, only=only: _two(kind=kind, only=only), optimizer=adam, tolerance=1e-4)
    for way in ("reentrant", "other"):
        divided(lambda way=way: _two(again=way))


@case(ranks=4, heavy=True)
def experts_of_stages_under_each_schedule() -> None:
    for pipeline, stages in (("simple", 1), ("interleavedzerobubble", 1), ("zbvzerobubble", 2)):
        trains(_two, words, pipeline=pipeline, virtual_stages=stages, optimizer=adam, tolerance=1e-4)
        pipe.shutdown()


@case(ranks=4)
def experts_that_two_stages_share() -> None:
    def build() -> nn.Module:
        net = _two()
        first, second = net.middle.experts, net.more[0].experts
        second.up, second.down = first.up, first.down
        return net

    divided(build, [{"middle.experts", "more.0.experts"}] * 2)


class Acting(Packed):
    """Has a module inside, so that a plan may open it."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        share = (F.one_hot(chosen, self.num_experts) * weights[..., None]).sum(1)
        return torch.einsum("te,edi,tei->td", share, self.down, self.act(torch.einsum("td,eid->tei", x, self.up)))


@case(ranks=4)
def experts_that_a_plan_would_open() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(13, 6), Mixture(Acting), nn.Linear(6, 6))

    path = str(ranks.folder() / "stage-experts.json")
    check(build, words, partitions=2, partition_file=path, pins={"1.experts.act": 0})
    opened = pipe.load_plan(path)
    pipe.shutdown()
    assert any(unit.unit == "1.experts.act" for unit in opened.units), opened.units
    said = StringIO()
    with redirect_stdout(said):
        model = trains(build, words, partition_file=path)
    assert "'1.experts': the plan opens it" in said.getvalue() or torch.distributed.get_rank()
    pipe.shutdown()
    model = trains(build, words)
    stages = {unit.unit: unit.stage for unit in model.plan.units} if model.plan is not None else {}
    assert "1.experts.act" not in stages
    assert (pipe.pp_rank() == stages["1.experts"]) == any(isinstance(one, Acting) for one in model.distributed_modules())


@case(ranks=4)
def experts_of_a_stage_that_need_all_of_them_stay_whole() -> None:
    said = StringIO()
    with redirect_stdout(said):
        divided(lambda: Net(Mixture(), Mixture(Counting)), (BOTH[0], set()))
    assert "more.0.experts': its forward changes 'load'" in said.getvalue() or torch.distributed.get_rank()


@long_case(ranks=4)
def a_mixture_of_stages_goes_on_with_other_degrees(steps: int) -> None:
    stages_with_dropout(_mixtral, str(ranks.folder() / "stage-experts" / f"mixtral-{steps}"), steps)


@case(ranks=4, heavy=True)
def other_mixtures_of_stages_go_on_with_other_degrees() -> None:
    for build in (Written, _qwen):
        stages_with_dropout(build, str(ranks.folder() / "stage-experts" / build.__name__))
        pipe.shutdown()


@case(ranks=4)
def lost_and_wrong_experts_of_stages_are_found() -> None:
    native = experts.summed

    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(13, 6), Mixture(), nn.Linear(6, 6), Mixture())

    # A plan by measured times may keep the first mixture whole, and would then name it instead of its experts.
    found = partial(_found, build=build, pins={"1.experts": 0, "1.shared": 1})
    second = lambda part, mesh: native(part * (1 - mesh.get_local_rank()), mesh)  # noqa: E731
    found(patch.object(experts, "summed", second), "is not right", ".experts'", "gave another output")
    both = lambda part, mesh: native(native(part, mesh), mesh)  # noqa: E731
    found(patch.object(experts, "summed", both), "is not right", ".experts'", "gave another output")
