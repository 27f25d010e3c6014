"""Where the undivided model has no room on one rank, a step is verified by one microbatch, module by module."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.parallel.engine.gradients import GradientSync
from trainshed.parallel.engine.verify.verify_budget import Extent
from trainshed.parallel.ground import memory
from trainshed.parallel.stages import verifier

from . import defects
from .defects import BUBBLE, REPLICAS, TWO, Mixed, Plant, at_gradients, train
from .table import begin, case, same
from .training import squared
from .verified import Noting, said_by, staged


@contextmanager
def short_of_memory(extent: Extent = Extent.IN_PARTS) -> Iterator[None]:
    """The undivided model has no room."""
    with patch.object(verifier, "extent_of", lambda *_, **__: extent):
        yield


class Stateless(Mixed):
    """Without a buffer: its last microbatch stands for all."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)


def found(name: str, *words: str, plant: Callable[[], Plant] | None = None, **options: Any) -> None:
    """Puts a defect of `defects` into the table once more: it must be found in this way, too."""

    def planted() -> None:
        with short_of_memory():
            said = train((plant or getattr(defects, name))(), **{"kind": Stateless, **options})
        assert said, "the defect was not found"
        assert all(word in said for word in ("is not right, no parameter was changed", *words)), said

    planted.__name__ = name
    planted.__module__ = __name__
    case(ranks=2)(planted)


def forgotten() -> Plant:
    """What another stage has of a shared gradient does not come here."""
    return patch.object(GradientSync, "_sum_shared", lambda _sync: None)


found("a_microbatch_is_scaled_twice", "gradient", "0.25 times", "microbatch 3", **TWO)
found("a_gradient_is_dropped", "gradient of 'b.weight'", "not the sum", "rank 0", **TWO)
found("a_gradient_is_added_twice", "gradient of 'd.bias'", "not the sum", "2 times", **TWO)
found("accumulated_gradients_are_added_twice", "not the sum", given=0.5, **TWO)
found("a_stage_takes_the_activations_of_another_microbatch", "module 'c'", "stage 1", "microbatch 3", **TWO)
found("gradients_of_activations_are_sent_in_half_precision", "gradient of 'b.", "rank 0", **TWO)
found("the_first_stage_leaves_out_the_last_backward", "gradient of 'b.", "microbatch 3", **TWO)
found("the_gradients_of_a_tied_table_are_not_summed", "gradient of 'table.weight'", plant=forgotten, **TWO)
found("the_second_part_of_the_last_backward_is_lost", "gradient of 'd.", "stage 1", **BUBBLE)
found("replicas_are_not_averaged", "not the sum", **REPLICAS)
found("another_microbatch_is_not_the_first_one", "module 'c'", plant=defects.activations_are_sent_in_half_precision,
      **{"kind": Mixed, **TWO})  # fmt: skip


@case(ranks=2)
def a_right_step_is_called_right_in_parts() -> None:
    for kind in (Mixed, Stateless):
        for settings in (TWO, BUBBLE, REPLICAS):
            pipe.shutdown()
            with short_of_memory():
                assert train(nullcontext(), kind=kind, **settings) == ""


class Checkpointed(nn.Module):
    """Runs its parts again in the backward, as a model that is short of memory does."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4))
        self.after = nn.Parameter(torch.ones(4))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inside, x, use_reentrant=self.reentrant) * self.after


@case(ranks=2)
def checkpoints_find_their_parameters_in_parts() -> None:
    for reentrant in (False, True):
        pipe.shutdown()
        with short_of_memory():
            said = said_by(1, staged(nn.Linear(4, 4), Checkpointed(reentrant))[1])
        assert ("not verified" not in said) and (("module by module" in said) == (pipe.rank() == 0)), said


@case(ranks=2)
def verifying_in_parts_leaves_no_trace() -> None:
    states = []
    for extent in (None, Extent.ONE, Extent.IN_PARTS):
        pipe.shutdown()
        torch.manual_seed(3)
        module, model = staged(Noting(), Noting(), verify="off" if extent is None else "changes")
        with short_of_memory(extent or Extent.NOTHING):
            said_by(2, model)
        mine: Any = module[pipe.pp_rank()]
        notes = {"calls": torch.tensor(mine.calls), "random": torch.get_rng_state()}
        states.append({**model.state_dict(), **notes, "own": mine.own.get_state()})
        assert not any(one._backward_hooks or one._forward_pre_hooks for one in module.modules() if one is not module)
        assert not any(one._backward_hooks or one._post_accumulate_grad_hooks for one in model.local_parameters())
    same(states[1], states[0], tolerance=0.0)
    same(states[2], states[0], tolerance=0.0)


@case(ranks=2)
def the_limit_of_a_container_decides_how_much_is_verified() -> None:
    said = []
    for left in (1e6, 1e5, 1e4):  # the gradients of all layers take 1.3e5 bytes, one layer with its gradient 3.3e4
        pipe.shutdown()
        begin(partitions=2, microbatches=2)
        module = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        model = pipe.PipelineModel(module)
        for number, part in enumerate(module):
            model.set_partition(part, number // 4)
        group = {"memory_limit": lambda left=left: int(2e9 + left), "memory_used": lambda: int(2e9)}
        with patch.multiple(memory, **group), redirect_stdout(io.StringIO()) as lines:
            pipe.step(squared)(model, torch.ones(2, 64))
        said.append(lines.getvalue())
    if pipe.rank() == 0:
        assert "verified" not in said[0], said
        assert "module by module" in said[1], said
        assert "not verified: the undivided model has no room" in said[2], said


@case(ranks=2)
def one_microbatch_stands_for_all_where_they_would_take_long() -> None:
    with short_of_memory(Extent.ONE):
        said = said_by(1, staged(nn.Linear(4, 4), nn.Linear(4, 4))[1])
        assert ("microbatch 1 alone" in said) == (pipe.rank() == 0), said
        pipe.shutdown()
        text = train(defects.a_stage_takes_the_gradients_of_another_microbatch(), kind=Stateless, **TWO)
    assert "gradient of 'b." in text, text


@case(ranks=4)
def a_defect_of_one_replica_is_found_in_parts() -> None:
    begin(partitions=2, microbatches=2, atomic=["0", "1"], verify="changes")
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = pipe.PipelineModel(module)
    for number, part in enumerate(module):
        model.set_partition(part, number)

    def double(sync: GradientSync) -> None:
        if pipe.rank() == 3:
            for parameter in sync.parameters.values():
                parameter.grad *= 2  # type: ignore[operator]

    train_step = pipe.step(squared)
    with short_of_memory(), at_gradients(double):
        try:
            train_step(model, torch.randn(8, 4))
        except pipe.PipelineError as error:
            assert "module '1'" in str(error) and "rank 3" in str(error), error
        else:
            raise AssertionError("the defect was not found")


@case(ranks=2)
def a_model_that_the_check_cannot_run_trains_and_says_so() -> None:
    with patch.object(verifier, "run", after_all(RuntimeError("no such kernel"))):
        said = said_by(1, staged(nn.Linear(4, 4), nn.Linear(4, 4))[1])
    assert ("not verified: the undivided model ended with RuntimeError: no such kernel" in said) == (pipe.rank() == 0), said


def after_all(error: Exception) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    return run
