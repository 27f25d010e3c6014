"""Ranks that are at different places of the script, or of ours: each exchange says what it is for, and none is mistaken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.engine import object_collectives as meeting
from trainshed.parallel.session import grid

from .calls import SCHEDULES, Chain
from .surroundings import BLOCKS, alone, rows
from .table import begin, case, refused
from .training import check, sgd, squared

Does = Callable[[Any, Any], Any]  # with a model and its optimizer


def apart(first: Does, second: Does, *words: str) -> None:
    """After a step rank 0 does something else than rank 1: both are told, at once."""
    begin(partitions=2, microbatches=2, atomic=BLOCKS)
    model = pipe.PipelineModel(Chain())
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    steps(model, update)
    refused(lambda: (first, second)[pipe.rank()](model, update), *words)
    pipe.shutdown()


def steps(model: Any, _update: Any) -> Any:
    return pipe.step(squared)(model, *rows(0, 0))


def clips(model: Any, _update: Any) -> Any:
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def saves(model: Any, update: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        pipe.save_checkpoint(f"{folder}/one", model, update)


def loads(model: Any, update: Any) -> Any:
    return pipe.load_checkpoint("nowhere", model, update)


def reads(model: Any, _update: Any) -> Any:
    return model.state_dict()


def prunes(_model: Any, _update: Any) -> Any:
    return pipe.prune_checkpoints("nowhere", 1)


def reads_the_optimizer(_model: Any, update: Any) -> Any:
    return update.state_dict()


def unscales(_model: Any, update: Any) -> Any:
    scaler = pipe.GradScaler()
    scaler.scale(torch.ones(()))
    scaler.unscale_(update.optimizer)


@case(ranks=2)
def one_rank_clips() -> None:
    apart(clips, steps, "clip_grad_norm_()", "a step", "rank 0", "rank 1")
    apart(steps, clips, "clip_grad_norm_()", "a step")
    apart(clips, reads, "clip_grad_norm_()", "state_dict()")


@case(ranks=2)
def one_rank_saves_a_checkpoint() -> None:
    apart(saves, steps, "save_checkpoint()", "a step")
    apart(loads, steps, "load_checkpoint()", "a step")
    apart(saves, loads, "save_checkpoint()", "load_checkpoint()")


@case(ranks=2)
def one_rank_unscales() -> None:
    apart(unscales, steps, "unscale_()", "a step")


def apart_from_replicas(does: Does, *, first: bool = False, **settings: Any) -> None:
    """One replica calls what all have to, and the other one goes on training."""
    begin(microbatches=2, **settings)
    model = pipe.PipelineModel(Chain())
    update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters()))
    if not first:
        steps(model, update)
        update.step()
    refused(lambda: (does if pipe.dp_rank() == 0 else steps)(model, update), "is at a step while", "on all ranks")
    pipe.shutdown()


@case(ranks=2)
def one_replica_saves_loads_or_prunes() -> None:
    for does in (saves, loads, prunes):
        apart_from_replicas(does)
        apart_from_replicas(does, first=True)
    apart_from_replicas(reads_the_optimizer, shard_optimizer_state=True)


@case(ranks=2)
def one_rank_of_a_sharded_model_saves_or_reads() -> None:
    for does in (saves, loads, prunes, reads, reads_the_optimizer):
        apart_from_replicas(does, sharded_data_parallel_degree=2)


@case(ranks=4)
def one_pipeline_saves() -> None:
    for does in (saves, loads, prunes):
        apart_from_replicas(does, partitions=2, atomic=BLOCKS)


@case(ranks=2)
def exchanges_say_what_they_are_for() -> None:
    """Whatever makes the ranks part: none takes what another one gives for something else."""
    begin(partitions=2)
    ranks, group = grid().pipeline_ranks, grid().pipeline_group
    for mine in ((meeting.RECORD, "a text"), (meeting.ROOM, 1)), ((meeting.FINDINGS, ["x"] * 9999), (meeting.WAYS, [])):
        refused(lambda: meeting.objects(*mine[pipe.rank()], ranks, group, grid().device), *(at for at, _ in mine))  # noqa: B023
    places = meeting.STEP, meeting.GRADIENTS
    if pipe.rank() == 0:
        refused(lambda: meeting.numbers(places[0], [1, 2], ranks, group, grid().device), *places)
    else:
        refused(lambda: meeting.objects(places[1], {"a": 1}, ranks, group, grid().device), *places)
    given = {"rank": pipe.rank(), "long": "x" * 1000 * pipe.rank()}
    found = meeting.objects(meeting.WAYS, given, ranks, group, grid().device)
    assert [len(one["long"]) for one in found] == [0, 1000]


def left_out(threshold: float) -> Callable[..., torch.Tensor]:
    """A step that leaves out microbatches with a large loss."""

    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), x.argmax(1))
        if float(loss.detach()) < threshold:
            model.backward(loss)
        return loss

    return step


@case(ranks=2, heavy=True)
def microbatches_are_left_out_by_values_that_no_rank_has_alone() -> None:
    """Whoever records has zeros for the parameters of others, and would decide another way."""
    for threshold in (1.3, 1.4, 1.5):
        for schedule in SCHEDULES:
            check(Chain, alone, step=left_out(threshold), parts=4, steps=4, partitions=2, atomic=BLOCKS, **schedule)
            pipe.shutdown()


@case(ranks=2)
def microbatches_of_many_lengths_are_left_out() -> None:
    def lengths(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8 + 4 * number, 4, generator=torch.Generator().manual_seed(number)),)

    for schedule in SCHEDULES:
        check(Chain, lengths, step=left_out(1.4), parts=4, steps=4, partitions=2, atomic=BLOCKS, **schedule)
        pipe.shutdown()
