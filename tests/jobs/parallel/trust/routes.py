"""Microbatches of one shape that go several ways through the model, because of values that every rank has."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe

from .table import begin, case, refused
from .training import check, squared


class Masked(nn.Module):
    """As transformers' models do it: a mask without padding is left out."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(blocks))
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask: torch.Tensor | None = x != 0
        if mask is not None and mask.all():
            mask = None
        h = self.table(x)
        for block in self.blocks:
            h = h + block(h).tanh() if mask is None else h + block(h * mask[..., None]).tanh()
        return self.last(h.mean(1))


def padded(rows: str) -> torch.Tensor:
    """One row for each letter: "p" for padding in it."""
    generator = torch.Generator().manual_seed(len(rows) + rows.count("p"))
    x = torch.randint(1, 9, (len(rows), 5), generator=generator)
    for number, letter in enumerate(rows):
        if letter == "p":
            x[number, 3:] = 0
    return x


def some_padding(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (padded(["ffpf", "ffff", "pppf", "fpff"][(number + replica) % 4] * 2),)


@case(ranks=2)
def padding_in_some_microbatches() -> None:
    check(Masked, some_padding, parts=4, steps=4, partitions=2)


@case(ranks=4)
def padding_in_some_microbatches_of_some_replicas() -> None:
    check(Masked, some_padding, parts=2, steps=4, partitions=2)


@case(ranks=4)
def padding_with_four_stages() -> None:
    check(Masked, some_padding, parts=4, steps=4, partitions=4)


@case(ranks=2)
def padding_with_virtual_stages() -> None:
    options = {"virtual_stages": 2, "pipeline": "interleaved1f1b"}
    check(lambda: Masked(8), some_padding, parts=4, steps=4, partitions=2, **options)


@case(ranks=2)
def padding_with_a_backward_in_two_parts() -> None:
    check(Masked, some_padding, parts=4, steps=4, partitions=2, pipeline="interleavedzerobubble")


@case(ranks=2)
def padding_first_in_a_late_step() -> None:
    check(Masked, lambda number, _: (padded("ffff" if number < 3 else "fffp"),), parts=4, steps=5, partitions=2)


class Looping(nn.Module):
    """The largest number of the input says how often a block runs, the smallest whether a dropout does."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.last = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x)
        for _ in range(int(x.max())):
            h = h + self.middle(h).tanh()
        return self.last(h.mean(1))


@case(ranks=2)
def loop_count_from_the_input() -> None:
    counts = [[1, 2, 2, 1], [3, 1, 2, 2], [2, 2, 2, 2]]
    check(Looping, lambda number, _: (torch.tensor(counts[number])[:, None],), parts=4, partitions=2)


class Skipping(nn.Module):
    """One way sends another value along, and what decides comes after the last module."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)
        b = self.b(a)
        c = self.c(b)
        return c + a if x.sum() > 0 else c


def signs(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]).expand(4, 4) * (1 if number else -1),)


@case(ranks=2)
def other_values_between_the_stages() -> None:
    check(Skipping, signs, partitions=2, steps=2, parts=4)


@case(ranks=2)
def other_values_between_the_stages_with_a_backward_in_two_parts() -> None:
    check(Skipping, signs, partitions=2, steps=2, parts=4, pipeline="interleavedzerobubble")


@case(ranks=4)
def other_values_between_four_stages() -> None:
    check(Masked, some_padding, parts=4, steps=2, partitions=4, pipeline="simple")


@case(ranks=2)
def ranks_that_walk_through_a_set_in_other_orders_are_told_why() -> None:
    class Unordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleDict({name: nn.Linear(4, 4) for name in "abcdefghijklmnop"})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for name in set(self.blocks):
                x = self.blocks[name](x).tanh()
            return x

    import warnings

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        begin(partitions=2, microbatches=2)
    hashes: list[Any] = [None, None]
    torch.distributed.all_gather_object(hashes, hash("a"))
    if pipe.rank() == 0 and len(set(hashes)) > 1:
        assert any("PYTHONHASHSEED=0" in str(one.message) for one in said), said
    model = pipe.PipelineModel(Unordered())
    step: Any = pipe.step(squared)
    if len(set(hashes)) > 1:  # as with torchrun, where nobody sees to one seed for all
        refused(lambda: step(model, torch.ones(4, 4)), "PYTHONHASHSEED=0")
