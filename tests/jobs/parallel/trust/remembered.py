"""What modules of other ranks keep from call to call is known where a later step is verified."""

from __future__ import annotations

import io
import random
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout
from operator import is_
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.engine.verify.verify_budget import Extent

from .in_parts import short_of_memory
from .kept import SCHEDULES
from .noted import Chain
from .surroundings import BLOCKS, alone
from .table import begin, case, refused
from .training import check
from .verified import doubled, said_by


class Block(nn.Linear):
    """Keeps an average, and uses it; what it keeps has another form in each kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(4, 4)
        self.kind = kind
        self.mean: Any = torch.zeros(4)
        self.also = self.mean  # the same under another name
        self.made: Any = None
        self.rows = [torch.zeros(4)]
        self.table = {"mean": torch.zeros(4), "more": {"count": 0}}
        self.own = SimpleNamespace(mean=torch.zeros(4), started=False)
        self.recent: deque[float] = deque(maxlen=3)
        self.state: Any = None
        self.by_length: dict[int, torch.Tensor] = {}
        self.register_buffer("shift", torch.zeros(4))
        self.calls, self.started = 0, False
        self.dice, self.generator = random.Random(3), torch.Generator().manual_seed(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - getattr(self, "keep_" + self.kind)(x.detach().mean(0)))

    def keep_in_place(self, now: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(now, alpha=0.1)
        return self.also

    def keep_assigned(self, now: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * now
        return self.mean

    def keep_made_by_the_first_call(self, now: torch.Tensor) -> torch.Tensor:
        self.made = 0.5 * now if self.made is None else 0.9 * self.made + 0.1 * now
        return self.made

    def keep_new_attribute(self, now: torch.Tensor) -> torch.Tensor:
        self.fresh = 0.9 * getattr(self, "fresh", 0.5 * now) + 0.1 * now
        return self.fresh

    def keep_containers(self, now: torch.Tensor) -> torch.Tensor:
        self.rows[0] = 0.9 * self.rows[0] + 0.1 * now
        self.table["mean"] = 0.9 * self.table["mean"] + 0.1 * self.rows[0]  # type: ignore[operator]
        self.table["more"]["count"] += 1  # type: ignore[index,operator]
        return self.table["mean"] / self.table["more"]["count"]  # type: ignore[index,operator,return-value]

    def keep_object(self, now: torch.Tensor) -> torch.Tensor:
        self.own.mean = 0.9 * self.own.mean + 0.1 * now if self.own.started else 0.5 * now
        self.own.started = True
        return self.own.mean

    def keep_numbers(self, now: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.recent.append(1.0 / self.calls)
        if not self.started:
            self.started = True
            return now
        return now * sum(self.recent)

    def keep_generators(self, now: torch.Tensor) -> torch.Tensor:
        return now * self.dice.random() + torch.rand(4, generator=self.generator)

    def keep_tuple(self, now: torch.Tensor) -> torch.Tensor:
        hidden, seen = self.state if self.state is not None else (0.5 * now, torch.zeros(()))
        self.state = 0.9 * hidden + 0.1 * now, seen + 1
        return self.state[0] / self.state[1]

    def keep_buffers_once(self, now: torch.Tensor) -> torch.Tensor:
        """As ActNorm does."""
        if not self.started:
            self.shift.copy_(now)
            self.started = True
        return 0.5 * self.shift  # type: ignore[no-any-return]

    def keep_table_by_key(self, now: torch.Tensor) -> torch.Tensor:
        """Made once, and kept."""
        if len(now) not in self.by_length:
            self.by_length[len(now)] = torch.arange(4.0)
        return now + 0.1 * self.by_length[len(now)]


KINDS = sorted(name[5:] for name in vars(Block) if name.startswith("keep_"))


class Keeping(Chain):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(kind) for _ in range(4))


class Scaled(Chain):
    """What comes after the last module keeps an average: the last rank alone computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.size = torch.ones(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        self.size = 0.9 * self.size + 0.1 * out.detach().abs().mean()
        return out / self.size


def every_step_is_verified(build: Callable[[], nn.Module], **settings: Any) -> None:
    with redirect_stdout(io.StringIO()) as said:
        check(build, alone, parts=4, partitions=2, atomic=BLOCKS, verify_steps=1, **settings)
    pipe.shutdown()
    assert "not verified" not in said.getvalue(), said.getvalue()


def keeps(kind: str) -> Callable[[], None]:
    return lambda: every_step_is_verified(lambda: Keeping(kind))


case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_assigned")(keeps("assigned"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_buffers_once")(keeps("buffers_once"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_containers")(keeps("containers"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_generators")(keeps("generators"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_in_place")(keeps("in_place"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_made_by_the_first_call")(
    keeps("made_by_the_first_call")
)
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_new_attribute")(keeps("new_attribute"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_numbers")(keeps("numbers"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_object")(keeps("object"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_table_by_key")(keeps("table_by_key"))
case(ranks=2, name="every_step_is_verified_with_what_other_ranks_keep_tuple")(keeps("tuple"))


@case(ranks=2)
def every_step_is_verified_with_what_the_last_rank_keeps_between_modules() -> None:
    every_step_is_verified(Scaled)


@case(ranks=2, heavy=True)
def several_stages_on_a_rank_keep_things_too() -> None:
    for schedule in SCHEDULES[1:]:
        for kind in ("in_place", "containers", "numbers"):
            every_step_is_verified(lambda kind=kind: Keeping(kind), **schedule)
        every_step_is_verified(Scaled, **schedule)


@case(ranks=2)
def one_microbatch_is_verified_with_what_other_ranks_keep() -> None:
    _kept_within(Extent.ONE)


@case(ranks=2, heavy=True)
def one_microbatch_is_verified_in_parts_with_what_other_ranks_keep() -> None:
    _kept_within(Extent.IN_PARTS)


def _kept_within(extent: Extent) -> None:
    with short_of_memory(extent):
        for kind in KINDS:
            every_step_is_verified(lambda kind=kind: Keeping(kind))


@case(ranks=2)
def verifying_with_what_other_ranks_keep_leaves_no_trace_and_finds_defects() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS, verify_steps=2)
    torch.manual_seed(3)
    module = Keeping("containers")
    model = pipe.PipelineModel(module)
    said_by(2, model)
    away: Any = module.blocks[3 if pipe.pp_rank() == 0 else 0]
    held, count = (away.table, away.table["more"], away.rows), away.table["more"]["count"]
    said_by(1, model)
    assert all(map(is_, held, (away.table, away.table["more"], away.rows))) and away.table["more"]["count"] == count
    said_by(1, model)
    with doubled():
        refused(lambda: said_by(1, model), "step 5 is not right", "2 times")
