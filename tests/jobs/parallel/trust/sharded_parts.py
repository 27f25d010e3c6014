"""Models without stages that are divided among tensor groups and sharded over their replicas: they train as one process
does, between steps a rank has its share alone, and what cannot be exact is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe
from trainshed.compat.smdistributed.modelparallel.torch.utils import get_distribution_axis
from trainshed.parallel.engine.block_shards import BlockShards
from trainshed.parallel.engine.tensor import kinds
from trainshed.parallel.engine.tensor.division import Division
from trainshed.parallel.engine.tensor.gradient_averaging import Means
from trainshed.parallel.engine.tensor.part_shards import PartShards
from trainshed.parallel.ground.shards import local

from .failures import Fragile
from .mixtures import ByHand, Mixture, Packed, with_losses
from .mixtures import Net as Experts
from .replicas import List, Routed, routed_batches
from .table import begin, case, long_case, refused, same, same_norms
from .tensor import Gpt, Later, Read, Recomputed, Tied, Twice, Wrapped, begun, rows, with_dropout, words, wrong_is_found
from .training import adam, check, language, sgd, squared

BOTH: dict[str, Any] = {"tensor_parallel_degree": 2, "sharded_data_parallel_degree": 2}
ONE_BATCH: dict[str, Any] = {**BOTH, "prescaled_batch": True}


class Deep(nn.Module):
    """Blocks of sizes that no number of ranks divides, whose results are changed in place, and a module that two of them
    have."""

    def __init__(self, in_place: bool = True) -> None:
        super().__init__()
        self.in_place = in_place
        self.table, self.head = nn.Embedding(13, 6), nn.Linear(6, 13, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 6)) for _ in range(3))
        self.last, self.one = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 6)), nn.Linear(6, 1)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> Any:
        x = self.table(x)
        for block in self.blocks:
            found = block(x)
            found = found.add_(x) if self.in_place else found + x
            x = self.blocks[0](found) + block(found)
        x = x + checkpoint(self.last, x, use_reentrant=False)
        return SimpleNamespace(found=self.head(x) * self.one(x))


def found_by(model: Any, *inputs: torch.Tensor) -> torch.Tensor:
    loss = model(*inputs).found.square().mean()
    model.backward(loss)
    return loss


def share(model: pipe.PipelineModel) -> float:
    """Bytes of this rank's parameters, of those of the whole model."""
    every = list(model.parameters())
    kept = sum(local(one.detach()).untyped_storage().nbytes() for one in every)
    return kept / sum(one.numel() * one.element_size() for one in every)


def trains(build: Callable[[], nn.Module], batches: Any = rows, **options: Any) -> None:
    """Trains as one process does, and every parameter is a shard."""
    model = check(build, batches, **{**BOTH, **options})
    for one in model.parameters():
        assert isinstance(one, DTensor) and one.placements[-1].is_shard(), (one.placements, one.shape)
        assert model.is_distributed_parameter(one) == (get_distribution_axis(one) is not None)
        assert one.grad is None or one.grad.placements == one.placements
    assert any(map(model.is_distributed_parameter, model.parameters()))
    pipe.shutdown()


@case(ranks=4, heavy=True)
def sharded_parts_of_a_few_kinds() -> None:
    trains(Deep, words, step=found_by, optimizer=adam, tolerance=1e-4)
    trains(lambda: Wrapped(Recomputed(False)), **ONE_BATCH)
    trains(Twice)


@case(ranks=4, heavy=True)
def sharded_parts_of_many_kinds() -> None:
    for settings in (BOTH, ONE_BATCH):
        trains(Tied, words, **settings)
        trains(Deep, words, step=found_by, optimizer=adam, tolerance=1e-4, **settings)
        trains(lambda: Wrapped(nn.LayerNorm(6)), optimizer=adam, tolerance=1e-4, verify_steps=1, **settings)
    trains(Tied, words, optimizer=adam, tolerance=1e-4, placement_strategy="spread", verify="changes")
    trains(lambda: nn.Sequential(*[nn.Linear(6, 6) for _ in range(4)]), optimizer=adam, tolerance=1e-4)
    for reentrant in (False, True):
        trains(lambda reentrant=reentrant: Wrapped(Recomputed(reentrant)))


@case(ranks=4)
def sharded_parts_of_weights_that_stay_whole() -> None:
    def weight_norm() -> nn.Module:
        return Wrapped(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)))

    trains(weight_norm)
    excluding = lambda: _excluding(Wrapped(nn.Linear(6, 6)))  # noqa: E731
    trains(excluding, atomic=("last",))
    model, _, _ = begun(Read, **BOTH)  # a weight that is read outside of its unit
    pipe.step(squared)(model, *words(0, pipe.rank()))
    assert not any(map(model.is_distributed_parameter, model.parameters()))


def _excluding(module: Any) -> nn.Module:
    pipe.set_tensor_parallelism(module.middle, False)
    return module


@case(ranks=4, heavy=True)
def sharded_parts_on_routes_of_each_batch() -> None:
    trains(lambda: Routed(5, 5, 5, 5), routed_batches)
    trains(List, routed_batches)
    trains(lambda: Routed(5, 5, 5, 5, 5), routed_batches, optimizer=adam, tolerance=1e-4)


@case(ranks=4)
def sharded_experts() -> None:
    trains(lambda: Experts(Mixture(), ByHand()), words, step=with_losses, optimizer=adam, tolerance=1e-4)
    trains(lambda: Experts(Mixture(room=3), Mixture()), words, step=with_losses)


@case(ranks=4)
def sharded_parts_that_thaw_later() -> None:
    def thaw(number: int, module: Any) -> None:
        module.first.requires_grad_(number > 0)
        module.last.bias.requires_grad_(number != 1)

    trains(lambda: Wrapped(nn.Linear(6, 6)), between=thaw)
    trains(lambda: Wrapped(nn.Linear(6, 6)), between=thaw, verify="changes", **ONE_BATCH)


class Few(Packed):
    """So few experts that not every rank would have one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.num_experts = count
        self.up, self.down = nn.Parameter(torch.randn(count, 8, 6) / 3), nn.Parameter(torch.randn(count, 6, 8) / 3)


@case(ranks=4)
def few_experts_are_sharded_along_another_axis() -> None:
    for count, settings, axes in ((3, {"sharded_data_parallel_degree": 4}, (1, 2)), (2, BOTH, (1, 1))):

        def build(count: int = count) -> nn.Module:
            return Experts(Mixture(partial(Few, count), only=count))

        model = check(build, words, step=with_losses, optimizer=adam, tolerance=1e-4, verify_steps=1, **settings)
        middle = model.module.middle.experts
        for one, axis in zip((middle.up, middle.down), axes, strict=True):
            assert one.placements[-1].is_shard(axis), (one.placements, one.shape)
            assert local(one.detach()).numel() * 4 == one.numel()
        pipe.shutdown()


@case(ranks=4, heavy=True)
def a_checkpoint_of_few_experts_goes_on_with_other_degrees() -> None:
    """All ranks are given one batch, so all ways train alike."""
    path = str(ranks.folder() / "few-experts" / "checkpoint")

    def build() -> nn.Module:
        return Experts(Mixture(partial(Few, 2), only=2))

    expected = list(_steps(path + "-replicas", 0, 5, {}, build))
    ways: list[dict[str, Any]] = [{"sharded_data_parallel_degree": 4}, ONE_BATCH, {"sharded_data_parallel_degree": 2}, BOTH]
    found = [loss for at, settings in enumerate([*ways, ways[0]]) for loss in _steps(path, at, 1, settings, build)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0)


@case(ranks=4)
def a_rank_holds_its_share_alone() -> None:
    begin(microbatches=2, **ONE_BATCH)
    module = nn.Sequential(nn.Embedding(64, 16), *[nn.Linear(16, 16) for _ in range(4)], nn.LayerNorm(16))
    model = pipe.PipelineModel(module)
    update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    x = torch.randint(0, 64, (4, 5))
    for _ in range(2):
        update.zero_grad()
        pipe.step(squared)(model, x)
        update.step()
    assert share(model) < 0.26, share(model)
    states = [one for entry in update.state.values() for one in entry.values() if one.dim()]
    every = sum(one.numel() for one in model.parameters())
    assert sum(local(one).numel() for one in states) < 0.26 * 2 * every
    assert sum(local(one.grad).numel() for one in model.parameters()) < 0.26 * every
    assert all(one.shape == p.shape for p, entry in update.state.items() for one in entry.values() if one.dim())


@long_case(ranks=4)
def sharded_gpts_with_dropout(steps: int) -> None:
    with_dropout(Gpt, 0.95, steps=steps, sharded_data_parallel_degree=2)


@case(ranks=4, heavy=True)
def sharded_gpts_with_dropout_on_one_batch() -> None:
    with_dropout(Gpt, 0.95, sharded_data_parallel_degree=2, prescaled_batch=True)


@case(ranks=4, heavy=True)
def sharded_parts_between_steps() -> None:
    model, update, _ = begun(Deep, adam, **ONE_BATCH)
    torch.manual_seed(3)
    alone = Deep()
    other = adam(alone.parameters())
    x = words(9, 0)[0]
    train = pipe.step(found_by)
    for number in range(2):
        for place in range(2):  # gradients add up
            train(model, *words(2 * number + place, 0))
            alone(*words(2 * number + place, 0)).found.square().mean().backward()
        assert all(one.grad is not None for one in alone.parameters())
        same_norms(model, alone)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        update.step()
        other.step()
        with torch.no_grad():  # what an evaluation leaves gathered is neither taken for a shard nor for a whole
            torch.testing.assert_close(model(x).found, alone(x).found, rtol=1e-4, atol=1e-6)
            refused(lambda: model.module(x), "outside a step")
        assert share(model) < 0.5
        assert len(update.state_dict()["state"]) == len(list(alone.parameters()))
        same(model.state_dict(), alone.state_dict(), 1e-4)
        same(_tensors(model.local_state_dict()), alone.state_dict(), 1e-4)
        update.zero_grad()
        other.zero_grad()


def _tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    found = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
    return {**found, "head.weight": found["table.weight"]}


@case(ranks=4, heavy=True)
def states_of_sharded_parts_go_through_dictionaries() -> None:
    model, update, _ = begun(Deep, adam, **BOTH)
    train = pipe.step(found_by)

    def steps(*numbers: int) -> dict[str, torch.Tensor]:
        for number in numbers:
            update.zero_grad()
            train(model, *words(number, pipe.dp_rank()))
            update.step()
        return model.state_dict()

    steps(0, 1)
    whole, of_update = model.state_dict(), copy.deepcopy(update.state_dict())
    parts, of_part = model.local_state_dict(), copy.deepcopy(update.local_state_dict())
    folder = ranks.folder() / "sharded-parts-weights"
    model.save_weights(folder)
    expected = steps(2, 3)
    model.load_weights(folder)
    same(model.state_dict(), whole, 0.0)
    update.load_state_dict(copy.deepcopy(of_update))
    same(steps(2, 3), expected, 0.0)
    model.load_state_dict(parts)
    update.load_state_dict(of_part)
    same(steps(2, 3), expected, 0.0)
    for one in model.parameters():  # what a script assigns counts in the next step
        one.data = one.data * 0.5
    same(model.state_dict(), {name: value * 0.5 for name, value in expected.items()}, 0.0)
    steps(4)
    half = {name: value * 0.5 for name, value in expected.items()}
    pipe.shutdown()
    model, update, _ = begun(Deep, adam, tensor_parallel_degree=4)
    model.load_state_dict(half)
    pipe.shutdown()
    model, update, _ = begun(Deep, adam, **BOTH)
    train = pipe.step(found_by)
    model.load_state_dict(whole)  # before the first step
    update.load_state_dict(copy.deepcopy(of_update))
    same(steps(2, 3), expected, 1e-5)


def deep() -> nn.Module:
    return nn.Sequential(Deep(False), Loss())


def _steps(
    path: str, at: int, number: int, settings: dict[str, Any], build: Callable[[], nn.Module] = deep
) -> Iterator[float]:
    slow = partial(torch.optim.AdamW, lr=1e-3)
    model, update, _ = begun(build, slow, **{"tensor_parallel_degree": 1, **settings})
    if at:
        assert pipe.load_checkpoint(path, model, update) == at
    for step in range(at, at + number):
        update.zero_grad()
        yield float(pipe.step(squared)(model, *words(step, 0)).reduce_mean())
        update.step()
    pipe.save_checkpoint(path, model, update, at + number)
    pipe.shutdown()


class Loss(nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        return x.found


@case(ranks=4, heavy=True)  # as of sharded pairs
def a_checkpoint_of_sharded_parts_goes_on_with_other_degrees() -> None:
    """All ranks are given one batch, so all ways train alike."""
    path = str(ranks.folder() / "sharded-parts" / "checkpoint")
    expected = list(_steps(path + "-replicas", 0, 7, {}))
    ways: list[dict[str, Any]] = [
        ONE_BATCH,
        {"tensor_parallel_degree": 4},
        {**BOTH, "placement_strategy": "spread"},
        {},
        BOTH,
        {"sharded_data_parallel_degree": 4},
    ]
    found = [loss for at, settings in enumerate([*ways, ways[0]]) for loss in _steps(path, at, 1, settings)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0)


@case(ranks=4)
def overflows_of_one_rank_skip_the_step_of_sharded_parts() -> None:
    begin(microbatches=2, fp16=True, verify="off", **BOTH)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5)))
    update = pipe.PipelineOptimizer(sgd(model.parameters()), pipe.GradScaler(init_scale=1024.0))
    run = pipe.step(squared)
    run(model, *rows(0, pipe.rank()))
    update.step()
    before = model.state_dict()
    update.zero_grad()
    run(model, rows(1, 0)[0] * (1e6 if pipe.rank() == 3 else 1.0))
    update.step()
    assert update.overflow
    same(model.state_dict(), before, 0.0)


@case(ranks=4, heavy=True)
def text_of_other_lengths_from_sharded_parts() -> None:
    from .tensor import _llama

    model, update, _ = begun(lambda: _llama(2), adam, **BOTH)
    x = torch.randint(1, 53, (4, 8))
    pipe.step(language)(model, x)
    update.step()
    torch.manual_seed(3)
    alone = _llama(2)
    alone.load_state_dict(model.state_dict())
    alone.eval()
    model.eval()
    mine = torch.arange(1, 4)[None] + pipe.rank()
    more = {"do_sample": False, "max_new_tokens": 2 + 2 * pipe.rdp_rank(), "pad_token_id": 0}
    assert torch.equal(model.generate(mine, **more), alone.generate(mine, **more))
    asked: Any = {**more, "output_hidden_states": True, "return_dict_in_generate": True}
    # Hooks that transformers puts on blocks while they are gathered stay there.
    found, expected = model.generate(mine, **asked).hidden_states, alone.generate(mine, **asked).hidden_states
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        found, expected = (one(input_ids=x, output_hidden_states=True).hidden_states for one in (model, alone))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    model.train()
    update.zero_grad()
    pipe.step(language)(model, x)
    update.step()
    assert share(model) < 0.3


@case(ranks=4)
def what_sharded_parts_refuse() -> None:
    def hooked() -> nn.Module:
        module = Wrapped(nn.Linear(6, 6))
        module.first.weight.register_hook(lambda gradient: gradient * 3)
        return module

    model, _, _ = begun(hooked, **BOTH)
    refused(lambda: pipe.step(squared)(model, *rows(0, pipe.rank())), "'first.weight' has a gradient hook")
    pipe.shutdown()

    def graded() -> nn.Module:
        module = Wrapped(nn.Linear(6, 6))
        module(rows(0, 0)[0]).sum().backward()
        return module

    model, _, _ = begun(graded, **BOTH)
    refused(lambda: pipe.step(squared)(model, *rows(0, pipe.rank())), "a gradient from before the first step", "zero_grad")
    pipe.shutdown()
    model, _, _ = begun(Later, **BOTH)
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    model.eval()
    with torch.no_grad():
        refused(lambda: model(*rows(0, pipe.rank())), "is read outside of its own module")
    pipe.shutdown()
    model, _, _ = begun(lambda: Wrapped(nn.LayerNorm(6)), **BOTH)
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    next(iter(model.parameters())).register_hook(lambda gradient: gradient)
    refused(lambda: pipe.step(squared)(model, *rows(1, pipe.rank())), "gradient hook")
    pipe.shutdown()
    refused(lambda: begun(Tied, **{**BOTH, "sharded_data_parallel_degree": 4}), "does not divide 2 replicas")
    pipe.shutdown()
    masters = {"master_weights": True, "bf16": True}
    refused(lambda: begun(Tied, **masters, **BOTH), "master_weights needs prescaled_batch", kind=pipe.NotServed)
    model, _, _ = begun(lambda: Wrapped(nn.LayerNorm(6)), **BOTH)
    captured = list(model.parameters())
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    for one in captured:
        refused(one.sum, "was divided among ranks")


@case(ranks=4)
def other_numbers_of_microbatches_of_sharded_parts() -> None:
    model, _, _ = begun(lambda: Wrapped(nn.Linear(6, 6)), microbatches=4, verify="off", **BOTH)
    pipe.step(squared)(model, *rows(0, pipe.rank()))
    few = rows(0, 0)[0][: 2 if pipe.rank() == 1 else 8]
    try:
        pipe.step(squared)(model, few)
    except pipe.PipelineError as error:
        assert "microbatches" in str(error), error


@case(ranks=4)
def after_a_failed_step_every_rank_saves_its_shard() -> None:
    for settings in (BOTH, {"tensor_parallel_degree": 4}):
        begin(microbatches=2, **settings)
        model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Fragile()))
        update = pipe.PipelineOptimizer(adam(model.parameters()))
        run, x = pipe.step(squared), torch.randn(8, 4)
        run(model, x)
        update.step()
        expected = model.state_dict()
        try:
            run(model, x * (1e6 if pipe.rank() == 0 else 1.0))
            raise AssertionError("the step did not fail")
        except (ValueError, pipe.PipelineError) as error:
            assert "a bad batch" in str(error), error
        path = str(ranks.folder() / "sharded-parts-failed" / "checkpoint")
        pipe.save_checkpoint(path, model, update)
        pipe.shutdown()
        begin(microbatches=2, partitions=2)
        model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Fragile()))
        pipe.load_checkpoint(path, model)
        same(model.state_dict(), expected, 0.0)
        pipe.shutdown()


# Defects that are planted one at a time: each is found before the first optimizer step.


_found = partial(wrong_is_found, **BOTH)


@case(ranks=4)
def wrong_parts_and_sums_of_sharded_parts_are_found() -> None:
    native = Division.part_of

    def swapped(division: Division, old: nn.Parameter, axis: int) -> nn.Parameter:
        return native(division, nn.Parameter(old.detach().flip(axis)), axis)

    _found(patch.object(Division, "part_of", swapped), "parameter '0.weight'", "is not the model's own")
    entering = patch.object(kinds, "entering", lambda x, _mesh: x)
    _found(entering, "the gradient of '")
    _found(entering, "the gradient of '", steps=2, verify_steps=1)
    _found(patch.object(kinds, "start_of", lambda *_: 0), "module '0'", "gave another output")

    def doubled(means: Means) -> None:
        for parameter in means._trained:
            parameter.grad = parameter.grad * 2
        means.put_back()

    _found(patch.object(Means, "finish", doubled), "the gradient of '", "it is 2 times")


@case(ranks=4)
def sums_of_replicas_that_are_not_taken_are_found() -> None:
    def own(shards: BlockShards, group: Any, native: Any) -> Any:
        def post_backward(*unused: Any) -> None:
            if dist.get_rank() > 1:
                for one in group.fsdp_params:
                    if one.unsharded_param.grad is not None:
                        one.unsharded_param.grad.zero_()
            native(*unused)

        return post_backward

    said = io.StringIO()
    with redirect_stdout(said):
        _found(patch.object(PartShards, "_filling", own), "the gradient of '")
