"""Stages whose modules are divided among the ranks of a tensor group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe
from trainshed.parallel.engine.gradients import GradientSync
from trainshed.parallel.engine.tensor import kinds
from trainshed.parallel.engine.tensor.division import Division
from trainshed.parallel.stages.stage_parts import StageParts
from trainshed.parallel.tracing import rng

from .replicas import Reader, Routed, lengths, routed_batches, unfreeze
from .sharded_stages import Odd, chain, rows
from .sharded_stages import words as numbers_of_words
from .table import begin, case, long_case, refused, same, same_norms
from .tensor import Gpt, Later, Read, Recomputed, Tied, Wrapped, _hooked, _llama, words
from .tensor import rows as six
from .training import adam, check, language, squared

TWO_BY_TWO: dict[str, Any] = {"partitions": 2, "tensor_parallel_degree": 2, "prescaled_batch": True}


def trains(build: Callable[[], nn.Module], batches: Any = six, **options: Any) -> pipe.PipelineModel:
    """Trains as one process does; each rank has parts of the modules that are divided on its stages."""
    model = check(build, batches, **{**TWO_BY_TWO, **options})
    inside = {id(one) for module in model.distributed_modules() for one in module.parameters(recurse=False)}
    held = dict(model.local_named_parameters())
    assert {name for name, one in held.items() if isinstance(one, DTensor)} == {
        name for name, one in held.items() if id(one) in inside
    }
    for one in held.values():
        if isinstance(one, DTensor):
            assert model.is_distributed_parameter(one)
            assert one.to_local().untyped_storage().nbytes() < one.element_size() * one.numel()
    return model


def again(build: Callable[[], nn.Module], batches: Any = six, **options: Any) -> None:
    trains(build, batches, **options)
    pipe.shutdown()


@case(ranks=4)
def divided_stages_of_many_kinds() -> None:
    again(lambda: nn.Sequential(*[nn.Linear(6, 6) for _ in range(4)]))
    again(Tied, words)
    again(Tied, words, optimizer=adam, tolerance=1e-4, verify_steps=1)
    again(Read, words)
    again(_hooked, tolerance=1e-4)
    for reentrant in (False, True):
        again(lambda reentrant=reentrant: Wrapped(Recomputed(reentrant)))


@case(ranks=4)
def divided_stages_under_each_schedule() -> None:
    for pipeline, stages in (
        ("simple", 1),
        ("interleaved", 1),
        ("interleaved1f1b", 2),
        ("interleavedzerobubble", 2),
        ("zbvzerobubble", 2),
    ):
        again(chain, rows, optimizer=adam, placement_strategy="spread", pipeline=pipeline, virtual_stages=stages)


@case(ranks=4)
def divided_stages_with_odd_sizes_shared_and_frozen_weights() -> None:
    def build() -> nn.Module:
        model = Odd()
        model.norm.eval()  # its statistics would be those of one microbatch
        model.norm.train = lambda mode=True: model.norm  # type: ignore[method-assign,assignment]
        return model

    again(build, numbers_of_words, optimizer=adam, tolerance=1e-5)
    again(build, numbers_of_words, optimizer=adam, tolerance=1e-5, partitions=1, tensor_parallel_degree=2)


@case(ranks=4)
def divided_stages_of_forwards_that_go_other_ways() -> None:
    again(lambda: Routed(2, 3, 5, 7), routed_batches)
    again(Reader, lengths, steps=5, between=unfreeze, optimizer=adam, tolerance=1e-4)


@case(ranks=4)
def divided_stages_that_the_script_names_or_excludes() -> None:
    def excluding() -> nn.Module:
        module = Wrapped(nn.Linear(6, 6))
        pipe.set_tensor_parallelism(module.middle, False)
        return module

    model = trains(excluding, pins={"first": 0, "middle": 0, "last": 1})
    names = {id(module): name for name, module in model.module.named_modules()}
    assert [names[id(one)] for one in model.distributed_modules()] == [["first"], ["last"]][pipe.pp_rank()]


@case(ranks=4)
def the_numbers_of_ranks_in_three_dimensions() -> None:
    begin(**TWO_BY_TWO)
    rank = pipe.rank()
    assert (pipe.pp_rank(), pipe.tp_rank(), pipe.rdp_rank()) == (rank // 2, rank % 2, 0)
    assert (pipe.pp_size(), pipe.tp_size(), pipe.rdp_size(), pipe.dp_rank()) == (2, 2, 1, rank % 2)
    assert dist.get_process_group_ranks(pipe.tp_group()) == [rank - rank % 2, rank - rank % 2 + 1]
    assert dist.get_process_group_ranks(pipe.pp_group()) == [rank % 2, rank % 2 + 2]
    pipe.shutdown()
    begin(placement_strategy="DTP", **TWO_BY_TWO)
    assert (pipe.pp_rank(), pipe.tp_rank()) == (rank % 2, rank // 2)
    pipe.shutdown()
    refused(lambda: begin(**{**TWO_BY_TWO, "tensor_parallel_degree": 4}), "does not divide 4 ranks in pipelines of 2")
    refused(lambda: begin(**{**TWO_BY_TWO, "prescaled_batch": False}), "needs prescaled_batch", kind=pipe.NotServed)


def _model(build: Callable[[], nn.Module] = chain, **settings: Any) -> pipe.PipelineModel:
    begin(**{"microbatches": 2, **TWO_BY_TWO, **settings})
    torch.manual_seed(3)
    return pipe.PipelineModel(build())


@case(ranks=4)
def divided_stages_have_one_batch() -> None:
    model = _model()
    refused(lambda: pipe.step(squared)(model, *rows(0, pipe.rank())), "was given another batch", "rdp_rank()")
    refused(lambda: pipe.step(squared)(model, *rows(0, pipe.tp_rank())), "was given another batch", "with the same batch")
    pipe.shutdown()
    model = _model(verify="off")
    x = rows(0, pipe.tp_rank())[0]

    @pipe.step
    def train(model: Any) -> torch.Tensor:
        return squared(model, x)

    refused(lambda: train(model), "had another input", "give it as an argument")
    assert all(parameter.grad is None for parameter in model.local_parameters())


@case(ranks=4)
def divided_stages_between_steps() -> None:
    model = _model(lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
    captured = list(model.parameters())
    update = pipe.PipelineOptimizer(torch.optim.SGD(captured, lr=0.5))
    alone = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    alone.load_state_dict(model.state_dict())
    other = torch.optim.SGD(alone.parameters(), lr=0.5)
    for number in range(4):
        for place in range(2):  # gradients add up
            pipe.step(squared)(model, *rows(2 * number + place))
            (alone(*rows(2 * number + place)).square().mean()).backward()
        assert all(one.grad is not None for one in alone.parameters())
        same_norms(model, alone)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        update.step()
        other.step()
        update.zero_grad()
        other.zero_grad()
    same(model.state_dict(), alone.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(*rows(0)), alone(*rows(0)))
        first = model.module[0]
        if model.is_distributed_parameter(first.weight):
            refused(lambda: first(*rows(0)), "is called outside a step")
        refused(lambda: model.module(*rows(0)), "outside a step")
    if pipe.pp_rank() == 0:
        refused(lambda: captured[0].sum(), "sharded in the first step", "named_parameters()")
    held = {name: tensor for name, tensor in model.local_state_dict().items() if name != "_smp_is_partial"}
    same(held, {name: tensor for name, tensor in alone.state_dict().items() if name in held})


@case(ranks=4)
def a_weight_of_a_divided_stage_that_is_read_later() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), Later(), nn.Linear(6, 6))

    model = _model(build, auto_partition=False, default_partition=1)
    model.set_partition(model.module[0], 0)
    pipe.step(squared)(model, *six(0, 0))
    model.eval()
    with torch.no_grad():
        refused(lambda: model(*six(0, 0)), "is read outside of its own module")


def stages_with_dropout(build: Callable[[], nn.Module], path: str, steps: int = 20, **more: Any) -> None:
    """With dropout and clipping, through checkpoints that other degrees go on from.

    Args:
        more: settings of divided stages.
    """

    def batch(number: int) -> torch.Tensor:
        return torch.randint(1, 53, (4, 8), generator=torch.Generator().manual_seed(number))

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        module = build().train()
        return module, torch.optim.AdamW(module.parameters(), lr=1e-3)

    module, update = made()
    torch.manual_seed(7)
    cpu, expected = torch.device("cpu"), []
    for number in range(steps):
        update.zero_grad()
        seed, losses = int(torch.randint(0, 2**62, (1,))), []
        kept = torch.get_rng_state()
        for place, part in enumerate(batch(number).chunk(2)):
            rng.set_state(rng.state_of_seed(seed + place, cpu), cpu)
            loss = module(input_ids=part, labels=part).loss
            (loss / 2).backward()
            losses.append(float(loss))
        torch.set_rng_state(kept)
        expected.append([sum(losses) / 2, float(nn.utils.clip_grad_norm_(module.parameters(), 0.5))])
        update.step()

    torch.manual_seed(7)
    train = pipe.step(language)
    found: list[list[float]] = []

    def goes_on(last: int, **settings: Any) -> pipe.PipelineModel:
        state = torch.get_rng_state()
        begin(microbatches=2, memory_weight=1.0, **settings)  # stages of chance may have little that can be divided
        given, plain = made()
        model, own = pipe.PipelineModel(given), pipe.PipelineOptimizer(plain)
        assert not found or pipe.load_checkpoint(path, model, own) == len(found)
        torch.set_rng_state(state)
        for number in range(len(found), last):
            own.zero_grad()
            loss = train(model, batch(number)).reduce_mean()
            found.append([float(loss), float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))])
            own.step()
        pipe.save_checkpoint(path, model, own, last)
        assert list(model.state_dict()) == list(module.state_dict())
        assert len(own.state_dict()["state"]) == len(update.state_dict()["state"])
        return model

    model = goes_on(steps // 3, **TWO_BY_TWO, **more)
    parts = sum(one.numel() for one in model.local_parameters() if model.is_distributed_parameter(one))
    assert parts > 0.9 * sum(one.numel() for one in model.local_parameters())
    pipe.shutdown()
    goes_on(2 * steps // 3, partitions=4)
    pipe.shutdown()
    saved = goes_on(steps, placement_strategy="spread", **TWO_BY_TWO, **more).state_dict()
    pipe.shutdown()
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=0)
    begin(partitions=1, tensor_parallel_degree=4)
    model = pipe.PipelineModel(made()[0])
    assert pipe.load_checkpoint(path, model) == steps
    model.eval()
    train(model, batch(0))
    same(model.state_dict(), saved, 0.0)


@long_case(ranks=4, heavy=True)
def a_divided_gpt_with_dropout_goes_on_with_other_degrees(steps: int) -> None:
    stages_with_dropout(Gpt, str(ranks.folder() / "tensor-stages" / f"gpt-{steps}"), steps)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=53, n_positions=8, n_embd=24, n_layer=2, n_head=4))


def gpt2_and_llama() -> None:
    """Of transformers, on four ranks that are started for it."""
    dist.init_process_group("gloo")
    for build in (_gpt2, partial(_llama, layers=2)):
        pipe.shutdown()
        stages_with_dropout(build, str(ranks.folder() / "tensor-stages" / type(build()).__name__))


def three_dimensions() -> None:
    """Two stages, two ranks a tensor group, two replicas."""
    dist.init_process_group("gloo")
    for placement in ("cluster", "spread", "PDT"):
        again(Tied, words, optimizer=adam, tolerance=1e-4, placement_strategy=placement)
        again(chain, rows, optimizer=adam, tolerance=1e-4, placement_strategy=placement, shard_optimizer_state=True)


# Defects that are planted one at a time: each is found before the first optimizer step.


def _found(
    change: Any,
    *words_: str,
    build: Callable[[], nn.Module] | None = None,
    steps: int = 1,
    pins: Mapping[str, int] | None = None,
    **settings: Any,
) -> None:
    model = _model(build or (lambda: nn.Sequential(nn.Embedding(13, 6), nn.LayerNorm(6), nn.Linear(6, 5))), **settings)
    for name, stage in (pins or {}).items():
        model.set_partition(model.module.get_submodule(name), stage)
    train = pipe.step(squared)
    for _ in range(steps - 1):
        train(model, *words(0, 0))
        model.zero_grad()
    with change:
        refused(lambda: train(model, *words(0, 0)), *words_)
    assert all(parameter.grad is None for parameter in model.local_parameters())
    pipe.shutdown()


@case(ranks=4)
def wrong_parts_of_divided_stages_are_found() -> None:
    native = Division.part_of

    def swapped(division: Division, old: nn.Parameter, axis: int) -> nn.Parameter:
        return native(division, nn.Parameter(old.detach().flip(axis)), axis)

    _found(patch.object(Division, "part_of", swapped), "is not right", "parameter '0.weight'", "is not the model's own")
    gathered = kinds.gathered
    _found(patch.object(kinds, "gathered", lambda *args: gathered(*args).roll(1, -1)), "'2'", "gave another output")
    _found(patch.object(kinds, "start_of", lambda *_: 0), "module '0'", "gave another output")


@case(ranks=4)
def wrong_sums_of_divided_stages_are_found() -> None:
    entering = patch.object(kinds, "entering", lambda x, _mesh: x)
    _found(entering, "is not right", "the gradient of '")
    _found(entering, "step 2 is not right", "the gradient of '", steps=2, verify_steps=1)

    def of_all(sync: GradientSync, name: str) -> Any:
        return native(sync, name)[0], sync.replicas

    native = GradientSync._alike
    _found(patch.object(GradientSync, "_alike", of_all), "is not right", "the gradient of '")
    left_out = patch.object(GradientSync, "_sum_shared", lambda _: None)
    _found(left_out, "is not right", "the gradient of 'table.weight'", build=Tied)


@case(ranks=4)
def random_numbers_that_are_not_those_of_the_group_are_found() -> None:
    def own(_parts: StageParts, seed: int) -> int:
        return seed + pipe.tp_rank()

    dropping = lambda: nn.Sequential(nn.Embedding(13, 6), nn.Dropout(0.5), nn.Linear(6, 5), nn.Linear(5, 5))  # noqa: E731
    torch.manual_seed(dist.get_rank())  # those of the first rank count
    _found(patch.object(StageParts, "agreed_seed", own), "had another input", build=dropping)
