"""Pairs in stages that are divided among tensor groups: inside a unit of the plan nothing is gathered between two Linears,
and what a unit gives is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.engine.tensor import kinds
from trainshed.parallel.engine.tensor import sharded_tensor as part
from trainshed.parallel.plan import planner

from .pairs import Heads, Mlp, rows
from .table import case, long_case, refused
from .tensor import Build, begun
from .tensor_stages import TWO_BY_TWO, stages_with_dropout
from .training import adam, check, sgd, slow_sgd, squared

BLOCKS = tuple(f"blocks.{number}" for number in range(4))


@contextmanager
def units(*names: str) -> Iterator[None]:
    """The plan has these units, whatever the model's modules take."""
    with patch.object(planner, "choose_units", lambda *_: set(names)):
        yield


class Blocks(nn.Module):
    """Attention and MLPs, one after the other."""

    def __init__(self, between: Any = lambda m, x: F.gelu(x) * m.scale, width: int = 12) -> None:
        super().__init__()
        parts = [Mlp(between, width) if number % 2 else Heads(how="torch") for number in range(4)]
        self.blocks, self.norm = nn.ModuleList(parts), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


OPENED = "blocks.0.k blocks.0.q blocks.0.v blocks.1.up blocks.2.k blocks.2.q blocks.2.v blocks.3.up"
CLOSED = "blocks.0.out blocks.1.down blocks.2.out blocks.3.down"


def trains(
    build: Build = Blocks,
    opened: str = OPENED,
    closed: str = CLOSED,
    of: tuple[str, ...] = (*BLOCKS, "norm"),
    **options: Any,
) -> None:
    """Trains as one process does with these units; these modules make pairs."""
    with units(*of):
        model = check(build, rows, **{**TWO_BY_TWO, **options})
    found = tuple(" ".join(sorted(names)) for names in model.engine._holding.parts.division.in_pairs())
    assert found == (opened, closed), found
    pipe.shutdown()


@case(ranks=4)
def pairs_in_units_of_stages() -> None:
    trains(verify_steps=1)
    trains(optimizer=slow_sgd, placement_strategy="spread")
    trains(partial(Blocks, lambda m, x: x.tanh() * m.one + m.scale, 7), optimizer=slow_sgd)


@case(ranks=4, heavy=True)
def pairs_in_stages_under_each_schedule() -> None:
    for pipeline, stages in (("simple", 1), ("interleaved1f1b", 2), ("interleavedzerobubble", 2), ("zbvzerobubble", 2)):
        trains(optimizer=slow_sgd, pipeline=pipeline, virtual_stages=stages)


@case(ranks=4)
def pairs_across_units_are_none() -> None:
    """Between them values may be sent to another stage."""
    mlp = {"blocks.1", "blocks.3"}
    inner = tuple(f"blocks.{block}.{name}" for block in (0, 2) for name in ("q", "k", "v", "out"))
    trains(of=(*inner, *mlp, "norm"), opened="blocks.1.up blocks.3.up", closed="blocks.1.down blocks.3.down")


@dataclass
class Passed:
    found: Any


class Giving(nn.Module):
    """Gives its first Linear's features beside the result, in some form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.up, self.down, self.more, self.form = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 12), form
        self.last = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> Any:
        inner = self.up(x).tanh()
        x = x + self.down(inner)
        x = x + self.last(self.more(x).tanh())
        forms = {
            "pair": (x, inner),
            "named": {"x": x, "inner": inner},
            "data": Passed([x, inner]),
            "object": SimpleNamespace(x=x, inner=inner),
        }
        return forms[self.form]


class Passing(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.first, self.second, self.form = Giving(form), Mlp(lambda m, x: x.tanh()), form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x)
        if self.form == "pair":
            x, inner = found
        elif self.form == "data":
            x, inner = found.found
        else:
            x, inner = (found["x"], found["inner"]) if self.form == "named" else (found.x, found.inner)
        return self.second(x) * inner.mean()


@case(ranks=4, heavy=True)
def results_in_parts_that_leave_a_unit_are_whole() -> None:
    for form in ("pair", "named", "data", "object"):
        trains(partial(Passing, form), "first.more second.up", "first.last second.down", ("first", "second"))


class Turning(Blocks):
    """Goes another way in later steps."""

    later = False

    def __init__(self) -> None:
        super().__init__(lambda _m, x: x * x.softmax(-1) + x.max() if Turning.later else x.tanh())


@case(ranks=4, heavy=True)
def ways_of_later_steps_in_units() -> None:
    def later(number: int, _module: Any) -> None:
        Turning.later = number > 0

    for verified in (0, 1):
        trains(Turning, between=later, optimizer=slow_sgd, verify_steps=verified)


@case(ranks=4, heavy=True)
def units_in_pairs_that_run_again() -> None:
    trains(activation_checkpointing="all")

    class Inside(Mlp):
        again = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + checkpoint(super().forward, x * self.one, use_reentrant=self.again)

    class Inner(Blocks):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Inside(lambda m, x: x.tanh() * m.scale) for _ in range(4))

    opened, closed = (" ".join(f"{name}.{own}" for name in BLOCKS) for own in ("up", "down"))
    trains(Inner, opened, closed, optimizer=slow_sgd)


@case(ranks=4)
def forwards_of_pairs_in_stages_without_gradients() -> None:
    with units(*BLOCKS, "norm"):
        model, update, _ = begun(Blocks, adam, **TWO_BY_TWO)
        pipe.step(squared)(model, *rows(0, 0))
        update.step()
    alone = Blocks()
    alone.load_state_dict(model.state_dict())
    for x in (rows(1, 0), (rows(1, 0)[0][:3],)):  # the second is recorded anew
        with torch.no_grad():
            torch.testing.assert_close(model(*x), alone(*x))


class Language(nn.Module):
    """A GPT of blocks whose attention has q, k and v of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places, self.drop = nn.Embedding(53, 8), nn.Embedding(5, 8), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(
            Mlp(lambda _m, x: F.dropout(F.gelu(x), 0.1)) if number % 2 else Heads() for number in range(4)
        )
        self.head = nn.Linear(8, 53, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.drop(self.table(input_ids[:, :5]) + self.places(torch.arange(5)))
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(loss=F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), labels[:, 1:5].flatten()))


@long_case(ranks=4)
def pairs_in_stages_with_dropout_go_on_with_other_degrees(steps: int) -> None:
    with units("table", "places", "drop", *BLOCKS, "head"):
        stages_with_dropout(Language, str(ranks.folder() / "stage-pairs" / f"gpt-{steps}"), steps)


# Defects that are planted one at a time: each is found before the first optimizer step.


@case(ranks=4)
def wrong_sums_of_pairs_in_stages_are_found() -> None:
    wide = kinds._with_bias
    for module, name, wrong in (
        (part, "entering", lambda x, _mesh: x),
        (kinds, "_with_bias", lambda found, bias, mesh: wide(wide(found, bias, mesh), bias, mesh)),
        (kinds, "entering", lambda x, _mesh: x),
    ):
        with units(*BLOCKS, "norm"), patch.object(module, name, wrong):
            model, _, _ = begun(partial(Blocks, lambda m, x: x.tanh() * m.one.exp()), sgd, **TWO_BY_TWO)
            refused(lambda model=model: pipe.step(squared)(model, *rows(0, 0)), "is not right")
        pipe.shutdown()
