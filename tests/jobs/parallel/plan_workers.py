"""Ranks that compare what a plan says of tensor groups with what the engine then does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe


class Mixed(nn.Module):
    """A tied table and head, a layer that is too narrow, one whose weight another module reads, and plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8)) for _ in range(4))
        self.narrow, self.wide = nn.Linear(8, 1), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        for block in self.blocks:
            x = self.norm(x + block(x))
        x = x * self.narrow(x).sigmoid() + self.wide(x) + self.wide.weight.sum()
        return self.head(x)


def divided_as_planned(settings: dict[str, Any]) -> dict[str, Any]:
    """Module names by plan and by engine, and MiB of this rank's parameters."""
    pipe.init({"prescaled_batch": True, "microbatches": 2, **settings})
    torch.manual_seed(0)
    module = Mixed()
    names = {id(one): name for name, one in module.named_modules()}
    planned: list[str] = []
    model = pipe.PipelineModel(module)

    @pipe.step
    def step(model: Any, words: torch.Tensor) -> torch.Tensor:
        loss = model(words).square().mean()
        model.backward(loss)
        return loss

    words = torch.arange(44).reshape(4, 11) % 11
    step(model, words)
    plan = model.plan
    assert plan is not None
    planned = sorted(name for name, what in plan.divided.items() if not what.startswith("whole"))
    sizes = [(one.to_local() if isinstance(one, DTensor) else one).numel() * 4 for _, one in model.local_named_parameters()]
    stage = plan.predicted["stages"][pipe.pp_rank()]
    found = {
        "planned": planned,
        "whole": {name: what for name, what in plan.divided.items() if what.startswith("whole")},
        "divided": sorted(names[id(one)] for one in model.distributed_modules()),
        "mib": sum(sizes) / 2**20,
        "planned mib": stage["parameters_mib"] / 4,  # with gradients and AdamW's states
        "degrees": plan.degrees,
    }
    pipe.shutdown()
    return found
