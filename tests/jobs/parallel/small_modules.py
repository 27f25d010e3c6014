"""Modules that tests in one process record, plan and split."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import nn


class Between(nn.Module):
    """Two Linears, and between them something that works with parts, or needs the whole."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.up, self.down, self.whole = nn.Linear(8, 32), nn.Linear(32, 8), whole
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = torch.relu(self.up(x))
        if self.whole:
            between = between.cumsum(-1)
        return self.out(torch.tanh(self.down(between)))


class Crossed(nn.Module):
    """Queries from one input, keys and values from another one; the parameter of all three is split."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.attention(x, memory, memory)[0] + x


class Changed(nn.Module):
    """Parameters that get into a value by changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.first, self.scale = nn.Linear(8, 8), nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(3, 8))
        self.pair, self.rows = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.line(x)
        x[0] = self.first
        x.mul_(self.scale)
        x[:, 2:4].add_(self.pair)
        return torch.relu_(x) + torch.cat([self.rows[:1], self.rows[1:]])


class Holder(nn.Module):
    """Stands for the model that a script sees."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.handler = module, None

    def attach(self, handler: Any) -> None:
        """Where its backward goes."""
        self.handler = handler

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        self.handler.backward([loss])


class Same(nn.Module):
    """Ends with operations that may return what they were given, as the `logits.float()` of language models does."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:  # type: ignore[attr-defined]
            x = block(x).contiguous()
        return x.float().to("cpu")


class Probe(nn.Module):
    """A layer that notes how many steps of autograd lie behind its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen = array("d")  # planning puts lists and plain numbers back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waiting = [x.grad_fn] if x.grad_fn is not None else []
        nodes = set(waiting)
        while waiting:
            for node, _ in waiting.pop().next_functions:
                if node is not None and node not in nodes:
                    nodes.add(node)
                    waiting.append(node)
        self.seen.append(len(nodes))
        return self.linear(x)


class Odd(nn.Module):
    """Glue that changes views, returns what it was given, and reads far results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(16, 16) for _ in range(4))
        self.same, self.inner = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.a(x)
        kept = self.same(first)
        assert kept is first
        half = first.view(-1, 2, 8)[:, 0]
        half.mul_(2)
        second = self.b(first)
        second[:, 3] += 1
        third = self.inner(self.c(second + first))
        third.add_(kept)
        return self.d(third.unflatten(1, (2, 8)).flatten(1)) + self.d(kept)


class Shown(Holder):
    """Passes all but `backward` on to the model."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Remembering(nn.Module):
    """Makes a mask for each length once, and keeps it; or counts what it has seen in a buffer."""

    def __init__(self, *, masks: bool = False, counts: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.masks, self.counts = masks, counts
        self.made: dict[tuple[int], torch.Tensor] = {}
        self.calls = array("d")  # planning puts lists and plain numbers back
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        self.calls.append(1)
        if self.masks and (length,) not in self.made:
            self.made[(length,)] = torch.ones(length, 4).tril()
        if self.counts:
            self.seen.add_(1)
        h = self.first(x)
        return self.second(h * self.made[(length,)] if self.masks else h)


class Scaled(nn.Module):
    """Between columns and rows, a parameter of all features: a rank of a group would have a part of its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(8, 16), nn.Linear(16, 8), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x) * self.scale))


class Twice(nn.Module):
    """One module is called twice, by two stages perhaps."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(torch.relu(self.one(x))))


class ReadBetween(nn.Module):
    """A parameter that no module reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.place = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.relu(self.one(x) + self.place))


class Computed(nn.Module):
    """What is computed between modules is read by two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lines[0](x)
        y = x.sin()
        x = self.lines[1](y)
        return self.lines[2](x * y)
