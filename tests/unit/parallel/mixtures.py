"""Mixtures of experts for tests: some whose parts add up, and some that need all of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

COUNT, WIDTH = 5, 6


class Packed(nn.Module):
    """Experts by hand, whose sizes make no equal parts."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__()
        self.num_experts = count
        self.up = nn.Parameter(torch.randn(count, 9, WIDTH) / 3)
        self.down = nn.Parameter(torch.randn(count, WIDTH, 9) / 3)
        self.bias = nn.Parameter(torch.randn(count, WIDTH) / 3)

    def one(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return F.linear(F.linear(x, self.up[number]).tanh(), self.down[number], self.bias[number])

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for number in range(self.num_experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            found = found.index_add(0, rows, self.one(x[rows], number) * weights[rows, choice, None])
        return found


class Cast(Packed):
    """Gives what came in, whatever it was computed in."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for number in range(self.num_experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            part = self.one(x[rows], number) * weights[rows, choice, None]
            found = found.index_add(0, rows, part.to(x.dtype))
        return found


class Dropping(Packed):
    """An expert takes no more than its share, and a half."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found, room = torch.zeros_like(x), 1.5 * chosen.numel() / self.num_experts
        for number in range(self.num_experts):
            rows, choice = (chosen == number).nonzero(as_tuple=True)
            rows, choice = rows[: int(room + 1)], choice[: int(room + 1)]
            found = found.index_add(0, rows, self.one(x[rows], number) * weights[rows, choice, None])
        return found


class Normed(Packed):
    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return super().forward(x, chosen, weights / weights.sum(-1, keepdim=True))


class Residual(Packed):
    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x, chosen, weights)


class Dropout(Packed):
    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(x, chosen, weights), 0.1, self.training)


class Counting(Packed):
    """Keeps its load for a loss outside."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.load = torch.bincount(chosen.flatten(), minlength=self.num_experts)
        return super().forward(x, chosen, weights)


class Fixed(Packed):
    """Knows the number of its experts by heart."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        dense = torch.zeros(len(x), COUNT).scatter(1, chosen, weights)
        every = torch.stack([self.one(x, number) for number in range(COUNT)], 1)
        return (dense[..., None] * every).sum(1)
