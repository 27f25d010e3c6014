"""Models that are built without values: each rank gets those of its own stages, and they are the ones of one process."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe
from trainshed.parallel.delayed.tape import Tape
from trainshed.parallel.session import session

from .table import begin, case, refused, same
from .training import squared

SHARDED: dict[str, Any] = {"partitions": 1, "sharded_data_parallel_degree": 2}
WIDTH = 160  # a matrix is larger than what is made at once


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(torch.tanh(self.mix(self.norm(x))))


class Net(nn.Module):
    """A tied table, a frozen matrix, a large buffer, a matrix made from another."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 200, bias=False)
        self.head.weight = self.table.weight
        self.blocks[1].mix.weight.requires_grad_(False)
        with torch.no_grad():
            self.blocks[2].mix.weight.copy_(self.blocks[0].mix.weight * 0.5)
        self.register_buffer("mask", torch.ones(200, 200).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.table(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden) * self.mask[-1]


def words(number: int) -> torch.Tensor:
    return torch.randint(0, 200, (4, 6), generator=torch.Generator().manual_seed(number))


def build(delayed: bool, seed: int = 3, **settings: Any) -> tuple[pipe.PipelineModel, Any, Any]:
    begin(**{"partitions": 2, "microbatches": 2, **settings})
    torch.manual_seed(seed)
    with pipe.delayed_initialization(delayed):
        module = Net()
    model = pipe.PipelineModel(module)
    return model, pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01)), pipe.step(squared)


def train(model: Any, update: Any, step: Any, numbers: range) -> list[float]:
    losses = []
    for number in numbers:
        torch.manual_seed(number)
        update.zero_grad()
        losses.append(step(model, words(number)).reduce_mean().item())
        update.step()
    return losses


def trained(delayed: bool, **settings: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    model, update, step = build(delayed, **settings)
    losses = train(model, update, step, range(3))
    state = model.state_dict()
    pipe.shutdown()
    return losses, state


def compare(**settings: Any) -> None:
    usual, without = trained(False, **settings), trained(True, **settings)
    assert usual[0] == without[0], (usual[0], without[0])
    same(without[1], usual[1], 0.0)


@case(ranks=2)
def it_trains_as_with_values() -> None:
    for settings in ({}, {"pipeline": "interleaved1f1b", "virtual_stages": 2}, {"ddp": True, "partitions": 1}):
        compare(**settings)


@case(ranks=4)
def it_trains_as_with_values_in_two_replicas() -> None:
    compare(ddp=True)


@case(ranks=2)
def the_values_are_those_of_one_process() -> None:
    model, _, _ = build(True)
    for number in (0, 3):
        model.set_partition(model.module.blocks[number], number // 3)
    update = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    train(model, update, pipe.step(squared), range(1))
    found = model.state_dict()
    torch.manual_seed(3)
    same(found, Net().state_dict(), 0.0)
    held = sum(parameter.numel() for _, parameter in model.local_named_parameters())
    assert held < sum(parameter.numel() for parameter in Net().parameters())


@case(ranks=2)
def the_net_finds_a_defect_in_them_too() -> None:
    for first in (1, 3):  # block of the second stage
        said = io.StringIO()
        with redirect_stdout(said):
            model, update, step = build(True, verify_steps=1)
            for number in range(4):
                model.set_partition(model.module.blocks[number], int(number >= first))
            train(model, update, step, range(2))
        if pipe.rank() == 0:
            assert "module by module" in said.getvalue() and "not verified" not in said.getvalue(), said.getvalue()
        for name, parameter in model.local_named_parameters():
            if name == "blocks.3.mix.weight":
                parameter.register_hook(lambda gradient: gradient * 2)  # the undivided model, on the first rank, has none
        refused(lambda model=model, update=update, step=step: train(model, update, step, range(2, 3)), "blocks.3.mix.weight")
        pipe.shutdown()


READS: dict[str, Callable[[nn.Module], Any]] = {
    "sum": lambda module: module.head.weight.sum(),
    "change": lambda module: module.head.weight.data.mul_(2),
    "change of all": lambda module: torch._foreach_mul_([one.data for one in module.parameters()], 2.0),
    "save": lambda module: torch.save(module.state_dict(), io.BytesIO()),
    "forward": lambda module: module(words(0)),
    "numpy": lambda module: module.head.weight.detach().numpy(),
}


@case(ranks=2)
def what_needs_values_is_refused_before_the_first_step() -> None:
    model, update, step = build(True)
    for name, read in READS.items():
        text = refused(lambda read=read: read(model.module))
        assert "has no values before the first step" in text or "outside a step" in text, (name, text)
    refused(model.state_dict)
    state = Net().state_dict()
    refused(lambda: model.module.load_state_dict(state), "has no values before the first step", kind=RuntimeError)
    train(model, update, step, range(1))
    model.state_dict()


@case(ranks=2)
def what_is_written_after_the_block_is_refused() -> None:
    begin(partitions=2, microbatches=2)
    with pipe.delayed_initialization():
        module = Net()
    with torch.no_grad():
        module.blocks[0].mix.weight.mul_(2)
    refused(lambda: pipe.PipelineModel(module), "were written after the block")


@case(ranks=2)
def a_model_of_which_nothing_is_wrapped_may_be_built_after_the_block() -> None:
    begin(partitions=2, microbatches=2)
    with pipe.delayed_initialization():
        module = Net()
    nn.Linear(WIDTH, WIDTH)
    model = pipe.PipelineModel(module)
    refused(lambda: pipe.delayed_initialization().__enter__(), "comes after the model was wrapped")
    assert "without values yet" in repr(model.module.head.weight)


@case(ranks=2)
def ranks_with_other_seeds_are_refused() -> None:
    model, update, step = build(True, seed=dist.get_rank())
    refused(lambda: train(model, update, step, range(1)), "would give the model other values than rank 0", "same seed")


@case(ranks=2)
def an_error_in_the_block_leaves_nothing_behind() -> None:
    begin(partitions=2, microbatches=2)
    try:
        with pipe.delayed_initialization():
            Net()
            raise KeyError("own")
    except KeyError:
        pass
    value = nn.Linear(WIDTH, WIDTH).weight
    assert float(value.detach().abs().sum()) > 0
    with pipe.delayed_initialization():
        module = Net()
    pipe.PipelineModel(module)


@case(ranks=2)
def sharded_models_train_as_with_values() -> None:
    usual, native, kept = trained(False, **SHARDED), Tape.values, list[int]()

    def values(tape: Tape, tensor: torch.Tensor) -> torch.Tensor:
        every = session.holding.root.parameters() if session.holding is not None else ()
        kept.append(sum(one.to_local().numel() for one in every if isinstance(one, DTensor) and not one.is_meta))
        return native(tape, tensor)

    with patch.object(Tape, "values", values):
        without = trained(True, **SHARDED)
    assert usual[0] == without[0], (usual[0], without[0])
    same(without[1], usual[1], 0.0)
    assert max(kept) <= sum(one.numel() for one in Net().parameters()) / 2, kept  # no rank has more than its shards


@case(ranks=2)
def sharded_models_without_values_load_what_they_hold() -> None:
    folder = ranks.folder() / "sharded-without-values"
    model, update, step = build(True, **SHARDED)
    train(model, update, step, range(2))
    pipe.save_checkpoint(str(folder / "last"), model, update, {"at": 2})
    model.save_weights(folder / "weights")
    state = model.state_dict()
    expected = train(model, update, step, range(2, 4))
    pipe.shutdown()
    model, update, step = build(True, seed=7, **SHARDED)  # its own values count for nothing
    assert pipe.load_checkpoint(str(folder / "last"), model, update) == {"at": 2}
    assert train(model, update, step, range(2, 4)) == expected
    pipe.shutdown()
    model, _, step = build(True, seed=7)
    assert pipe.load_checkpoint(str(folder / "last"), model) == {"at": 2}
    train(model, pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.0)), step, range(1))
    same(model.state_dict(), state, 0.0)
    pipe.shutdown()
    model, _, step = build(True, seed=7, **SHARDED)
    model.load_weights(folder / "weights")
    train(model, pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.0)), step, range(1))
    same(model.state_dict(), state, 0.0)


@case(ranks=2)
def sharded_models_without_values_refuse_what_reads_them() -> None:
    model, _, step = build(True, **SHARDED)
    captured = list(model.parameters())
    refused(lambda: captured[0].sum(), "has no values before the first step")
    step(model, words(0))
    refused(lambda: captured[0].sum(), "sharded in the first step", "named_parameters()")


@case(ranks=2)
def a_checkpoint_is_read_by_those_who_hold_it() -> None:
    where = [TemporaryDirectory().name]
    dist.broadcast_object_list(where, src=0)
    path = os.path.join(where[0], "last")
    model, update, step = build(True)
    train(model, update, step, range(2))
    pipe.save_checkpoint(path, model, update, {"at": 2})
    expected, after = train(model, update, step, range(2, 4)), model.state_dict()
    pipe.shutdown()
    for delayed in (False, True):
        for settings in ({}, {"pipeline": "interleaved1f1b", "virtual_stages": 2}):
            model, update, step = build(delayed, seed=7, **settings)  # its own values count for nothing
            assert pipe.load_checkpoint(path, model, update) == {"at": 2}
            assert train(model, update, step, range(2, 4)) == expected
            same(model.state_dict(), after, 0.0)
            pipe.shutdown()
