"""What follows the gradients of a step, planted wrong: the norm, what a script does to them, the optimizer. And right."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel import clip
from trainshed.parallel.ground.shards import local

from .context import Gpt, numbers
from .reads import SHARDED, TENSOR, Blockwise, Lamb, Lars, OneByOne, net, rows
from .table import begin, case, refused
from .training import language, squared

STAGES, REPLICAS, CONTEXT = {"partitions": 2}, {"partitions": 1}, {"context_parallel_degree": 2}
ZERO = {"partitions": 1, "shard_optimizer_state": True}
IN_PARTS = (TENSOR, SHARDED)
EVERY = (TENSOR, SHARDED, STAGES, REPLICAS, ZERO, CONTEXT)
COMBINED = (
    {**STAGES, **TENSOR, "prescaled_batch": True},
    {**STAGES, **SHARDED},
    {**STAGES, **CONTEXT},
    {**TENSOR, **SHARDED},
    {**CONTEXT, **SHARDED},
    {**STAGES, "shard_optimizer_state": True},
)
Between = Callable[[nn.Module], Any]
Make = Callable[[Any], torch.optim.Optimizer]
MOST = 0.05


def nothing(_model: nn.Module) -> None:
    """Does nothing."""


def clipped(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), MOST)


def trained(make: Make, between: Between = clipped, steps: int = 2, *, scaled: bool = False, **settings: Any) -> str:
    """What this rank says; steps are verified, all of them."""
    begin(microbatches=2, verify_steps=1, **settings)
    torch.manual_seed(3)
    texts = "context_parallel_degree" in settings
    model = pipe.PipelineModel(Gpt() if texts else net(8))
    if pipe.pp_size() > 1 and not texts:
        for number, part in enumerate(model.module.children()):
            model.set_partition(part, number)
    update = pipe.PipelineOptimizer(make(model.parameters()), pipe.GradScaler(init_scale=8.0) if scaled else None)
    step, replica = pipe.step(language if texts else squared), pipe.dp_rank()
    if settings.get("prescaled_batch"):
        replica = pipe.rdp_rank()
    with redirect_stdout(io.StringIO()) as said:
        for number in range(steps):
            update.zero_grad()
            step(model, numbers(number, replica)["input_ids"] if texts else rows(number, replica, 8))
            between(model)
            update.step()
    pipe.shutdown()
    return said.getvalue()


def wrong(make: Make, *words: str, between: Between = nothing, ways: Any = EVERY, plant: Any = nullcontext) -> None:
    """It is found in each of these ways."""
    for way in ways:
        with plant():
            refused(lambda way=way: trained(make, between, **way), *words)
        pipe.shutdown()


# What is tried before the first step finds some defects before that.
UNTRIED = partial(patch.object, clip, "refuse_local", lambda _optimizer: True)


def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **{"lr": 1e-3, **options})


def here(model: Any) -> list[torch.Tensor]:
    """What this rank has of gradients."""
    return [local(one.grad) for one in model.local_parameters() if one.grad is not None]


def by_rank(model: nn.Module) -> None:
    total = torch.stack([one.norm() for one in here(model)]).norm()
    for one in here(model):
        one.mul_(MOST / float(total))


def each_by_rank(model: nn.Module) -> None:
    for one in here(model):
        one.div_(float(one.norm()) + 1e-3)


@case(ranks=2)
def clipping_by_rank() -> None:
    wrong(adamw, "step 1 is not right", "were multiplied by", "clip_grad_norm_", between=by_rank, ways=(*IN_PARTS, STAGES))
    wrong(adamw, "were multiplied by", between=each_by_rank, ways=IN_PARTS)


@case(ranks=2)
def a_script_may_scale_gradients_as_it_likes() -> None:
    def by_layer(model: Any) -> None:
        for name, one in model.module.named_parameters():
            if one.grad is not None:
                one.grad.mul_(0.5 if name.startswith("0") else 2.0)

    for way in EVERY:
        for between in (by_layer, clipped):
            trained(adamw, between, **way)


def _of_parts(native: Callable[..., torch.Tensor], given: Any, *rest: Any) -> torch.Tensor:
    return native([local(one) for one in given], *rest)


@case(ranks=2)
def a_norm_over_shards() -> None:
    words = "step 1 is not right: the norm of the gradients is", "in one process"
    for name, way in (("norms", TENSOR), ("norms", {**TENSOR, "prescaled_batch": True}), ("_native_norm", SHARDED)):
        plant = partial(patch.object, clip, name, partial(_of_parts, getattr(clip, name)))
        wrong(adamw, *words, between=clipped, ways=(way,), plant=plant)
    own = partial(patch.object, clip.dist, "all_reduce", lambda *_args, **_options: None)
    wrong(adamw, *words, between=lambda model: own_norm(model, own), ways=(STAGES,))


def own_norm(model: nn.Module, plant: Callable[[], Any]) -> None:
    """Clipping whose sum over ranks is left out."""
    with plant():
        clipped(model)


class Moment(OneByOne):
    """Momentum, and decay."""

    def __init__(self, parameters: Any, lr: float = 0.01, **plants: float) -> None:
        super().__init__(parameters, lr)
        self.plants = plants

    def _update(self, one: Any, lr: float) -> None:
        last = pipe.rank() == 1
        moment = self.state[one].setdefault("moment", torch.zeros_like(one))
        moment.mul_(0.9).add_(one.grad)
        one.add_(moment, alpha=-lr * (self.plants.get("rate", 1.0) if last else 1.0))
        if last:
            moment.mul_(self.plants.get("state", 1.0))


@case(ranks=2)
def a_state_that_is_scaled_on_one_rank() -> None:
    words = "step 1 is not right after the step of Moment", "the state 'moment'"
    wrong(partial(Moment, state=1.01), *words, ways=IN_PARTS, plant=UNTRIED)
    wrong(partial(Moment, state=1.01), *words, "rank 1", "1.01 times", ways=(STAGES, REPLICAS, ZERO, CONTEXT))


@case(ranks=2)
def a_rate_by_rank() -> None:
    wrong(partial(Moment, rate=1.01), "the value of", ways=IN_PARTS, plant=UNTRIED)
    wrong(partial(Moment, rate=1.01), "the value of", "rank 1", "1.01 times", ways=(STAGES, REPLICAS, ZERO, CONTEXT))
    wrong(lambda parameters: adamw(parameters, lr=1e-3 * (1 + pipe.rank())), "differ in lr")


@case(ranks=2)
def decay_on_blocks() -> None:
    def decay(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    held = local(one.detach())
                    held.mul_(1 - 0.001 * float(held.norm()))

    def make(parameters: Any) -> torch.optim.Optimizer:
        found = adamw(parameters)
        found.register_step_pre_hook(decay)
        return found

    wrong(make, "after the step of AdamW", "the value of", ways=IN_PARTS)
    for way in (STAGES, REPLICAS, CONTEXT):
        right((make,), way)


class Ahead(torch.optim.Optimizer):
    """Looks ahead: every second step goes back half of the way."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base = base
        super().__init__([{"params": group["params"]} for group in base.param_groups], {})
        self.param_groups = base.param_groups
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step(closure)
        self.count += 1
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                slow = self.state[one].setdefault("slow", one.detach().clone())
                if self.count % 2 == 0:
                    slow.lerp_(one, 0.5)
                    one.copy_(slow)


MAKES: tuple[Make, ...] = (
    adamw,
    partial(adamw, foreach=True, amsgrad=True),
    partial(adamw, fused=True),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    partial(torch.optim.RMSprop, lr=1e-3, centered=True),
    partial(torch.optim.RAdam, lr=1e-3),
    Lars,
    Lamb,
    lambda parameters: Ahead(adamw(parameters)),
)


def right(makes: tuple[Make, ...], way: dict[str, Any], **options: Any) -> None:
    """What is right is compared, and not called wrong."""
    for make in makes:
        said = trained(make, steps=3, **{**way, **options})
        assert "not compared" not in said, said
        leads = os.environ["RANK"] == "0"
        assert ("verified against one process: gradients, their norm, " in said) == leads, (make, said)


@case(ranks=2)
def optimizers_of_divided_modules_are_compared() -> None:
    right(MAKES, TENSOR)


@case(ranks=2)
def optimizers_of_shards_are_compared() -> None:
    right(MAKES, SHARDED)


@case(ranks=2)
def optimizers_of_stages_are_compared() -> None:
    right((*MAKES, Blockwise), STAGES)


@case(ranks=2)
def optimizers_of_replicas_are_compared() -> None:
    right((*MAKES, Blockwise), REPLICAS)
    right(MAKES, ZERO)


@case(ranks=2)
def optimizers_of_sequences_in_parts_are_compared() -> None:
    right((adamw, Lamb, Blockwise), CONTEXT)


@case(ranks=2)
def optimizers_of_half_precision_are_compared() -> None:
    for way in EVERY:
        right((adamw, partial(adamw, fused=True)), way, bf16=True, master_weights=True)


@case(ranks=2)
def scaled_losses_are_compared() -> None:
    for way in (TENSOR, SHARDED, STAGES, REPLICAS):
        right((adamw,), way, scaled=True)


@case(ranks=4)
def optimizers_of_ways_together_are_compared() -> None:
    for way in COMBINED:
        right((adamw, Lamb), way)


@case(ranks=2)
def what_is_not_compared_is_said() -> None:
    def noisy(one: Any, lr: float) -> None:
        one.add_(torch.randn_like(one) * lr)

    def make(parameters: Any) -> torch.optim.Optimizer:
        found = Moment(parameters)
        found._update = noisy  # type: ignore[method-assign]
        return found

    said = trained(make, **TENSOR)
    if os.environ["RANK"] == "0":
        assert (
            "verified up to the gradients: the step of Moment is not compared with one process: it draws random" in said
        ), said
    with patch("trainshed.parallel.undivided_update.free_bytes", lambda _device: 1000.0):
        said = trained(adamw, **STAGES)
    if os.environ["RANK"] == "0":
        assert "there is no room for whole parameters" in said, said
    with patch("trainshed.parallel.undivided_update.free_bytes", lambda _device: 50_000.0):
        right((adamw,), STAGES)
