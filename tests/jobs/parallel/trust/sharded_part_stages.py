"""Stages whose modules are divided among tensor groups and whose parameters are sharded over the replicas of these.

Models that are built without values run as one stage: four ranks are enough for both ways of cutting.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe
from trainshed.parallel.engine.stage_shards import Reduced
from trainshed.parallel.engine.tensor import kinds
from trainshed.parallel.ground.shards import local

from .divided_without_values import Chosen, Mixed
from .sequences import Deep
from .sequences import words as tokens
from .sharded_pairs import flat
from .sharded_stages import Odd, chain, rows
from .sharded_stages import words as numbers_of_words
from .table import begin, case, refused, same, same_norms
from .tensor import Gpt, Tied, words
from .tensor_stages import TWO_BY_TWO, stages_with_dropout
from .training import adam, check, slow_sgd, squared
from .vocabulary import cross, of
from .without_values import Net, build, train, trained

BOTH: dict[str, Any] = {
    **{"partitions": 1, "tensor_parallel_degree": 2, "sharded_data_parallel_degree": 2, "prescaled_batch": True},
}
EIGHT: dict[str, Any] = {**TWO_BY_TWO, "sharded_data_parallel_degree": 2}


@case(ranks=4, heavy=True)
def one_stage_in_sharded_parts_trains_as_with_values() -> None:
    usual = trained(False, partitions=4)
    for settings in (BOTH, {**BOTH, "placement_strategy": "spread", "verify_steps": 1}):
        without = trained(True, **settings)
        torch.testing.assert_close(torch.tensor(without[0]), torch.tensor(usual[0]), rtol=1e-6, atol=0)
        same(without[1], usual[1], 1e-5)


@case(ranks=4)
def one_stage_in_sharded_parts_between_steps() -> None:
    torch.manual_seed(3)
    alone = Net().eval()  # without dropout
    other = torch.optim.AdamW([one for one in alone.parameters()], lr=0.01)
    model, _, _ = build(True, **BOTH)
    captured = list(model.parameters())
    plain = torch.optim.AdamW(captured, lr=0.01)
    update, step = pipe.PipelineOptimizer(plain), pipe.step(squared)
    model.eval()
    x = torch.randint(0, 200, (4, 6))
    for _ in range(3):
        for _ in range(2):  # gradients add up
            step(model, x)
            alone(x).square().mean().backward()
        same_norms(model, alone, rtol=1e-5, atol=0)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        update.step()
        other.step()
        update.zero_grad()
        other.zero_grad()
        same(model.state_dict(), alone.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(model(x), alone(x), rtol=1e-4, atol=1e-3)
            refused(lambda: model.module(x), "outside a step")
    refused(lambda: captured[0].sum(), "in the first step", "named_parameters()")
    every = dict(model.local_named_parameters())
    assert all(isinstance(one, DTensor) for one in every.values())
    share = sum(local(one).untyped_storage().nbytes() for one in every.values()) / 4
    assert share < 0.27 * sum(one.numel() for one in alone.parameters()), share
    states = [one for entry in update.state.values() for one in entry.values() if one.dim()]
    assert states and all(isinstance(one, DTensor) and local(one).numel() <= one.numel() / 2 for one in states)
    assert model.is_distributed_parameter(every["table.weight"])
    assert not model.is_distributed_parameter(every["blocks.0.norm.weight"])
    held = {name: one for name, one in model.local_state_dict().items() if name != "_smp_is_partial"}
    same(held, {name: one for name, one in alone.state_dict().items() if name in held})


@case(ranks=4, heavy=True)
def states_of_sharded_parts_of_stages_go_through_dictionaries() -> None:
    model, update, step = build(True, **BOTH)
    train(model, update, step, range(2))
    whole, of_update = model.state_dict(), copy.deepcopy(update.state_dict())
    parts, of_part = model.local_state_dict(), copy.deepcopy(update.local_state_dict())
    folder = ranks.folder() / "sharded-part-stages"
    model.save_weights(folder / "weights")
    pipe.save_checkpoint(str(folder / "last"), model, update, {"at": 2})
    losses = train(model, update, step, range(2, 4))
    expected = model.state_dict()
    for weights, states in (("files", of_update), (whole, of_update), (parts, of_part)):
        if weights == "files":
            model.load_weights(folder / "weights")
        else:
            model.load_state_dict(weights)
        update.load_state_dict(copy.deepcopy(states))
        assert train(model, update, step, range(2, 4)) == losses
        same(model.state_dict(), expected, 0.0)
    for delayed, settings in (
        (True, BOTH),
        (False, {"partitions": 1, "sharded_data_parallel_degree": 4}),
        (True, {"partitions": 2, "sharded_data_parallel_degree": 2}),
        (True, {**TWO_BY_TWO}),
    ):
        pipe.shutdown()
        model, update, step = build(delayed, seed=7, **settings)
        assert pipe.load_checkpoint(str(folder / "last"), model, update) == {"at": 2}
        same(model.state_dict(), whole, 0.0) if not delayed else None
        train(model, update, step, range(2, 4))
        if settings.get("sharded_data_parallel_degree") != 4:  # there each rank draws numbers of its own forward
            same(model.state_dict(), expected, 1e-4)


@case(ranks=4)
def experts_in_sharded_parts_without_values() -> None:
    found = []
    for settings in (BOTH, {"partitions": 4}):
        begin(microbatches=2, **settings)
        torch.manual_seed(3)
        with pipe.delayed_initialization():
            module = Mixed(Chosen)
        model = pipe.PipelineModel(module)
        update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        found.append(train(model, update, pipe.step(squared), range(2)))
        pipe.shutdown()
    torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(found[0]), rtol=1e-6, atol=0)


def _found(change: Any, *words_: str, steps: int = 1, **settings: Any) -> None:
    model, update, step = build(True, **{**BOTH, **settings})
    train(model, update, step, range(steps - 1))
    with change:
        refused(lambda: train(model, update, step, range(1)), "is not right", *words_)
    assert all(parameter.grad is None for parameter in model.local_parameters())
    pipe.shutdown()


@case(ranks=4)
def wrong_sharded_parts_of_stages_are_found() -> None:
    _found(patch.object(kinds, "entering", lambda x, _mesh: x), "the gradient of '")
    native = Reduced.parts

    def doubled(reduced: Reduced) -> Any:
        return tuple(2 * part for part in native(reduced))

    _found(patch.object(Reduced, "parts", doubled), "the gradient of '", "it is 2 times")


@case(ranks=4)
def another_freezing_of_a_sharded_part_is_refused() -> None:
    model, update, step = build(True, **BOTH)
    train(model, update, step, range(1))
    if dist.get_rank() == 3:
        model.module.table.weight.requires_grad_(False)
    refused(lambda: train(model, update, step, range(1, 2)), "differ in which parameters they have, or train")
    pipe.shutdown()
    begin(microbatches=2, **{**BOTH, "sharded_data_parallel_degree": 4})
    refused(lambda: build_in(True), "does not divide 2 replicas")


def build_in(delayed: bool) -> None:
    with pipe.delayed_initialization(delayed):
        module = Net()
    pipe.PipelineModel(module)


def three_dimensions() -> None:
    """Two stages, two ranks a tensor group, shards on two replicas."""
    dist.init_process_group("gloo")

    def odd() -> nn.Module:
        model = Odd()
        model.norm.eval()  # its statistics would be those of one microbatch
        model.norm.train = lambda mode=True: model.norm  # type: ignore[method-assign,assignment]
        return model

    for placement in ("cluster", "spread"):
        check(Tied, words, optimizer=adam, tolerance=1e-4, placement_strategy=placement, **EIGHT)
        pipe.shutdown()
    check(odd, numbers_of_words, optimizer=adam, verify_steps=1, **EIGHT)
    pipe.shutdown()
    more = {"pipeline": "interleavedzerobubble", "virtual_stages": 2}
    check(chain, rows, optimizer=adam, tolerance=1e-4, **EIGHT, **more)
    pipe.shutdown()
    copies = {"partitions": 1, "tensor_parallel_degree": 2, "sharded_data_parallel_degree": 2}  # of each shard two
    check(Tied, words, optimizer=adam, tolerance=1e-4, **copies)
    pipe.shutdown()
    model = check(partial(flat, Deep), tokens, step=of(cross), optimizer=slow_sgd, **copies)
    assert model.engine.division.in_pairs()[0] and model.engine.division.along_tokens()
    pipe.shutdown()
    path = str(ranks.folder() / "sharded-part-stages" / "gpt")
    stages_with_dropout(Gpt, path, sharded_data_parallel_degree=2)
