"""Plain tensors that a model keeps in attributes and that code between its blocks changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

import trainshed.parallel as pipe

from .noted import Chain
from .surroundings import BLOCKS, alone
from .table import case
from .training import check

SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"virtual_stages": 2, "pipeline": "interleaved1f1b"},
    {"virtual_stages": 2, "pipeline": "interleavedzerobubble"},
)


class Accumulating(Chain):
    """In place, at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(4)
        self.also = self.total  # the same under another name
        self.held, self.own = {"mean": torch.zeros(4), "rows": [torch.zeros(())]}, SimpleNamespace(seen=torch.zeros(1))
        self.buffered = [torch.ones(4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.detach().mean(0)
        self.held["mean"].mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.own.seen += 1
        self.buffered[0] *= 1.01
        return super().forward((x - 0.1 * self.also - self.held["mean"]) / self.own.seen.sqrt() * self.buffered[0])


class Assigning(Chain):
    """By another tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().forward(x - self.mean)


class Counting(Chain):
    """At the end, to be read at the next start."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.last = torch.ones(1), torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward((x + self.last) / self.count.sqrt())
        self.count += 1
        self.last = x.detach().mean(0)
        return out * self.count


@case(ranks=2)
def tensors_in_attributes_change_on_every_stage() -> None:
    for build in (Accumulating, Assigning, Counting):
        for schedule in SCHEDULES:
            for verify in ("first", "off"):
                check(build, alone, parts=4, partitions=2, atomic=BLOCKS, verify=verify, **schedule)
                pipe.shutdown()


@case(ranks=4)
def tensors_in_attributes_change_on_every_stage_of_four() -> None:
    for build in (Accumulating, Counting):
        check(build, alone, parts=4, partitions=4, atomic=BLOCKS, verify="off")
        pipe.shutdown()


class Toggling(torch.nn.Linear):
    """A buffer that is there in every second microbatch."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("seen", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.seen is None:
            self.seen = x.detach().mean(0)
        else:
            x, self.seen = x + 0.1 * self.seen, None
        return super().forward(x)


class Averaging(torch.nn.Linear):
    """A buffer that the first forward makes."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = x.detach().mean(0)
        self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        return super().forward(x - self.mean)


class Toggled(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Toggling() for _ in range(4))


class Averaged(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Averaging() for _ in range(4))


class AveragedAround(Chain):
    """The same between the blocks: the first forward goes another way than all later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = x.detach().mean(0)
        self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        return super().forward(x - self.mean)


@case(ranks=2)
def buffers_that_a_forward_makes() -> None:
    for build in (Averaged, Toggled):
        for schedule in (*SCHEDULES, {"verify": "changes", "verify_steps": 1}):
            check(build, alone, parts=4, partitions=2, atomic=BLOCKS, **schedule)
            pipe.shutdown()
    words = "another error than its own"
    try:
        check(AveragedAround, alone, parts=4, partitions=2, atomic=BLOCKS)
    except pipe.PipelineError as error:
        words = str(error)
    assert "must be inside one module" in words, words


@case(ranks=4)
def buffers_that_a_forward_makes_on_four_ranks() -> None:
    for build in (Averaged, Toggled):
        check(build, alone, parts=4, steps=2, partitions=4, atomic=BLOCKS)
        pipe.shutdown()
