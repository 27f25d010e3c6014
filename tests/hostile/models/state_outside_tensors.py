"""State that is in no tensor: numbers, lists, dictionaries, closures, caches, classes."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hostile.table import Spec, model, rows


class Block(nn.Module):
    """A layer that most models here are made of; two units when it is opened."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.line(x)).tanh()


class Deep(nn.Module):
    """Eight blocks and a head."""

    block: Any = Block

    def __init__(self, count: int = 8, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block() for _ in range(count))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def forward_of_deep(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Puts a `Deep` with another forward into the table, under the forward's name."""

    def build() -> Spec:
        return Spec(type("Net", (Deep,), {"forward": forward})(), rows())

    build.__module__, build.__name__ = forward.__module__, forward.__name__
    model(build)
    return forward


@model
def temperature_cools_with_calls() -> Spec:
    class Cooling(Block):
        temperature = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.temperature = max(0.5, self.temperature * 0.95)
            return super().forward(x / self.temperature)

    class Net(Deep):
        block = Cooling

    return Spec(Net(), rows())


@model
def history_of_means_in_a_list() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.history: list[float] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.history.append(float(x.mean()))
            scale = 1 + 0.1 * len(self.history)
            return super().forward(x) / scale

    return Spec(Net(), rows())


@model
def cycle_of_an_iterator() -> Spec:
    """itertools.cycle decides which gain is next."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.gains = itertools.cycle([1.0, 0.5, 2.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * next(self.gains)

    return Spec(Net(), rows(), evaluate=None)


@model
def generator_function_held_by_the_model() -> Spec:
    def warmed() -> Any:
        gain = 0.5
        while True:
            yield gain
            gain = min(1.0, gain + 0.125)

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.warm = warmed()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * next(self.warm))

    return Spec(Net(), rows(), evaluate=None)


@model
def closure_counts_calls() -> Spec:
    def counting() -> Any:
        count = 0

        def call() -> int:
            nonlocal count
            count += 1
            return count

        return call

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.count = counting()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) / (1 + 0.01 * self.count())

    return Spec(Net(), rows(), evaluate=None)


@model
def counter_of_the_class() -> Spec:
    class Counted(Block):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            return super().forward(x)

    class Net(Deep):
        block = Counted

    return Spec(Net(), rows())


@model
def tensor_cached_by_shape() -> Spec:
    """Position tables, made when a length is seen for the first time."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[int, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            width = x.shape[-1]
            if width not in self.cache:
                self.cache[width] = torch.linspace(0, 1, width)
            return super().forward(x + self.cache[width])

    return Spec(Net(), rows())


@model
def lru_cached_function_makes_masks() -> Spec:
    import functools

    @functools.lru_cache(maxsize=4)
    def mask(width: int) -> torch.Tensor:
        return (torch.arange(width) % 2).float()

    class Masked(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * mask(x.shape[-1]))

    class Net(Deep):
        block = Masked

    return Spec(Net(), rows())


@model
def counter_object_of_collections() -> Spec:
    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.seen: collections.Counter[str] = collections.Counter()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                self.seen[f"block {number}"] += 1
                x = block(x) * (1 + 0.01 * self.seen["block 0"])
            return self.head(x)

    return Spec(Net(), rows(), evaluate=None)


@model
def last_output_kept_for_the_next_microbatch() -> Spec:
    """Memory of a detached result: microbatch n reads that of n - 1."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("memory", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.blocks[0](x) + self.memory
            if self.training:
                with torch.no_grad():
                    self.memory.copy_(x.mean(0))
            for block in self.blocks[1:]:
                x = block(x)
            return self.head(x)

    return Spec(Net(), rows())


@model
def plain_tensor_attribute_accumulates() -> Spec:
    """A statistic that is neither buffer nor parameter, changed in place."""

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.total += x.detach().mean(0)
            return super().forward(x - 0.1 * self.total)

    return Spec(Net(), rows())


@model
def global_step_of_a_module_level_dictionary() -> Spec:
    state = {"step": 0}

    class Net(Deep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                state["step"] += 1
            return super().forward(x) * (0.9 ** state["step"])

    return Spec(Net(), rows())


@model
def own_config_object_changes() -> Spec:
    class Config:
        def __init__(self) -> None:
            self.scale, self.calls = 1.0, 0

    class Net(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.config = Config()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.config.calls += 1
                self.config.scale *= 0.97
            return super().forward(x) * self.config.scale

    return Spec(Net(), rows())
