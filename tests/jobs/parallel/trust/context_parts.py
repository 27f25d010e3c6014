"""Models whose modules are divided among tensor groups, and inside of whose blocks context groups divide sequences: they
train as one process does, and what is wrong is found or refused by all ranks."""

from __future__ import annotations

import time
from functools import partial
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe
from trainshed.compat.smdistributed.modelparallel import torch as smp
from trainshed.parallel.engine.context import crossing
from trainshed.parallel.engine.context.slices import Slices
from trainshed.parallel.engine.tensor import kinds
from trainshed.parallel.engine.tensor.division import Division
from trainshed.parallel.engine.tensor.gradient_averaging import Means
from trainshed.parallel.ground.shards import local

from .context import (
    REFUSED,
    Around,
    Block,
    Build,
    Convolved,
    Gpt,
    InnerReentrant,
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
from .mixtures import COUNT, Packed
from .table import SECONDS, begin, case, long_case, refused, same

BOTH: dict[str, Any] = {"tensor_parallel_degree": 2, "prescaled_batch": True}
SHARDS: dict[str, Any] = {**BOTH, "sharded_data_parallel_degree": 2}


def again(build: Build, batches: Any = numbers, blocks: int = 2, **settings: Any) -> pipe.PipelineModel:
    """Trains as one process does; a rank has its parts of parameters alone, and blocks divide sequences."""
    model = trains(build, batches, **{**BOTH, **settings})
    assert len(divided(model)) == blocks, divided(model)
    parts = [one for one in model.parameters() if model.is_distributed_parameter(one)]
    assert parts and all(isinstance(one, DTensor) for one in parts)
    kept = sum(local(one.detach()).untyped_storage().nbytes() for one in parts)
    assert kept < 0.6 * sum(one.numel() * one.element_size() for one in parts)
    return model


def trained(build: Build, batches: Any = numbers, **settings: Any) -> None:
    again(build, batches, **settings)
    pipe.shutdown()


@long_case(ranks=4, heavy=True)
def models_that_are_divided_twice(steps: int) -> None:
    trained(Gpt, steps=steps, parts=2)
    trained(gpt2, steps=steps)
    trained(llama, with_padding, steps=steps)


@long_case(ranks=4)
def models_that_are_divided_twice_and_sharded(steps: int) -> None:
    trained(Gpt, steps=steps, parts=2, **SHARDS)
    trained(llama, with_padding, steps=steps, **SHARDS)
    trained(gpt2, verify="off", **SHARDS)
    trained(lambda: Around(False), verify_steps=1, **SHARDS)


@case(ranks=4, heavy=True)
def other_ways_to_train_them() -> None:
    def changing(step: int, replica: int) -> dict[str, torch.Tensor]:
        return numbers(step, replica, (3, 13, 5, 30)[step])

    trained(Gpt, changing, steps=4)
    trained(Gpt, shard_optimizer_state=True, placement_strategy="spread")
    trained(Gpt, verify="off")
    trained(Gpt, verify_steps=1)
    trained(lambda: Around(False))
    trained(lambda: Around(True))
    trained(lambda: Gpt(InnerReentrant(), InnerReentrant()))
    trained(Often, blocks=1)


class Wide(Packed):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(COUNT, 9, 12) / 3), nn.Parameter(torch.randn(COUNT, 12, 9) / 3)


class Mixed(Block):
    """A block with a mixture of experts, which not all ranks' tokens reach."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(12, COUNT, bias=False), Wide()

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        weights, chosen = self.router(flat).softmax(-1).topk(2)
        return x + self.experts(flat, chosen, weights=weights).view_as(x)


@case(ranks=4)
def experts_in_blocks_that_are_divided() -> None:
    for settings in ({}, {"sharded_data_parallel_degree": 2}):
        model = again(lambda: Gpt(Mixed(), Block()), **settings)
        assert model.module.blocks[0].experts in set(model.distributed_modules())
        pipe.shutdown()


@case(ranks=4)
def modules_and_blocks_that_stay_whole() -> None:
    def frozen() -> nn.Module:
        model = Gpt()
        model.blocks[0].requires_grad_(False)
        model.blocks[1].out.requires_grad_(False)
        return model

    def named() -> nn.Module:
        model = Gpt()
        pipe.set_tensor_parallelism(model.blocks[0].mlp)
        pipe.set_context_parallelism(model.blocks[0].mlp)
        pipe.set_context_parallelism(model.blocks[1])
        return model

    trained(frozen)
    assert divided(again(named)) == {"blocks.0.mlp", "blocks.1"}


@case(ranks=4)
def places_in_both_groups() -> None:
    begin(context_parallel_degree=2, **BOTH)
    rank = pipe.rank()
    assert (pipe.tp_rank(), pipe.tp_size(), pipe.cp_rank(), pipe.cp_size()) == (rank % 2, 2, rank // 2, 2)
    assert (pipe.rdp_rank(), pipe.rdp_size(), pipe.dp_rank(), pipe.dp_size()) == (0, 1, rank % 2, 2)
    assert dist.get_process_group_ranks(pipe.tp_group()) == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert dist.get_process_group_ranks(pipe.cp_group()) == [rank % 2, rank % 2 + 2]
    assert dist.get_process_group_ranks(pipe.rdp_group()) == [rank]
    pipe.shutdown()
    both = {"tensor_parallel_degree": 2, "context_parallel_degree": 2}
    refused(lambda: begin(**both), "together with context_parallel_degree needs prescaled_batch = true", "rdp_rank()")
    refused(
        lambda: begin(context_parallel_degree=4, **BOTH),
        "tensor_parallel_degree = 2 times context_parallel_degree = 4 does not divide 4 ranks",
    )
    refused(lambda: begin(partitions=2, context_parallel_degree=2, **BOTH), "does not divide 4 ranks in pipelines of 2")
    refused(lambda: begin(bf16=True, master_weights=True, context_parallel_degree=2, **SHARDS), "needs stages")
    smp.init({"partitions": 1, "context_parallel_degree": 2, **BOTH, "timeout_seconds": SECONDS})
    assert (smp.rdp_rank(), smp.rdp_size(), smp.get_rdp_group()) == (0, 1, [rank])
    assert smp.get_tp_group() == [rank // 2 * 2, rank // 2 * 2 + 1]


_begun = partial(begun, **BOTH)


@case(ranks=4, heavy=True)
def models_that_are_divided_twice_between_steps() -> None:
    for settings in ({}, {"sharded_data_parallel_degree": 2}):
        model = again(gpt2, **settings)
        alone = gpt2().eval()
        alone.load_state_dict(model.state_dict())
        model.eval()
        x = numbers(50, 0)["input_ids"]
        with torch.no_grad():
            found = model(x)
            torch.testing.assert_close(found.logits, alone(x).logits)
            assert found.past_key_values.get_seq_length() == x.size(1)
            torch.testing.assert_close(pipe.step(lambda model, x: model(x).logits)(model, x).concat(), alone(x).logits)
            refused(lambda model=model, x=x: model.module(x), "outside a step")
        options = {"max_new_tokens": 4, "do_sample": False}
        assert torch.equal(model.generate(x[:1, :5], **options), alone.generate(x[:1, :5], **options))
        pipe.shutdown()


@case(ranks=4)
def a_checkpoint_of_both_goes_on_with_other_degrees() -> None:
    path = str(ranks.folder() / "context-parts")
    expected = list(curve(path + "-whole", 1, 0, 8))
    ways: list[tuple[int, dict[str, Any]]] = [
        (2, BOTH),
        (4, {}),
        (2, {"shard_optimizer_state": True, **BOTH}),
        (1, {"partitions": 2, **BOTH}),
        (2, SHARDS),
        (1, {"tensor_parallel_degree": 4}),
        (2, {"placement_strategy": "spread", **BOTH}),
    ]
    every = enumerate([*ways, ways[0]])  # the step of the last one shows in a further loss
    found = [loss for at, (degree, more) in every for loss in curve(path, degree, at, at + 1, **more)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0)


@case(ranks=4, heavy=True)
def blocks_of_parts_that_cannot_be_divided_are_refused() -> None:
    for kind in (Convolved, *(one for one in REFUSED if one.__name__ in ("Scanned", "Balanced", "InPlace"))):
        for verify in ("first", "off"):
            model, train = _begun(lambda kind=kind: Gpt(Block(), kind()), verify=verify)
            words = f"'blocks.1' ({kind.__name__}) cannot be divided along the sequence: "
            refused(lambda train=train, model=model: train(model, **numbers(0, 0, 12)), words, REFUSED[kind])
            assert all(one.grad is None for one in model.parameters())
            pipe.shutdown()
    model, train = _begun(lambda: Gpt(Block(), Convolved()), sharded_data_parallel_degree=2)
    refused(lambda: train(model, **numbers(0, 0, 12)), "'blocks.1' (Convolved) cannot be divided")
    pipe.shutdown()
    model, train = _begun(lambda: gpt2(attn_implementation="eager"))
    refused(lambda: train(model, **numbers(0, 0)), "divides nothing: 'transformer.h.0' calls no attention of torch", "sdpa")


@case(ranks=4)
def other_batches_of_both_groups_are_refused() -> None:
    for rank in (1, 2):
        model, train = _begun(Gpt)
        refused(
            lambda train=train, model=model, rank=rank: train(model, **numbers(0, pipe.rank() == rank)),
            f"rank {rank} was given another batch than rank 0 of the same tensor x context group",
            "split data by rdp_rank() of rdp_size()",
        )
        pipe.shutdown()
        model, _ = _begun(Gpt, verify="off", timeout_seconds=8)
        given = numbers(0, int(pipe.rank() == rank))

        @pipe.step
        def train_on_it(model: Any, given: Any = given) -> torch.Tensor:
            loss = model(**given).loss
            model.backward(loss)
            return loss

        refused(lambda train_on_it=train_on_it, model=model: train_on_it(model))
        pipe.shutdown()


class Fails(Block):
    """On one rank, with a sequence or a part of one length."""

    def __init__(self, rank: int, length: int) -> None:
        super().__init__()
        self.rank, self.length = rank, length

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if self.training and x.size(1) == self.length and pipe.rank() == self.rank:
            raise ValueError("the disk is full")
        return super().forward(x, mask)


@case(ranks=4)
def a_rank_that_fails_in_both_groups_is_heard_at_once() -> None:
    for rank, length, more in ((1, 12, {}), (3, 6, {}), (2, 12, {"sharded_data_parallel_degree": 2})):
        model, train = _begun(lambda rank=rank, length=length: Gpt(Block(), Fails(rank, length)), **more)
        expected = model.state_dict()
        train(model, **numbers(0, 0, 9))
        started = time.monotonic()
        try:
            train(model, **numbers(1, 0, 12))
            raise AssertionError("the step did not fail")
        except (ValueError, pipe.PipelineError) as error:
            assert "the disk is full" in str(error), error
        assert time.monotonic() - started < SECONDS / 2, (rank, length, more)
        path = str(ranks.folder() / "context-parts-failed")
        pipe.save_checkpoint(path, model)  # what was trained can still be saved
        pipe.shutdown()
        model, _ = begun(lambda: Gpt(Block(), Block()), context_parallel_degree=1)
        pipe.load_checkpoint(path, model)
        same(model.state_dict(), expected, 0.0)
        pipe.shutdown()


# Defects that are planted one at a time: each is found in the first step.


def _found(change: Any, *words: str, **settings: Any) -> None:
    model, train = _begun(Gpt, **settings)
    with change:
        refused(lambda: train(model, **numbers(0, 0)), *words)
    assert all(parameter.grad is None for parameter in model.parameters())
    pipe.shutdown()


@case(ranks=4)
def what_is_wrong_between_both_groups_is_found() -> None:
    native = Slices.joined
    swapped = lambda slices, parts, axis: native(slices, parts, axis).roll(1, axis)  # noqa: E731
    _found(patch.object(Slices, "joined", swapped), "'blocks.0' (Block) cannot be divided")

    def once(ctx: Any, gradient: torch.Tensor) -> Any:
        one, axis, slices = ctx.facts
        return slices.of(gradient, axis, one.rank), None, None, None

    _found(patch.object(crossing._Join, "backward", staticmethod(once)), "the gradient of")
    _found(patch.object(kinds, "entering", lambda x, _mesh: x), "is not that of the undivided model")

    def alone(means: Means) -> None:
        means.put_back()

    for settings in ({}, {"sharded_data_parallel_degree": 2}):
        change = patch.object(Means, "finish", alone) if not settings else patch.object(Division, "part_of", _flipped)
        _found(change, "is not ", **settings)


_part_of = Division.part_of


def _flipped(division: Division, old: nn.Parameter, axis: int) -> nn.Parameter:
    return _part_of(division, nn.Parameter(old.detach().flip(axis)), axis)
