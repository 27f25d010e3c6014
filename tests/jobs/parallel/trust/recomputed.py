"""Modules that run again in their backward, as few as memory asks for: the results are the same to the last bit."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.stages import preparing, recompute
from trainshed.parallel.tracing import call_routing as gates

from .in_half import BF16, Job
from .offloaded import Counting
from .table import begin, case, refused, same
from .training import adam, check, squared

SIMPLE: dict[str, Any] = {"partitions": 2, "pipeline": "simple"}  # both stages keep both microbatches
ROWS, WIDTH, HIDDEN = 512, 16, 256  # what a block keeps is larger than its parameters


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(F.gelu(self.up(x))))


def blocks(count: int = 6) -> nn.Module:
    return nn.Sequential(*[Block() for _ in range(count)])


@contextmanager
def again() -> Any:
    """Gives the modules that run under a checkpoint of ours, once for each microbatch."""
    seen: list[nn.Module] = []

    def counted(native: Any, *args: Any, **kwargs: Any) -> Any:
        bound = native.args[0] if isinstance(native, partial) else native  # of a unit in which tensors are in parts
        seen.append(bound.__self__)
        return checkpoint(native, *args, **kwargs)

    with patch.object(gates, "checkpoint", counted):
        yield seen


def trained(
    made: Callable[[], nn.Module] = blocks, rows: int = ROWS, steps: int = 3, *, cut: bool | None = None, **settings: Any
) -> tuple[dict[str, torch.Tensor], set[str], str]:
    """The state after some steps, the modules of this rank that ran again, and what was printed.

    cut: whether six blocks are cut in the middle, whatever was measured; None for `blocks` alone.
    """
    cut = made is blocks if cut is None else cut
    pipe.shutdown()
    said = io.StringIO()
    if cut:  # the plan opens what took longer than usual when it was measured
        settings["atomic"] = [str(number) for number in range(6)]
    with redirect_stdout(said), again() as seen:
        begin(microbatches=2, **settings)
        torch.manual_seed(3)
        model = pipe.PipelineModel(made())
        if cut and settings.get("partitions") == 2 and "virtual_stages" not in settings:
            for number, block in enumerate(model.module):
                model.set_partition(block, number * 2 // len(model.module))
        update, run = pipe.PipelineOptimizer(adam(model.parameters())), pipe.step(squared)
        for number in range(steps):
            torch.manual_seed(number)
            x = torch.randn(2 * rows, WIDTH)
            update.zero_grad()
            run(model, x if settings.get("prescaled_batch") else x.roll(pipe.dp_rank(), 0))
            update.step()
        with torch.no_grad():
            model(torch.ones(2, WIDTH))
        names = {id(module): name for name, module in model.module.named_modules()}
        return model.state_dict(), {names[id(one)] for one in seen}, said.getvalue()


@case(ranks=2, heavy=True)
def as_few_run_again_as_memory_asks_for() -> None:
    for settings in ({"partitions": 2}, {"partitions": 1}, SIMPLE):
        expected, none, said = trained(**settings)
        assert not none and "activation checkpointing" not in said
        found, none, said = trained(**settings, activation_checkpointing="auto")
        same(found, expected, 0.0)
        assert not none, none
        leads = pipe.rank() == 0
        assert ("none of " in said) == leads and said.count("activation checkpointing: ") == leads, said
        found, every, _ = trained(**settings, activation_checkpointing="all")
        same(found, expected, 0.0)
        assert len(every) >= 3, every
        found, some, said = trained(**settings, activation_checkpointing="auto", memory_limit=5)
        same(found, expected, 0.0)
        if "pipeline" not in settings and pipe.pp_rank() == 1:  # it keeps one microbatch, where the first stage keeps two
            assert not some, some
        else:
            assert some and some < every, (some, every)
        assert ("modules run again (" in said and "too much" not in said) == leads, said


@case(ranks=2)
def a_plan_may_count_on_modules_that_run_again() -> None:
    settings = {**SIMPLE, "memory_limit": 4}
    refused(lambda: trained(**settings), "no partition keeps every stage below 4 MiB")
    _, some, _ = trained(**settings, activation_checkpointing="auto")
    assert some


@case(ranks=2)
def where_all_is_not_enough_it_says_so() -> None:
    expected, *_ = trained()
    found, every, said = trained(activation_checkpointing="auto", memory_limit=1)
    same(found, expected, 0.0)
    assert len(every) >= 3 and ("still too much" in said) == (pipe.rank() == 0), said


@case(ranks=2)
def longer_batches_are_looked_at_by_themselves() -> None:
    for wanted in ("off", "auto"):
        pipe.shutdown()
        options = {"atomic": [str(number) for number in range(6)], "memory_limit": 5 if wanted == "auto" else 0}
        begin(microbatches=2, **SIMPLE, activation_checkpointing=wanted, **options)
        torch.manual_seed(3)
        model = pipe.PipelineModel(blocks())
        for number, block in enumerate(model.module):
            model.set_partition(block, number // 3)
        update, run = pipe.PipelineOptimizer(adam(model.parameters())), pipe.step(squared)
        counts = []
        for rows in (64, 512, 64):
            with again() as seen:
                torch.manual_seed(rows)
                update.zero_grad()
                run(model, torch.randn(2 * rows, WIDTH))
                update.step()
            counts.append(len(seen))
        if wanted == "off":
            expected = model.state_dict()
            assert counts == [0, 0, 0]
    same(model.state_dict(), expected, 0.0)
    assert counts[0] == counts[2] == 0 < counts[1], counts


class Two(nn.Module):
    """Gives a tuple and a dictionary, and takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)

    def forward(self, x: Any, more: dict[str, torch.Tensor] | None = None) -> Any:
        found = self.drop(self.line(x).tanh())
        return (found, {"kept": x * 2, **({"was": more["kept"]} if more else {})})


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Two() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more: dict[str, torch.Tensor] | None = None
        for part in self.parts:
            x, more = part(x, more)
        return x + sum(more.values())  # type: ignore[union-attr]


class Twice(nn.Module):
    """A block that runs twice in each forward, and one that returns what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.rest, self.nothing = Block(), Block(), nn.ModuleList([Block(), Block()]), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared(self.nothing(self.shared(self.first(x))))
        for one in self.rest:
            x = one(x)
        return x


class Own(nn.Module):
    """Checkpoints a part itself."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.reentrant = Block(), Block(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(checkpoint(self.inner, x, use_reentrant=self.reentrant)).tanh()


class Impure(nn.Module):
    """What must not run a second time, for it would count, draw or change twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.line, self.kind, self.count = nn.Linear(WIDTH, WIDTH), kind, 0
        self.norm = nn.BatchNorm1d(WIDTH) if kind == "statistics" else nn.Identity()
        self.generator = torch.Generator().manual_seed(5) if kind == "generator" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "counts":
            self.count += 1
            return self.line(x).tanh() * (1 + self.count / 10)
        if self.kind == "numpy":
            return self.line(x).tanh() * float(np.random.rand())
        if self.generator is not None:
            return self.line(x).tanh() * torch.rand((), generator=self.generator)
        if self.kind == "in place":
            return x.mul_(0.5).tanh() + self.line(x)
        return self.norm(self.line(x)).tanh()


def _mixed(kind: str) -> nn.Module:
    model = nn.Sequential(Block(), Impure(kind), Block(), Block(), Impure(kind), Block())
    if kind == "hook":
        calls: list[int] = []
        model[1].register_forward_hook(lambda _module, _given, found: calls.append(1) or found * (1 + len(calls) % 2))
    return model


SCHEDULES: tuple[dict[str, Any], ...] = (
    {"partitions": 2},
    {"partitions": 2, "pipeline": "interleavedzerobubble", "virtual_stages": 2},
    {"partitions": 2, "pipeline": "zbvzerobubble"},
    {"partitions": 1},
)


@case(ranks=2, heavy=True)
def modules_of_many_forms_run_again() -> None:
    builds = (Pairs, Twice, lambda: nn.Sequential(*[Own(False) for _ in range(4)]))
    for made in (*builds, lambda: nn.Sequential(*[Own(True) for _ in range(4)])):
        for settings in SCHEDULES:
            expected, *_ = trained(made, 32, **settings)
            found, every, _ = trained(made, 32, **settings, activation_checkpointing="all")
            same(found, expected, 1e-5 if made is Twice else 0.0)  # stages that share weights add in another order
            assert every or pipe.rank() > 0 or made not in builds, settings


@case(ranks=2, heavy=True)
def modules_that_must_not_run_twice_do_not() -> None:
    for kind in ("statistics", "counts", "numpy", "generator", "in place", "hook"):

        def made(kind: str = kind) -> nn.Module:
            np.random.seed(3)
            return _mixed(kind)

        for settings in SCHEDULES[:2]:
            expected, *_ = trained(made, 32, **settings)
            found, every, _ = trained(made, 32, **settings, activation_checkpointing="all")
            same(found, expected, 0.0)
            assert not {name for name in every if name.partition(".")[0] in (("1",) if kind == "hook" else ("1", "4"))}, (
                every
            )


@case(ranks=2)
def what_runs_again_is_that_of_one_process() -> None:
    def batches(number: int, replica: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * number + replica)),)

    def plain() -> nn.Module:
        return blocks().eval()

    for settings in SCHEDULES:
        check(plain, batches, optimizer=adam, activation_checkpointing="all", verify_steps=1, **settings)
        pipe.shutdown()


@case(ranks=2)
def inputs_of_what_runs_again_may_go_to_the_cpu() -> None:
    expected, *_ = trained(rows=32, partitions=2)
    Counting.went = Counting.came = 0
    with patch.object(preparing, "offload_for", Counting):
        found, every, _ = trained(rows=32, partitions=2, offload_activations=True, activation_checkpointing="all")
    same(found, expected, 0.0)
    assert every and Counting.went and Counting.came


@case(ranks=2)
def engines_that_do_not_know_it_refuse_it() -> None:
    for name in ("tensor_parallel_degree", "sharded_data_parallel_degree", "context_parallel_degree"):
        settings = {name: 2, "activation_checkpointing": "auto"}
        refused(lambda settings=settings: begin(**settings), name, "activation_checkpointing", "needs stages")
    refused(lambda: begin(activation_checkpointing="some"), "activation_checkpointing = 'some'", "off, auto, all")


class Listed(Counting):
    """Tells which units went, and copies at once."""

    units: set[nn.Module]

    def __init__(self, root: nn.Module, grid: Any) -> None:
        super().__init__(root, grid)
        Listed.units = set()

    def rate(self) -> float:
        return 1e12

    def run(self, native: Any, *args: Any, **kwargs: Any) -> Any:
        Listed.units.add(native.__self__)
        return super().run(native, *args, **kwargs)


@case(ranks=2)
def as_few_modules_as_memory_asks_for_keep_theirs_on_the_cpu() -> None:
    settings: dict[str, Any] = {"partitions": 2, "pipeline": "simple"}
    expected, *_ = trained(**settings)
    for more, room, some in (({}, 5, True), ({}, 100, False), ({"activation_checkpointing": "auto"}, 5, True)):
        Counting.went = Counting.came = 0
        has = patch.object(recompute.Recomputation, "_room", lambda *_args, room=room, **_kwargs: room * 2.0**20)
        with patch.object(preparing, "offload_for", Listed), has:
            found, again, said = trained(**settings, offload_activations="auto", **more)
        same(found, expected, 0.0)
        went = len(Listed.units)
        assert not again, "copies take no time here"
        assert (0 < went < 3) == some and (Counting.went > 0) == some == (Counting.came > 0), (went, Counting.went)
        what = "activation checkpointing: " if more else "activations on the CPU: "
        assert pipe.rank() or (what in said and ("keep what they need on the CPU (" in said) == some), said


@case(ranks=4, heavy=True)
def modules_of_divided_and_sharded_stages_run_again() -> None:
    kinds: tuple[dict[str, Any], ...] = (
        {"tensor_parallel_degree": 2, "prescaled_batch": True},
        {"tensor_parallel_degree": 2, "prescaled_batch": True, "pipeline": "interleavedzerobubble", "virtual_stages": 2},
        {"sharded_data_parallel_degree": 2},
        {"shard_optimizer_state": True},
    )
    for more in kinds:
        settings = {"partitions": 2, **more}
        expected, *_ = trained(rows=64, **settings)
        found, every, _ = trained(rows=64, **settings, activation_checkpointing="all")
        same(found, expected, 0.0)
        assert every, more
        if "pipeline" not in more:
            expected, *_ = trained(rows=256, **settings)
            found, some, _ = trained(rows=256, **settings, activation_checkpointing="auto", memory_limit=3)
            same(found, expected, 0.0)
            assert some < every and bool(some) == (pipe.pp_rank() == 0), (more, some, every)


def _in_half(**settings: Any) -> None:
    expected = Job(**BF16, **settings).train().masters()
    same(Job(**BF16, **settings, activation_checkpointing="all").train().masters(), expected, 0.0)


@case(ranks=4)
def modules_of_divided_stages_in_half_precision_run_again() -> None:
    # Which blocks the plan opens depends on how long they took, and which Linears make pairs on what it opens.
    blocks = [f"blocks.{number}" for number in range(4)]
    _in_half(partitions=2, tensor_parallel_degree=2, prescaled_batch=True, atomic=blocks)


@case(ranks=4, heavy=True)
def modules_of_stages_in_half_precision_run_again() -> None:
    _in_half(partitions=2)


@case(ranks=4, heavy=True)
def modules_without_values_run_again() -> None:
    def later() -> nn.Module:
        with pipe.delayed_initialization():
            return blocks()

    divided = {"partitions": 2, "tensor_parallel_degree": 2, "prescaled_batch": True}
    for settings, tolerance in (({"partitions": 2}, 0.0), (divided, 1e-4)):  # modules that a plan opens stay whole
        expected, *_ = trained(later, 32, cut=True, **settings)
        found, every, _ = trained(later, 32, cut=True, **settings, activation_checkpointing="all")
        same(found, expected, tolerance)
        assert every
