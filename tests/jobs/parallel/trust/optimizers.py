"""Clipping and scaling in every spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as by_name

import trainshed.parallel as pipe

from .table import begin, case, refused, same
from .training import Alone, one_process, squared


def tied() -> nn.Module:
    """The first and the last layer have one weight, which two stages hold."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[4].weight = model[0].weight
    return model


def rows(number: int) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(number)) * 3


def clipped(clip: Callable[[Any], Any], *, of: Callable[[nn.Module], Any] = lambda model: model, **settings: Any) -> None:
    """Clips as one process does."""
    begin(microbatches=2, **settings)
    torch.manual_seed(3)
    alone = tied()
    one, update = Alone(alone, 0.5), torch.optim.SGD(alone.parameters(), lr=0.5)
    norms = []
    for number in range(3):
        update.zero_grad()
        for part in rows(number).chunk(2):
            squared(one, part)
        norms.append(clip(of(alone).parameters()))
        update.step()
    torch.manual_seed(3)
    model = pipe.PipelineModel(tied())
    mine = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    step = pipe.step(squared)
    for number in range(3):
        mine.zero_grad()
        step(model, rows(number))
        norm = clip(of(model.module).parameters())
        assert norm is None or torch.allclose(norm, norms[number], rtol=1e-5), (norm, norms[number])
        mine.step()
    same(model.state_dict(), alone.state_dict())


@case(ranks=2)
def clip_imported_by_name() -> None:
    clipped(lambda parameters: by_name(parameters, 0.1), partitions=2)


@case(ranks=2)
def clip_in_steps_of_one_tensor() -> None:
    clipped(lambda parameters: by_name(parameters, 0.1, foreach=False), partitions=2)


@case(ranks=2)
def clip_by_other_norms() -> None:
    for norm in (1.0, 3.0, float("inf")):
        clipped(lambda parameters, norm=norm: by_name(list(parameters), 0.1, norm_type=norm), partitions=2)
        pipe.shutdown()


@case(ranks=2)
def clip_a_layer_that_one_rank_does_not_hold() -> None:
    clipped(lambda parameters: by_name(parameters, 0.01), of=lambda model: model[2], partitions=2)


@case(ranks=2)
def clip_total_norm_then_scale() -> None:
    def clip(parameters: Any) -> torch.Tensor:
        parameters = list(parameters)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        nn.utils.clip_grads_with_norm_(parameters, 0.1, norm)
        return norm

    clipped(clip, partitions=2)


@case(ranks=2)
def clip_of_another_model_stays_torchs_own() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(tied())
    pipe.step(squared)(model, rows(0))
    other = nn.Linear(2, 1)
    other(torch.full((1, 2), float(pipe.rank() + 1))).sum().backward()
    norm = by_name(other.parameters(), 100.0)  # another one on each rank
    assert float(norm) == float(torch.tensor([*[pipe.rank() + 1.0] * 2, 1.0]).norm())


@case(ranks=2)
def grad_scaler_of_torch() -> None:
    """An overflow on one stage skips the step on all of them, and the scales stay equal."""
    begin(partitions=2, microbatches=2)
    torch.manual_seed(3)
    model = pipe.PipelineModel(tied())
    update = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    @pipe.step
    def train(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        model.backward(scaler.scale(loss))
        return loss

    scales = []
    for number in range(3):
        update.zero_grad()
        train(model, rows(number))
        if number == 1 and pipe.rank() == 0:
            model.module[0].bias.grad[0] = float("inf")
        scaler.unscale_(update)
        by_name(model.parameters(), 1e9)
        scaler.step(update)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [1024.0, 512.0, 512.0], scales

    def once(step: int, _model: nn.Module) -> None:
        del step

    batches = [(rows(0),), (rows(2),)]
    expected = one_process(
        tied, lambda number, _: batches[number], 1, 2, 2, once, lambda parameters: torch.optim.SGD(parameters, lr=0.5)
    )
    same(model.state_dict(), expected)


@case(ranks=2)
def grad_scaler_of_torch_without_unscaling_first() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(tied())
    update = torch.optim.Adam(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    @pipe.step
    def train(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        model.backward(scaler.scale(loss))
        return loss

    train(model, rows(0))
    before = {name: p.detach().clone() for name, p in model.local_named_parameters()}
    if pipe.rank() == 1:
        next(iter(model.local_parameters())).grad.fill_(float("nan"))
    scaler.step(update)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert all(torch.equal(p, before[name]) for name, p in model.local_named_parameters())


def lbfgs(search: str | None, **settings: Any) -> None:
    """As one process does with the batches of all replicas, step by step."""
    begin(microbatches=2, **settings)
    options: dict[str, Any] = {"lr": 0.5, "max_iter": 4, "history_size": 3, "line_search_fn": search}
    torch.manual_seed(3)
    alone = tied()
    one, alone_update = Alone(alone, 0.5 / pipe.dp_size()), torch.optim.LBFGS(alone.parameters(), **options)
    torch.manual_seed(3)
    model = pipe.PipelineModel(tied())
    update, step = pipe.PipelineOptimizer(torch.optim.LBFGS(model.parameters(), **options)), pipe.step(squared)

    for number in range(2):

        def closure(number: int = number) -> Any:
            alone_update.zero_grad()
            parts = [part for replica in range(pipe.dp_size()) for part in rows(number + replica).chunk(2)]
            return torch.stack([squared(one, part).detach() for part in parts]).mean()

        def closure_in_stages(number: int = number) -> Any:
            update.zero_grad()
            return step(model, rows(number + pipe.dp_rank())).reduce_mean()

        expected, found = alone_update.step(closure), update.step(closure_in_stages)
        same({"loss": found}, {"loss": expected})
        same(model.state_dict(), alone.state_dict())
    if settings.get("partitions", 1) > 1:
        refused(update.state_dict, "LBFGS", "the model alone")
    pipe.shutdown()


@case(ranks=2)
def lbfgs_with_stages_and_with_replicas() -> None:
    for search in (None, "strong_wolfe"):
        lbfgs(search, partitions=2)
        lbfgs(search, partitions=1)
    lbfgs("strong_wolfe", partitions=2, virtual_stages=2, pipeline="interleavedzerobubble", atomic=["0", "2", "3", "4"])


@case(ranks=4)
def lbfgs_with_stages_and_replicas() -> None:
    lbfgs("strong_wolfe", partitions=2)


@case(ranks=2)
def lbfgs_is_refused_where_states_are_sharded() -> None:
    begin(microbatches=2, shard_optimizer_state=True)
    model = pipe.PipelineModel(tied())
    update = pipe.PipelineOptimizer(torch.optim.LBFGS(model.parameters()))
    refused(lambda: update.step(lambda: pipe.step(squared)(model, rows(0)).reduce_mean()), "LBFGS", "shard_optimizer_state")
