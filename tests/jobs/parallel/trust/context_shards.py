"""Sequences that are divided, of a model whose parameters are sharded: it trains as one process does, between steps a rank
has its shards alone, and what is wrong is found or refused."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import ranks
import torch
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe
from trainshed.parallel.engine.context import crossing
from trainshed.parallel.engine.tensor.gradient_averaging import Means
from trainshed.parallel.ground.shards import local

from .context import (
    REFUSED,
    Around,
    Block,
    Build,
    Chosen,
    Convolved,
    Fails,
    Gpt,
    Often,
    begun,
    curve,
    divided,
    gpt2,
    llama,
    numbers,
    trains,
    with_padding,
)
from .table import begin, case, long_case, refused, same
from .whole_in_shards import too_large_gradients


def sharded(build: Build, batches: Any = numbers, shards: int = 2, **settings: Any) -> pipe.PipelineModel:
    """Trains as one process does, and this rank has one of `shards` shards of each parameter."""
    model = trains(build, batches, sharded_data_parallel_degree=shards, **settings)
    every = list(model.parameters())
    assert all(isinstance(one, DTensor) and one.placements[-1].is_shard(0) for one in every)
    kept = sum(local(one.detach()).untyped_storage().nbytes() for one in every)
    assert kept < sum(one.numel() * one.element_size() for one in every) * (1 / shards + 0.1)
    return model


def again(build: Build, batches: Any = numbers, **settings: Any) -> None:
    sharded(build, batches, **settings)
    pipe.shutdown()


@long_case(ranks=2)
def sharded_models_with_divided_sequences(steps: int) -> None:
    assert divided(sharded(Gpt, steps=steps, parts=2)) == {"blocks.0", "blocks.1"}
    pipe.shutdown()
    again(llama, with_padding, steps=steps)
    again(lambda: Around(False), verify_steps=1)
    again(lambda: Gpt(Block(), Block(), Block()), verify="off")


@case(ranks=2)
def sharded_lengths_that_change() -> None:
    def changing(step: int, replica: int) -> dict[str, torch.Tensor]:
        return numbers(step, replica, (3, 13, 5, 30)[step])

    again(Gpt, changing, steps=4)


@case(ranks=4)
def sharded_over_context_groups() -> None:
    def lengths(step: int, replica: int) -> dict[str, torch.Tensor]:
        return numbers(step, replica, 13 if replica else 3 + 4 * step)

    again(Gpt, shards=4)
    again(Gpt, lengths, shards=4)
    again(gpt2, shards=2)
    again(llama, with_padding, degree=4, shards=2)
    again(Gpt, placement_strategy="spread", shards=2)


@case(ranks=2)
def sharded_blocks_that_are_frozen() -> None:
    def frozen() -> nn.Module:
        model = Gpt()
        model.blocks[0].requires_grad_(False)
        model.blocks[1].out.requires_grad_(False)
        return model

    again(frozen)


@case(ranks=2)
def gradients_of_several_sharded_steps_add_up() -> None:
    found = []
    for settings in ({"context_parallel_degree": 2, "sharded_data_parallel_degree": 2}, {}):
        begin(**settings)
        torch.manual_seed(3)
        model = pipe.PipelineModel(Gpt(Block(drop=0.0)))
        model.module.drop.p = 0.0

        @pipe.step
        def train(model: Any, **given: torch.Tensor) -> None:
            model.backward(model(**given).loss)

        for number in range(3):
            train(model, **numbers(number, 0))
        gradients = {name: one.grad for name, one in model.module.named_parameters()}
        found.append({name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in gradients.items()})
        pipe.shutdown()
    torch.testing.assert_close(*found)


@case(ranks=2)
def sharded_models_between_steps() -> None:
    model = sharded(gpt2)
    alone = gpt2().eval()
    alone.load_state_dict(model.state_dict())
    model.eval()
    x = numbers(50, 0)["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(model(x).logits, alone(x).logits)
        torch.testing.assert_close(pipe.step(lambda model, x: model(x).logits)(model, x).concat(), alone(x).logits)
    mine = x[:1, : 5 + pipe.rank()]  # each rank generates from its own, and as long as it likes
    options = {"max_new_tokens": 3 + 4 * pipe.rank(), "do_sample": False}
    assert torch.equal(model.generate(mine, **options), alone.generate(mine, **options))
    kept = sum(local(one.detach()).untyped_storage().nbytes() for one in model.parameters())
    assert kept < 0.6 * sum(one.numel() * one.element_size() for one in model.parameters())


@case(ranks=4)
def a_checkpoint_of_shards_goes_on_with_other_degrees() -> None:
    path = str(ranks.folder() / "context-shards")
    expected = list(curve(path + "-whole", 1, 0, 8))
    found = list(curve(path, 2, 0, 2, sharded_data_parallel_degree=4))
    found += curve(path, 4, 2, 4, sharded_data_parallel_degree=2)
    found += curve(path, 1, 4, 6, sharded_data_parallel_degree=4)
    found += curve(path, 2, 6, 8, sharded_data_parallel_degree=2)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0)


_begun = partial(begun, sharded_data_parallel_degree=2)


@case(ranks=2)
def what_shards_of_divided_sequences_do_not_serve() -> None:
    for verify in ("first", "off"):
        model, train = _begun(lambda: Gpt(Block(), Convolved()), verify=verify)
        refused(lambda train=train, model=model: train(model, **numbers(0, 0, 12)), "'blocks.1'", REFUSED[Convolved])
        assert all(one.grad is None for one in model.parameters())
        pipe.shutdown()

    def hooked() -> nn.Module:
        model = Gpt()
        model.blocks[0].out.weight.register_hook(lambda gradient: gradient * 2.0)
        return model

    model, train = _begun(Often)
    refused(lambda: train(model, **numbers(0, 0)), "is read outside of the block that has it", "in the block's own forward")
    pipe.shutdown()
    model, train = _begun(hooked)
    refused(lambda: train(model, **numbers(0, 0)), "'blocks.0.out.weight' has a gradient hook")
    pipe.shutdown()
    both = {"context_parallel_degree": 2, "sharded_data_parallel_degree": 2}
    refused(lambda: begin(**both, bf16=True, master_weights=True), "master_weights needs stages", "pipeline_parallel_degree")


@case(ranks=2)
def a_rank_that_fails_between_shards_ends_the_step_of_all() -> None:
    for degree in (1, 2):
        model, train = _begun(lambda: Gpt(Block(), Fails()), sharded_data_parallel_degree=degree)
        expected = model.state_dict()
        train(model, **numbers(0, 0, 13))
        try:
            train(model, **numbers(1, 0, 12))
            raise AssertionError("the step did not fail")
        except (ValueError, pipe.PipelineError) as error:
            assert "the disk is full" in str(error), error
        same(model.state_dict(), expected, 0.0)  # what was trained can still be saved
        pipe.shutdown()


@case(ranks=4, heavy=True)
def another_route_on_another_group_is_refused() -> None:
    model, train = _begun(Chosen, sharded_data_parallel_degree=4, timeout_seconds=8)
    train(model, **numbers(0, pipe.dp_rank(), first=3))
    refused(
        lambda: train(model, **numbers(0, 0, first=3 + pipe.dp_rank())),
        "the ranks ran different blocks",
        "sharded_data_parallel_degree",
    )


# Defects that are planted.


@case(ranks=2)
def wrong_means_of_shards_are_found() -> None:
    def lost(one: Means) -> None:
        for parameter in one._trained:
            parameter.grad = None if parameter.grad is None else parameter.grad * 1.001
        one.put_back()

    def once(ctx: Any, gradient: torch.Tensor) -> Any:
        one, axis, slices = ctx.facts
        return slices.of(gradient, axis, one.rank), None, None, None

    for change in (
        too_large_gradients(),
        patch.object(Means, "finish", lost),
        patch.object(crossing._Join, "backward", staticmethod(once)),
    ):
        model, train = _begun(Gpt)
        with change:
            refused(lambda train=train, model=model: train(model, **numbers(0, 0)), "is not that of the ")
        assert all(one.grad is None for one in model.parameters())
        pipe.shutdown()
