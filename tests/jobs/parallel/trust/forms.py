"""Forms of code between modules: one tensor twice, what a module holds as its result, and blocks that are left at a cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .surroundings import BLOCKS, alone
from .table import begin, case, refused, same
from .training import check

SCHEDULES: list[dict[str, Any]] = [
    {},
    {"virtual_stages": 2, "pipeline": "interleaved1f1b"},
    {"pipeline": "interleavedzerobubble"},
]


def everywhere(build: Callable[[], nn.Module], *, partitions: int = 2) -> None:
    """Trains with whole blocks as units, with each schedule."""
    for options in SCHEDULES if partitions == 2 else SCHEDULES[:1]:
        check(build, alone, parts=4, partitions=partitions, atomic=BLOCKS, **options)
        pipe.shutdown()


class Chain(nn.Module):
    """Blocks in a row, and a head."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Twice(nn.Module):
    """As MobileBERT does: its result is also the input of another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = x + self.line(x).tanh()
        return y, {"again": y}, [y]


class UsesBoth(Chain):
    """Uses one tensor under three names, and changes it under one of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x, again, kept = block(x)
            x = x + again["again"].mean() + kept[0]
            kept[0].add_(0.5)
            x = x + again["again"]
        return self.last(x)


@case(ranks=2)
def a_block_returns_one_tensor_twice() -> None:
    everywhere(lambda: UsesBoth(Twice))


@case(ranks=4)
def a_block_returns_one_tensor_twice_with_four_stages() -> None:
    everywhere(lambda: UsesBoth(Twice), partitions=4)


class Remembering(nn.Module):
    """Returns in its second call what it has made in its first one."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, again: bool = False) -> Any:
        if again:
            return self.line(x).tanh(), self.kept
        self.kept = self.line(x).tanh()
        return x + self.kept


class Remembered(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        for block in self.blocks:
            new, early = block(x, again=True)
            x = new + early
        return self.last(x)


@case(ranks=2)
def a_block_returns_an_earlier_value() -> None:
    everywhere(lambda: Remembered(Remembering))


class Prompt(nn.Module):
    """Returns a parameter and a buffer of its own, as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.0, 4))
        self.register_buffer("shift", torch.linspace(0.0, 0.1, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.line(x).tanh(), self.scale, self.shift


class Prompted(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x, scale, shift = block(x)
            x = x * scale + shift
        return self.last(x)


@case(ranks=2)
def a_block_returns_its_parameter_and_its_buffer() -> None:
    everywhere(lambda: Prompted(Prompt))


class Guarded(Chain):
    """Every block is in a `try` or a `with` whose end computes."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__(block)
        self.register_buffer("level", torch.zeros(()))
        self.ended = 0

    @contextmanager
    def scaled(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        before = self.last.weight
        try:
            yield x * (1 + self.last.bias)
        finally:
            x.detach().add(1).mul(before.detach().mean())
            self.ended += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            try:
                if number == 1:
                    with self.scaled(x) as inner:
                        x = block(inner)
                else:
                    x = block(x)
            except BaseException:
                x = torch.zeros_like(x).cos()
                raise
            else:
                x = x.sin()
            finally:
                x = x * 1.5
                shift = torch.ones(4).cumsum(0)
        return self.last(x + shift / 4)


@case(ranks=2)
def a_try_or_a_with_ends_with_computations() -> None:
    everywhere(lambda: Guarded(lambda: nn.Linear(4, 4)))


@case(ranks=4)
def a_try_or_a_with_ends_with_computations_with_four_stages() -> None:
    everywhere(lambda: Guarded(lambda: nn.Linear(4, 4)), partitions=4)


class Around(Chain):
    """One `finally` for all blocks computes with what may not be there, and keeps it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            for block in self.blocks:
                x = block(x).tanh()
            return self.last(x)
        finally:
            x = x.detach() - x.mean()
            self.seen = x


@case(ranks=2)
def a_try_around_all_blocks_ends_with_computations() -> None:
    everywhere(lambda: Around(lambda: nn.Linear(4, 4)))


class Swallowing(Chain):
    """Catches everything, and goes on another way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            try:
                x = block(x).tanh()
            except:  # noqa: E722
                x = self.last(x) + 1.0
        return self.last(x)


@case(ranks=2)
def a_bare_except_around_blocks() -> None:
    everywhere(lambda: Swallowing(lambda: nn.Linear(4, 4)))


class Pictures(list):  # type: ignore[type-arg]
    """Images of several sizes: a list that divides itself."""

    def smp_slice(self, parts: int, number: int, _axis: int) -> Pictures:
        """Those of a microbatch."""
        each, more = divmod(len(self), parts)
        start = number * each + min(number, more)
        return Pictures(self[start : start + each + (number < more)])


class OfPictures(nn.Module):
    """Returns losses by name, as detection models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, pictures: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        x = self.last(torch.stack([self.first(one).mean(0) for one in pictures]))
        wanted = torch.stack([one["box"] for one in targets])
        return {"box": (x - wanted).square().mean(), "size": x.abs().mean()}


def detected(model: Any, pictures: Pictures, targets: Pictures) -> dict[str, torch.Tensor]:
    losses: dict[str, torch.Tensor] = model(pictures, targets)
    model.backward(losses["box"] + losses["size"])
    return losses


@case(ranks=2)
def lists_of_images_divide_themselves() -> None:
    for count in (8, 6, 3):
        begin(partitions=2, microbatches=4, verify="changes", atomic=["first", "last"])
        torch.manual_seed(3)
        module = OfPictures()
        whole = copy.deepcopy(module)
        model = pipe.PipelineModel(module)
        pictures = Pictures(torch.randn(2 + number % 3, 4) for number in range(count))
        targets = Pictures({"box": torch.randn(4)} for _ in range(count))
        found = pipe.step(detected)(model, pictures, targets)
        wanted = whole(pictures, targets)
        sum(wanted.values()).backward()
        for name in ("box", "size"):
            torch.testing.assert_close(found[name].reduce_mean(), wanted[name].detach())
        held = {name: parameter.grad for name, parameter in model.local_named_parameters()}
        grads = {name: parameter.grad for name, parameter in whole.named_parameters()}
        same({name: grads[name] for name in held}, held)
        pipe.shutdown()
    begin(partitions=2, microbatches=4)
    model = pipe.PipelineModel(OfPictures())
    plain = [torch.randn(5, 4) for _ in range(4)]
    refused(lambda: pipe.step(detected)(model, plain, [{"box": torch.randn(1)}]), "rows", "smp_slice")
