"""Tensors that are changed in place on both sides of a cut, also through other names of their memory."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import trainshed.parallel as pipe

from .table import case
from .training import check


def rows(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * number + replica)),)


class Fills(nn.Module):
    """Every stage makes the tensor; the blocks' results are written into it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks, self.how = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.zeros(len(x), 6, 4)
        first = kept[:, 0]
        if self.how == "input":
            x, kept = x[:, :4].clone(), x.new_zeros(6, len(x), 4).transpose(0, 1)
        for number, block in enumerate(self.blocks):
            x = block(x).tanh()
            if self.how == "view":
                kept[:, number] += x
            else:
                kept[:, number] = x
            kept[:, : number + 1] *= 0.9
            x = kept[:, : number + 1].sum(1)
        return kept.mean(1) + (first if self.how == "kept view" else 0)


@case(ranks=2)
def tensor_of_every_stage_filled_in_by_some() -> None:
    for how in ("whole", "view", "input"):
        check(partial(Fills, how), rows, partitions=2)
        pipe.shutdown()


@case(ranks=2)
def view_of_such_a_tensor_kept_from_the_start() -> None:
    """Right, or refused: the view is made anew on each stage, and does not see what others write."""
    try:
        check(lambda: Fills("kept view"), rows, partitions=2)
    except pipe.PlanError as error:
        assert "through another view" in str(error), error
