"""Models without stages whose parameters are sharded, each rank with a batch of its own: the first step is compared with the
undivided model, which leaves no trace, and what is wrong is found in it."""

from __future__ import annotations

from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel import sharded
from trainshed.parallel.engine.block_shards import BlockShards
from trainshed.parallel.engine.tensor.part_shards import PartShards
from trainshed.parallel.ground.shards import local

from .context import Around, Block, Chosen, Fails, Gpt, Often, begun, gpt2, numbers, trains
from .table import case, long_case, refused, same

SHARDED: dict[str, Any] = {"sharded_data_parallel_degree": 2}


def again(build: Any, **settings: Any) -> None:
    """Trains as one process does, with dropout and each replica's random numbers."""
    trains(build, degree=1, **{**SHARDED, **settings})
    pipe.shutdown()


@long_case(ranks=2)
def sharded_models_that_are_verified(steps: int) -> None:
    again(Gpt, steps=steps, parts=2)
    again(gpt2, verify_steps=1, parts=2)
    again(lambda: Around(False), verify="changes")
    again(lambda: Around(True), verify_steps=2, steps=4)
    again(Gpt, verify="off")


@case(ranks=4)
def sharded_copies_that_are_verified() -> None:
    again(gpt2, verify_steps=1)
    again(Gpt, sharded_data_parallel_degree=4)


@case(ranks=2)
def without_room_for_the_whole_model_nothing_is_verified() -> None:
    said = StringIO()
    with redirect_stdout(said), patch.object(sharded, "free_bytes", lambda _device: 1e4 * pipe.rank()):
        again(Gpt)
    assert pipe.session.session.grid is None
    words = "this step is not verified: rank 0 has no room for the whole model"
    assert (words in said.getvalue()) == (torch.distributed.get_rank() == 0), said.getvalue()


@case(ranks=2)
def each_rank_generates_from_shards_as_long_as_it_likes() -> None:
    model = trains(gpt2, degree=1, **SHARDED)
    alone = gpt2().eval()
    alone.load_state_dict(model.state_dict())
    model.eval()
    x, options = numbers(50, pipe.rank())["input_ids"][:1, : 5 + pipe.rank()], {"do_sample": False}
    found = model.generate(x, max_new_tokens=3 + 4 * pipe.rank(), **options)
    assert torch.equal(found, alone.generate(x, max_new_tokens=3 + 4 * pipe.rank(), **options))
    with torch.no_grad():
        torch.testing.assert_close(model(x[:, :5]).logits, alone(x[:, :5]).logits)


_begun = partial(begun, context_parallel_degree=1, **SHARDED)


@case(ranks=2)
def a_rank_that_fails_is_heard_by_those_with_other_shards() -> None:
    model, train = _begun(lambda: Gpt(Block(), Fails()))
    expected = model.state_dict()
    train(model, **numbers(0, pipe.rank(), 13))
    try:
        train(model, **numbers(1, pipe.rank(), 12))
        raise AssertionError("the step did not fail")
    except (ValueError, pipe.PipelineError) as error:
        assert "the disk is full" in str(error), error
    same(model.state_dict(), expected, 0.0)


@case(ranks=2)
def what_sharded_models_do_not_serve() -> None:
    model, train = _begun(Often)
    refused(lambda: train(model, **numbers(0, 0)), "is read outside of the block that has it", "in the block's own forward")
    pipe.shutdown()
    model, train = _begun(Chosen, timeout_seconds=8)
    train(model, **numbers(0, pipe.rank(), first=3))
    words = "the ranks ran different blocks", "with sharded_data_parallel_degree all run the same"
    refused(lambda: train(model, **numbers(0, 0, first=3 + pipe.rank())), *words)


# Defects that are planted.


def too_large_gradients() -> Any:
    """A patch: gradients are a thousandth larger before they are summed."""
    filling = BlockShards._filling

    def more(shards: BlockShards, group: Any, own: Any) -> Any:
        def post_backward(*unused: Any) -> None:
            for one in group.fsdp_params:
                if getattr(one, "_unsharded_param", None) is not None and one.unsharded_param.grad is not None:
                    one.unsharded_param.grad.mul_(1.001)
            own(*unused)

        return filling(shards, group, post_backward)

    return patch.object(BlockShards, "_filling", more)


@case(ranks=2)
def wrong_shards_and_sums_are_found() -> None:
    made, used = PartShards.__init__, BlockShards.used

    def moved(shards: PartShards, root: nn.Module, *args: Any) -> None:
        made(shards, root, *args)
        with torch.no_grad():
            local(root.blocks[1].out.weight).add_(1e-3)  # type: ignore[union-attr,index,arg-type]

    def lost(shards: BlockShards, parameters: Any) -> list[bool]:
        return [one and number > 3 for number, one in enumerate(used(shards, parameters))]

    for change, words in (
        (too_large_gradients(), "the gradient of '"),
        (patch.object(PartShards, "__init__", moved), "parameter 'blocks.1.out.weight'"),
        (patch.object(BlockShards, "used", lost), "the gradient of '"),
    ):
        model, train = _begun(Gpt)
        with change:
            refused(
                lambda train=train, model=model: train(model, **numbers(0, pipe.rank())),
                words,
                "is not right, no parameter was changed",
            )
        assert all(one.grad is None for one in model.parameters())
        pipe.shutdown()
