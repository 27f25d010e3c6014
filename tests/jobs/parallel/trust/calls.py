"""Calls of a model and reads of its parameters that differ from the plainest: twice in a step, transposed elsewhere."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import trainshed.parallel as pipe

from .surroundings import BLOCKS, alone, rows
from .table import begin, case, refused, same
from .training import check, one_process, sgd, slow_sgd, squared
from .training import nothing as nothing_between

SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"virtual_stages": 2, "pipeline": "interleaved1f1b"},
    {"pipeline": "interleavedzerobubble"},
)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)


def twice(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = (model(x) - model(x.flip(1))).square().mean()
    model.backward(loss)
    return loss


def called_twice(partitions: int) -> None:
    for schedule in SCHEDULES:
        begin(partitions=partitions, microbatches=4, atomic=BLOCKS, **schedule)
        expected = one_process(Chain, alone, 1, 4, 3, nothing_between, slow_sgd, twice)
        torch.manual_seed(3)
        model = pipe.PipelineModel(Chain())
        update, train = pipe.PipelineOptimizer(slow_sgd(model.parameters())), pipe.step(twice)
        once, whole = pipe.step(lambda model, x: model(x)), Chain()
        for number in range(3):
            update.zero_grad()
            train(model, *alone(number, 0))
            update.step()
            whole.load_state_dict(model.state_dict())
            with torch.no_grad():
                given = rows(9, 0)[0]
                same({"out": once(model, given).concat()}, {"out": whole(given)})
                same({"out": model(given)}, {"out": whole(given)})
        same(model.state_dict(), expected)
        pipe.shutdown()


@case(ranks=2)
def the_model_runs_twice_in_training_and_once_in_evaluation() -> None:
    called_twice(2)


@case(ranks=4)
def the_model_runs_twice_in_training_and_once_in_evaluation_with_four_stages() -> None:
    called_twice(4)


def calls_twice(ranks: int, **settings: Any) -> None:
    """Training calls the model once, evaluation twice: on what it found first, with Python's numbers in between."""

    def look(model: Any, x: torch.Tensor) -> Any:
        first = model(x)
        scale = float(first.detach().abs().mean()) * random.random()
        return first, {"second": model(first * scale)}, scale

    begin(partitions=ranks, microbatches=4, **{"atomic": BLOCKS, **settings})
    torch.manual_seed(3)
    model, whole = pipe.PipelineModel(Chain()), Chain()
    update, train, see = pipe.PipelineOptimizer(sgd(model.parameters())), pipe.step(squared), pipe.step(look)
    for number in range(2):
        update.zero_grad()
        train(model, *alone(number, 0))
        update.step()
        whole.load_state_dict(model.state_dict())
        for context in (torch.no_grad(), torch.inference_mode()):
            given, before = rows(9, number)[0], random.getstate()
            with context:
                first, more, scales = see(model, given)
                expected = [whole(part) for part in given.chunk(4)]
                again = [whole(one * scale) for one, scale in zip(expected, scales, strict=True)]
            same({"first": first.concat()}, {"first": torch.cat(expected)})
            same({"second": more["second"].concat()}, {"second": torch.cat(again)})
            assert random.getstate() == before
    refused(lambda: see(model, rows(9, 0)[0]), "call the model as often in the first step", kind=pipe.PlanError)


@case(ranks=2)
def evaluation_calls_the_model_more_often() -> None:
    for schedule in SCHEDULES:
        calls_twice(2, **schedule)
        pipe.shutdown()


@case(ranks=4)
def evaluation_calls_the_model_more_often_with_four_stages() -> None:
    calls_twice(4)


@case(ranks=2)
def the_first_rank_alone_reads_what_is_evaluated_call_by_call() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    model, whole = pipe.PipelineModel(Chain()), Chain()
    pipe.step(squared)(model, *alone(0, 0))
    whole.load_state_dict(model.state_dict())
    x = rows(9, 0)[0]
    with torch.no_grad():
        found = pipe.step(lambda model, x: model(model(x)) + x)(model, x if pipe.rank() == 0 else x[:0])
        same({"out": found.concat()}, {"out": whole(whole(x)) + x})


class Mirrored(nn.Module):
    """The decoder reads the encoder's weights, transposed, between the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4)), nn.Linear(4, 4)
        self.scales = nn.ParameterList(torch.ones(4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        for block, scale in zip(reversed(self.blocks), self.scales, strict=True):
            x = F.linear(x, block.weight.t() * scale.exp()[None].expand(4, 4)).tanh()
        return self.head(x)


def of_many_lengths(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
    """Each length is recorded when parameters are elsewhere already."""
    return (torch.randn(8, 1 + number, 4, generator=torch.Generator().manual_seed(number)),)


@case(ranks=2)
def parameters_of_other_ranks_are_read_between_modules() -> None:
    for schedule in SCHEDULES:
        check(Mirrored, of_many_lengths, parts=4, partitions=2, atomic=BLOCKS, **schedule)
        pipe.shutdown()


LAST = (8, 10, 3, 8)


def batch_of(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 4, generator=source), torch.randint(0, 4, (rows,), generator=source)


def classify(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    out = model(x)
    loss = F.cross_entropy(out, y)
    model.backward(loss)
    return loss, out


def uneven(lengths: tuple[int, ...], ranks: int = 2, **settings: Any) -> None:
    """As in one process that has whole batches: a mean loss is that of all rows, whichever microbatch they are in."""
    begin(pipeline_parallel_degree=ranks, microbatches=4, **{"atomic": BLOCKS, **settings})
    torch.manual_seed(3)
    whole = Chain()
    alone_update = sgd(whole.parameters())
    torch.manual_seed(3)
    model = pipe.PipelineModel(Chain())
    update, train, look = pipe.PipelineOptimizer(sgd(model.parameters())), pipe.step(classify), pipe.step(predict)
    for length in lengths:
        x, y = batch_of(length)
        alone_update.zero_grad()
        out = whole(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        update.zero_grad()
        losses, outs = train(model, x, y)
        same({"loss": losses.reduce_mean(), "out": outs.concat()}, {"loss": loss.detach(), "out": out.detach()})
        alone_update.step()
        update.step()
        with torch.no_grad():
            same({"out": look(model, x).concat()}, {"out": whole(x)})
    same(model.state_dict(), whole.state_dict())
    pipe.shutdown()


def predict(model: Any, x: torch.Tensor) -> Any:
    return model(x)


@case(ranks=2)
def batches_that_the_microbatches_do_not_divide() -> None:
    for schedule in (*SCHEDULES, {"verify": "changes"}):
        uneven(LAST, **schedule)
    uneven(LAST[1:3], virtual_stages=1)  # the first batch of all


@case(ranks=4)
def batches_that_the_microbatches_do_not_divide_with_four_stages() -> None:
    uneven(LAST, 4)
    uneven(LAST, 4, pipeline="interleavedzerobubble", atomic=[])


@case(ranks=2)
def batches_that_do_not_divide_without_stages() -> None:
    uneven(LAST, 1)
    uneven(LAST[:3], 1, sharded_data_parallel_degree=2)


@case(ranks=2)
def only_the_first_rank_has_the_uneven_batch() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    torch.manual_seed(3)
    whole = Chain()
    model = pipe.PipelineModel(Chain())
    model.load_state_dict(whole.state_dict())
    train = pipe.step(classify)
    for length in (8, 10):
        x, y = batch_of(length)
        loss = F.cross_entropy(whole(x), y)
        losses, _ = train(model, *((x, y) if pipe.rank() == 0 else (x[:0], y[:0])))
        same({"loss": losses.reduce_mean()}, {"loss": loss.detach()})


@case(ranks=2)
def arguments_of_other_lengths_are_refused() -> None:
    begin(partitions=2, microbatches=4, atomic=BLOCKS)
    model = pipe.PipelineModel(Chain())
    step = pipe.step(lambda model, x, weights: (model(x) * weights.sum()).mean())
    refused(lambda: step(model, torch.ones(8, 4), torch.ones(2)), "2 rows cannot be split", "non_split_inputs")
