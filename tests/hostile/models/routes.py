"""Which way a forward takes: experts, gates, recursion, early exits, depth by input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hostile.models.state_outside_tensors import Block, Deep
from hostile.table import Spec, model, rows, tokens


class TopOne(nn.Module):
    """Each row goes to one expert, by index_add."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(8, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            which = (chosen == number).nonzero().squeeze(1)
            if len(which):
                out = out.index_add(0, which, expert(x[which]) * weights[which, None])
        return x + out


@model
def experts_top_one() -> Spec:
    class Net(Deep):
        block = TopOne

    return Spec(Net(), rows())


@model
def experts_by_expert_choice() -> Spec:
    """Experts choose rows: no expert goes without."""

    class Choice(TopOne):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.gate(x).softmax(-1)
            best, rows_ = scores.topk(1, dim=0)
            out = x.clone()
            for number, expert in enumerate(self.experts):
                out[rows_[:, number]] = out[rows_[:, number]] + best[:, number, None] * expert(x[rows_[:, number]])
            return out

    class Net(Deep):
        block = Choice

    return Spec(Net(), rows())


@model
def experts_with_balance_loss_in_a_list() -> Spec:
    """Each block appends its loss to one list of the root."""

    class Balanced(TopOne):
        losses: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.losses.append(self.gate(x).softmax(-1).mean(0).square().sum())
            return super().forward(x)

    class Net(Deep):
        block = Balanced

        def __init__(self) -> None:
            super().__init__()
            self.losses: list[torch.Tensor] = []
            for block in self.blocks:
                block.losses = self.losses

        def forward(self, x: torch.Tensor) -> Any:
            self.losses.clear()
            return super().forward(x), torch.stack(self.losses).sum()

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits, balance = model(x)
        loss = F.cross_entropy(logits, y) + 0.1 * balance
        model.backward(loss)
        return loss, balance

    return Spec(Net(), rows(), step, evaluate=None)


@model
def soft_mixture_with_einsum() -> Spec:
    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.weight = nn.Linear(8, 3), nn.Parameter(torch.randn(3, 8, 8) / 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.einsum("be,eio,bi->bo", self.gate(x).softmax(-1), self.weight, x)

    class Net(Deep):
        block = Soft

    return Spec(Net(), rows())


@model
def tree_by_recursion() -> Spec:
    """A binary tree of modules, walked by recursion in forward."""

    class Node(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.line = nn.Linear(8, 8)
            if depth:
                self.left, self.right = Node(depth - 1), Node(depth - 1)
            self.depth = depth

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.line(x).tanh()
            return x + self.left(x) - self.right(x) if self.depth else x

    return Spec(nn.Sequential(Node(3), nn.Linear(8, 5)), rows())


@model
def module_calls_itself() -> Spec:
    """Recursion over one module: weights shared at each level."""

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
            x = self.line(x).tanh()
            return x + self(x * 0.5, depth - 1) if depth else x

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.again = Self()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.again(x))

    return Spec(Net(), rows())


@model
def early_exits_all_in_the_loss() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.exits = nn.ModuleList(nn.Linear(8, 5) for _ in range(8))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            found = []
            for block, out in zip(self.blocks, self.exits, strict=True):
                x = block(x)
                found.append(out(x))
            return [*found, self.head(x)]

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = [F.cross_entropy(out, y) for out in model(x)]
        model.backward(sum(losses) / len(losses))
        return losses

    return Spec(Net(), rows(), step)


@model
def depth_by_an_integer_in_the_batch() -> Spec:
    """How many blocks run is an entry of the batch: data, not code."""

    class Net(Deep):
        def forward(self, x: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
            for block in self.blocks[: int(depth[0])]:
                x = block(x)
            return self.head(x)

    make = rows()

    def batch(number: int) -> Any:
        x, y = make(number)
        return x, torch.tensor([8, 8, 6, 6, 8, 8, 7, 7]), y

    def step(model: Any, x: torch.Tensor, depth: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x, depth), y)
        model.backward(loss)
        return loss

    return Spec(Net(), batch, step)


@model
def task_heads_chosen_by_name() -> Spec:
    """A ModuleDict of heads; one task a step, by a string in the batch."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleDict({"red": nn.Linear(8, 5), "blue": nn.Linear(8, 5)})

        def forward(self, x: torch.Tensor, task: str) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return self.heads[task](x)

    def step(model: Any, x: torch.Tensor, task: str, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x, task), y)
        model.backward(loss)
        return loss

    make = rows()
    return Spec(Net(), lambda n: (make(n)[0], "red" if n % 2 else "blue", make(n)[1]), step)


@model
def hard_gate_straight_through() -> Spec:
    class Gate(Block):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            soft = self.gate(x).sigmoid()
            hard = (soft > 0.5).float() + soft - soft.detach()
            return hard * super().forward(x) + (1 - hard) * x

    class Net(Deep):
        block = Gate

    return Spec(Net(), rows())


@model
def halting_by_mean_probability() -> Spec:
    """Adaptive computation: a block repeats inside one module until it is sure."""

    class Ponder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.halt = nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left = torch.ones(len(x), 1)
            out = torch.zeros_like(x)
            for _ in range(4):
                x = self.line(x).tanh()
                p = self.halt(x).sigmoid()
                out = out + left * p * x
                left = left * (1 - p)
                if float(left.detach().mean()) < 0.1:
                    break
            return out + left * x

    class Net(Deep):
        block = Ponder

    return Spec(Net(), rows())


@model
def padding_decides_between_kernels() -> Spec:
    """`if mask.all()` in the root, as in every text model."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(20, 8), Deep()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = x != 0
            hidden = self.table(x)
            if mask.all():
                pooled = hidden.mean(1)
            else:
                pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
            return self.body(pooled)

    make = tokens()

    def batch(number: int) -> Any:
        x, y = make(number)
        x = x.clamp_min(1)
        x[number % 3 * 2 :: 4, 3:] = 0
        return x, y

    return Spec(Net(), batch)


@model
def unused_branch_of_parameters() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.ModuleList(Block() for _ in range(3))
            self.alone = nn.Parameter(torch.ones(3))

    return Spec(Net(), rows())
