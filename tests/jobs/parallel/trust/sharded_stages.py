"""Stages whose parameters, gradients and optimizer states are sharded over replicas."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import trainshed.parallel as pipe
from trainshed.parallel.engine.remote_parameters import AbsentParameter
from trainshed.parallel.engine.stage_shards import Reduced, StageShards
from trainshed.parallel.ground.shards import local

from .defects import after
from .failures import Fragile
from .in_parts import short_of_memory
from .replicas import Reader, Routed, lengths, routed_batches, unfreeze
from .table import begin, case, refused, same
from .training import adam, check, nothing, one_process, sgd, squared
from .without_values import build, train

TWO_BY_TWO: dict[str, Any] = {"partitions": 2, "sharded_data_parallel_degree": 2}


class Odd(nn.Module):
    """Sizes that no number of ranks divides, a number, weights that stages share, frozen ones, transposed ones, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.first, self.norm = nn.Linear(3, 5), nn.BatchNorm1d(5)
        self.middle = nn.Linear(5, 1)
        self.back = nn.Linear(1, 3)
        self.factor = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.table.weight
        self.back.weight.data = self.back.weight.data.t().contiguous().t()
        self.middle.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(self.table(x)).relu())
        return self.head(self.back(self.middle(x)) * self.factor)


def words(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 7, (8,), generator=torch.Generator().manual_seed(50 * number + replica)),)


def rows(number: int, replica: int = 0) -> tuple[torch.Tensor, ...]:
    return (torch.randn(8, 4, generator=torch.Generator().manual_seed(50 * number + replica)),)


def chain() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 4))


def kept(model: pipe.PipelineModel) -> int:
    """Bytes of this rank's parameters."""
    return sum(local(one.detach()).untyped_storage().nbytes() for one in model.local_parameters())


@case(ranks=4)
def odd_sizes_shared_and_frozen_weights() -> None:
    def build() -> nn.Module:
        model = Odd()
        model.norm.eval()  # its statistics would be those of one replica
        model.norm.train = lambda mode=True: model.norm  # type: ignore[method-assign,assignment]
        return model

    check(build, words, optimizer=adam, tolerance=1e-5, **TWO_BY_TWO)


@case(ranks=4)
def each_schedule() -> None:
    for pipeline, stages in (("simple", 1), ("interleaved1f1b", 2), ("interleavedzerobubble", 2), ("zbvzerobubble", 2)):
        more = {"pipeline": pipeline, "virtual_stages": stages}
        check(chain, rows, optimizer=adam, placement_strategy="spread", **more, **TWO_BY_TWO)
        pipe.shutdown()


@case(ranks=4)
def parameters_that_one_replica_does_not_use() -> None:
    check(lambda: Routed(2, 3, 5, 7), routed_batches, **TWO_BY_TWO)


@case(ranks=4)
def parameters_that_nobody_uses_keep_their_values() -> None:
    check(lambda: Routed(5, 5, 5, 5, 5), routed_batches, optimizer=adam, tolerance=1e-4, **TWO_BY_TWO)


@case(ranks=4)
def replicas_with_other_lengths_and_unfreezing() -> None:
    check(Reader, lengths, steps=5, between=unfreeze, optimizer=adam, tolerance=1e-4, **TWO_BY_TWO)


@case(ranks=4)
def between_steps_a_rank_holds_its_parts_alone() -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    module = chain()
    whole = sum(one.numel() * 4 for one in module.parameters())
    model = pipe.PipelineModel(module)
    update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    run = pipe.step(squared)
    for number in range(2):
        run(model, *rows(number, pipe.dp_rank()))
        update.step()
    mine = torch.tensor(
        [kept(model), sum(local(s).numel() * 4 for e in update.state.values() for s in e.values() if s.dim())]
    )
    dist.all_reduce(mine)
    assert mine.tolist() == [whole, 2 * whole], (mine, whole)
    gradients = [one.grad for one in model.local_parameters()]
    assert all((g is not None and g.to_local().numel() < g.numel()) or g.shape[0] < 2 for g in gradients)


@case(ranks=4)
def gradients_add_up_over_steps_and_are_clipped_as_a_whole() -> None:
    norms = {}
    for degree in (1, 2):
        pipe.shutdown()
        begin(microbatches=2, partitions=2, sharded_data_parallel_degree=degree)
        model = pipe.PipelineModel(chain())
        captured = [one for one in model.parameters() if one.requires_grad]
        update = pipe.PipelineOptimizer(torch.optim.SGD(captured, lr=0.1))
        run = pipe.step(squared)
        found = []
        for number in range(3):
            run(model, *rows(2 * number, pipe.dp_rank()))
            run(model, *rows(2 * number + 1, pipe.dp_rank()))
            for kind in (1.0, 2.0, float("inf")):
                found.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None], kind))
            found.append(nn.utils.clip_grad_norm_(captured, 0.01))
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            update.step()
            update.zero_grad()
        norms[degree] = {"norms": torch.stack(found), **model.state_dict()}
    same(norms[2], norms[1], 1e-5)


@case(ranks=4)
def plain_optimizers_made_before_the_first_step_follow() -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    expected = one_process(chain, rows, 2, 2, 3, nothing, adam)
    model = pipe.PipelineModel(chain())
    updates = [torch.optim.AdamW(list(model.module[:3].parameters()), lr=0.05)]
    updates.append(torch.optim.AdamW(list(model.module[3:].parameters()), lr=0.05))
    run = pipe.step(squared)
    for number in range(3):
        for update in updates:
            update.zero_grad()
        run(model, *rows(number, pipe.dp_rank()))
        for update in updates:
            update.step()
    same(model.state_dict(), expected)


@case(ranks=4)
def tensors_of_before_the_first_step_are_refused_with_words() -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    model = pipe.PipelineModel(chain())
    old = [one for one in model.parameters()]
    pipe.step(squared)(model, *rows(0, pipe.dp_rank()))
    held = set(map(id, model.local_parameters()))
    assert held.isdisjoint(map(id, old))
    names = list(dict(model.local_named_parameters()))
    mine = [old[list(dict(model.module.named_parameters())).index(name)] for name in names]
    refused(lambda: mine[0].sum(), "was sharded in the first step", "named_parameters()")
    refused(lambda: mine[0].data.add_(1.0), "was sharded in the first step")
    refused(lambda: mine[0].grad, "was sharded in the first step")
    refused(lambda: nn.utils.clip_grad_value_(mine, 1.0), "was sharded in the first step")
    refused(lambda: torch._foreach_mul_(mine, 2.0), "was sharded in the first step")
    refused(lambda: copy.deepcopy(mine[0]), "was sharded in the first step")
    refused(lambda: torch.optim.LBFGS(old).step(lambda: 0.0), "LBFGS", "sharded")


@case(ranks=4)
def averages_and_changes_between_steps_are_those_of_the_whole_model() -> None:
    def between(number: int, module: nn.Module) -> None:
        with torch.no_grad():
            for one in module.parameters():
                one.mul_(0.9)
        if number == 0:
            averages.clear()
            return
        for name, one in module.named_parameters():
            if not isinstance(one, AbsentParameter):
                value = one.detach().clone()
                averages[name] = averages[name].lerp(value, 0.1) if name in averages and number > 1 else value

    averages: dict[str, torch.Tensor] = {}
    begin(microbatches=2, **TWO_BY_TWO)
    one_process(chain, rows, 2, 2, 4, between, sgd)
    expected = dict(averages)
    pipe.shutdown()
    check(chain, rows, steps=4, between=between, **TWO_BY_TWO)
    for name, value in averages.items():
        assert torch.allclose(value.full_tensor(), expected[name], atol=1e-5), name  # type: ignore[attr-defined]


@case(ranks=4)
def a_degree_that_does_not_divide_the_replicas_is_refused() -> None:
    refused(lambda: shard_by(partitions=2, sharded_data_parallel_degree=3), "does not divide 2 replicas")


def shard_by(**settings: Any) -> pipe.PipelineModel:
    begin(microbatches=2, **settings)
    return pipe.PipelineModel(chain())


@case(ranks=4)
def a_state_goes_from_shards_to_stages_and_back() -> None:
    """Twenty steps in five parts, each on the checkpoint of the one before, with the optimizer's state; dropout is on."""

    def build() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))

    def part(start: int, stop: int, **settings: Any) -> dict[str, torch.Tensor]:
        pipe.shutdown()
        begin(microbatches=4, **settings)
        model = pipe.PipelineModel(build())
        update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        path = str(ranks.folder() / "sharded-stages" / "checkpoint")
        if start:
            pipe.load_checkpoint(path, model, update)
        run = pipe.step(squared)
        for number in range(start, stop):
            torch.manual_seed(number)
            whole = torch.cat([rows(number, 0)[0]])
            length = len(whole) // pipe.dp_size()
            update.zero_grad()
            run(model, whole[pipe.dp_rank() * length :][:length])
            update.step()
        pipe.save_checkpoint(path, model, update)
        return model.state_dict()

    # Each replica draws its own random numbers: what is compared has as many replicas.
    alike = {"partitions": 2}
    expected = part(0, 20, **alike)
    part(0, 5, **TWO_BY_TWO)
    part(5, 10, **alike)
    part(10, 15, **TWO_BY_TWO, placement_strategy="spread")
    same(part(15, 20, **TWO_BY_TWO, pipeline="simple"), expected, 1e-6)


def planted(change: Callable[[], Any], *words: str) -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    model = pipe.PipelineModel(chain())
    run = pipe.step(squared)
    with change():
        refused(lambda: run(model, *rows(0, pipe.dp_rank())), "step 1 is not right", *words)


@case(ranks=4)
def a_swapped_shard_is_found() -> None:
    native = StageShards._part_of

    def swapped(self: StageShards, value: torch.Tensor) -> torch.Tensor:
        place, self._place = self._place, 1 - self._place
        try:
            part = native(self, value)
        finally:
            self._place = place
        return part if value.dim() and value.shape[0] % 2 == 0 else native(self, value)

    planted(lambda: patch.object(StageShards, "_part_of", swapped), "parameter", "is not the model's own")


@case(ranks=4)
def a_sum_over_replicas_that_is_left_out_is_found() -> None:
    def own(reduced: Any, self: StageShards, *_: Any) -> Any:
        table = reduced._table

        class Left(Reduced):
            def parts(self) -> tuple[torch.Tensor, ...]:
                mine = table[place].clone() * 2  # the right size
                super().parts()
                return mine.split(self._lengths)

        place = self._place
        reduced.__class__ = Left
        return reduced

    planted(lambda: after(StageShards, "reduce", own), "gradient of")


@case(ranks=4)
def a_sum_that_is_left_out_is_found_without_room_for_the_model() -> None:
    with short_of_memory():
        a_sum_over_replicas_that_is_left_out_is_found()


@case(ranks=4)
def in_float16_an_overflow_of_one_rank_skips_the_step_on_all() -> None:
    def trained(scale: float, **settings: Any) -> dict[str, torch.Tensor]:
        pipe.shutdown()
        begin(microbatches=2, partitions=2, fp16=True, **settings)
        model = pipe.PipelineModel(chain())
        captured = list(model.parameters())
        update = pipe.PipelineOptimizer(torch.optim.SGD(captured, lr=0.1), pipe.GradScaler(init_scale=scale))
        run = pipe.step(squared)
        skipped, norms = [], []
        for number in range(3):
            update.zero_grad()
            bad = 1e7 if number == 1 and pipe.dp_rank() == 1 else 1.0
            run(model, rows(number, pipe.dp_rank())[0] * bad)
            norms.append(nn.utils.clip_grad_norm_(captured, 0.5).reshape(()))
            update.step()
            skipped.append(update.overflow)
        assert skipped == [False, True, False], skipped
        return {"norms": torch.stack([norms[0], norms[2]]), "scale": torch.tensor(update.loss_scale), **model.state_dict()}

    same(trained(1024.0, sharded_data_parallel_degree=2), trained(1024.0), 1e-3)


@case(ranks=4)
def a_model_built_without_values_is_sharded_too() -> None:
    states = []
    for settings in ({}, {"sharded_data_parallel_degree": 2}):
        pipe.shutdown()
        for delayed in (False, True):
            pipe.shutdown()
            model, update, step = build(delayed, **settings)
            losses = train(model, update, step, range(3))
            states.append({"losses": torch.tensor(losses), **model.state_dict()})
    for state in states[1:]:
        same(state, states[0], 1e-6)


@case(ranks=4)
def a_checkpoint_is_read_by_those_who_hold_it() -> None:
    path = str(ranks.folder() / "sharded-without-values" / "checkpoint")
    model, update, step = build(True, **{"sharded_data_parallel_degree": 2})
    train(model, update, step, range(2))
    pipe.save_checkpoint(path, model, update, {"step": 2})
    expected = train(model, update, step, range(2, 4))
    pipe.shutdown()
    model, update, step = build(True, 77, **{"sharded_data_parallel_degree": 2})
    assert pipe.load_checkpoint(path, model, update) == {"step": 2}
    assert train(model, update, step, range(2, 4)) == expected


@case(ranks=4)
def states_go_through_dictionaries_whole_and_in_part() -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    model = pipe.PipelineModel(chain())
    update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    run = pipe.step(squared)

    def steps(*numbers: int) -> dict[str, torch.Tensor]:
        for number in numbers:
            update.zero_grad()
            run(model, *rows(number, pipe.dp_rank()))
            update.step()
        return model.state_dict()

    steps(0, 1)
    whole, of_update = model.state_dict(), update.state_dict()
    parts, of_part = model.local_state_dict(), copy.deepcopy(update.local_state_dict())
    entries = [value for entry in of_part["by_name"].values() for value in entry.values()]
    assert not any(isinstance(one, DTensor) for one in [*parts.values(), *entries])
    folder = ranks.folder() / "sharded-weights"
    model.save_weights(folder)
    expected = steps(2, 3)
    model.load_weights(folder)
    same(model.state_dict(), whole, 0.0)
    model.load_state_dict(whole)
    update.load_state_dict(copy.deepcopy(of_update))
    same(steps(2, 3), expected, 0.0)
    model.load_state_dict(parts)
    update.load_state_dict(copy.deepcopy(of_part))
    same(steps(2, 3), expected, 0.0)
    for early in (whole, parts):  # and before the first step, with another cut
        pipe.shutdown()
        begin(microbatches=2, **TWO_BY_TWO)
        model = pipe.PipelineModel(chain())
        update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
        model.set_partition(model.module[2], 1)
        model.load_state_dict(early, strict=False)
        update.load_state_dict(copy.deepcopy(of_update if early is whole else of_part))
        run = pipe.step(squared)
        same(steps(2, 3), expected, 1e-5)


@case(ranks=4)
def a_hook_after_the_partition_sees_and_loads_shards() -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    other = {name: value * 0.5 for name, value in chain().state_dict().items()}
    model = pipe.PipelineModel(chain())
    pipe.PipelineOptimizer(sgd(model.parameters()))
    seen = []

    def hook(model: Any, update: Any) -> None:
        held = {id(one) for one in model.local_parameters()}
        seen.append(len(held & {id(one) for group in update.param_groups for one in group["params"]}))

    model.register_post_partition_hook(hook)
    run = pipe.step(squared)
    run(model, *rows(0, pipe.dp_rank()))
    assert seen == [len(list(model.local_parameters()))], seen
    model.load_state_dict(other)
    same(model.state_dict(), other, 0.0)


@case(ranks=4)
def the_model_answers_outside_of_steps() -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    whole = chain()
    model = pipe.PipelineModel(chain())
    run = pipe.step(squared)
    evaluate = pipe.step(lambda model, x: model(x))
    x = rows(7)[0]
    with torch.inference_mode():  # an evaluation is the first step
        same({"": evaluate(model, x).concat()}, {"": whole(x)})
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    for number in range(2):
        run(model, *rows(number, pipe.dp_rank()))
        update.step()
        update.zero_grad()
        whole.load_state_dict(model.state_dict())
        with torch.no_grad():
            same({"": model(x)}, {"": whole(x)})
            same({"": evaluate(model, x).concat()}, {"": whole(x)})


@case(ranks=4)
def blocks_that_come_later_are_sharded_then() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
            self.used = [2, 3]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number in self.used:
                x = x + self.blocks[number](x).tanh()
            return x

    def grow(number: int, module: Any) -> None:
        module.used = [[2, 3], [2, 3, 4], [1, 2, 3], [0, 1, 2, 3, 4]][number]

    check(Growing, rows, steps=4, between=grow, optimizer=adam, tolerance=1e-4, **TWO_BY_TWO)


@case(ranks=4)
def hooks_on_shards_are_refused_and_earlier_ones_run() -> None:
    def doubled(module: nn.Module) -> nn.Module:
        for one in module.parameters():
            one.register_hook(lambda gradient: 2 * gradient)
        return module

    check(lambda: doubled(chain()), rows, **TWO_BY_TWO)
    pipe.shutdown()
    model = shard_by(**TWO_BY_TWO)
    run = pipe.step(squared)
    run(model, *rows(0, pipe.dp_rank()))
    for one in model.local_parameters():
        one.register_hook(lambda gradient: gradient)
    refused(lambda: run(model, *rows(1, pipe.dp_rank())), "gradient hook", "before the first step")


@case(ranks=4)
def after_a_failed_step_every_rank_saves_its_part() -> None:
    begin(microbatches=2, **TWO_BY_TWO)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Fragile()))
    update = pipe.PipelineOptimizer(adam(model.parameters()))
    run = pipe.step(squared)
    run(model, *rows(0, pipe.dp_rank()))
    update.step()
    expected = model.state_dict()
    try:
        run(model, rows(1)[0] * (1e6 if pipe.dp_rank() == 0 else 1.0))
        raise AssertionError("the step did not fail")
    except (ValueError, pipe.PipelineError) as error:
        assert "a bad batch" in str(error), error
    path = str(ranks.folder() / "sharded-failed" / "checkpoint")
    pipe.save_checkpoint(path, model, update)
    pipe.shutdown()
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Fragile())
    begin(microbatches=2, partitions=2)
    model = pipe.PipelineModel(module)
    pipe.load_checkpoint(path, model)
    same(model.state_dict(), expected, 0.0)


@case(ranks=4)
def a_rank_that_leaves_at_once_waits_until_all_have_joined() -> None:
    """Gloo connects ranks one after the other: one that is through would hang up on those that still connect."""
    for _ in range(20):
        begin(microbatches=2, **TWO_BY_TWO)
        pipe.shutdown()
