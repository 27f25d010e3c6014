"""Optimizers, schedules, clipping, averages: what happens to gradients and weights between steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from hostile.models.state_outside_tensors import Deep
from hostile.table import classify, loop, misuse, rows

BATCHES = rows()


def sgd(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, **{"lr": 0.1, "momentum": 0.9, **options})


def nothing(_model: Any, _optimizer: Any, _number: int) -> Any:
    """Between backward and the optimizer's step, or after it."""


def run(
    kit: Any,
    make: Callable[[Any], Any] = lambda model: sgd(model.parameters()),
    before: Callable[[Any, Any, int], Any] = nothing,
    after: Callable[[Any, Any, int], Any] = nothing,
    *,
    build: Callable[[], nn.Module] = Deep,
    step: Any = classify,
    steps: int = 4,
    zero: Callable[[Any, Any], None] = lambda model, optimizer: optimizer.zero_grad(),
) -> Any:
    """The usual loop, with something between its lines."""
    kit.begin()
    model = kit.model(build())
    optimizer = kit.optimizer(make(model))
    train = kit.step(step)
    for number in range(steps):
        zero(model, optimizer)
        kit.note(f"loss {number}", train(model, *BATCHES(number)))
        kit.note(f"before {number}", before(model, optimizer, number))
        kit.gradients(f"gradients {number}", model)
        optimizer.step()
        kit.note(f"after {number}", after(model, optimizer, number))
    kit.note("state", model.state_dict())
    return model


@loop
def nesterov_with_weight_decay(kit: Any) -> None:
    run(kit, lambda model: sgd(model.parameters(), nesterov=True, weight_decay=0.01))


@loop
def adamw_without_decay_of_norms_and_biases(kit: Any) -> None:
    def make(model: Any) -> Any:
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.01)

    run(kit, make)


@loop
def groups_by_layer_with_falling_rates(kit: Any) -> None:
    def make(model: Any) -> Any:
        blocks = model.module.blocks
        groups = [{"params": block.parameters(), "lr": 0.1 * 0.8 ** (8 - n)} for n, block in enumerate(blocks)]
        return sgd([*groups, {"params": model.module.head.parameters(), "lr": 0.2}])

    run(kit, make)


@loop
def adam_amsgrad_one_by_one(kit: Any) -> None:
    run(kit, lambda model: torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, foreach=False))


@loop
def adam_fused_that_maximizes(kit: Any) -> None:
    run(kit, lambda model: torch.optim.AdamW(model.parameters(), lr=0.001, fused=True, maximize=True))


@loop
def rmsprop_centered(kit: Any) -> None:
    run(kit, lambda model: torch.optim.RMSprop(model.parameters(), lr=0.001, centered=True, momentum=0.5))


@loop
def adafactor_of_torch(kit: Any) -> None:
    """Its update is scaled by norms of each parameter."""
    run(kit, lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01))


@loop
def made_from_named_parameters(kit: Any) -> None:
    run(kit, lambda model: sgd((n, p) for n, p in model.module.named_parameters()))


@loop
def clip_by_name_in_the_middle(kit: Any) -> None:
    run(kit, before=lambda model, _o, _n: clip_grad_norm_(model.parameters(), 0.5))


@loop
def clip_by_infinity_norm(kit: Any) -> None:
    run(kit, before=lambda model, _o, _n: clip_grad_norm_(model.parameters(), 0.05, norm_type=float("inf")))


@loop
def clip_values(kit: Any) -> None:
    run(kit, before=lambda model, _o, _n: clip_grad_value_(model.parameters(), 0.01))


@loop
def clip_group_by_group(kit: Any) -> None:
    def clip(_m: Any, optimizer: Any, _n: int) -> Any:
        return [clip_grad_norm_(group["params"], 0.2) for group in optimizer.param_groups]

    def make(model: Any) -> Any:
        parameters = list(model.parameters())
        return sgd([{"params": parameters[:20]}, {"params": parameters[20:], "lr": 0.05}])

    run(kit, make, clip)


@loop
def clip_block_by_block(kit: Any) -> None:
    run(kit, before=lambda model, _o, _n: [clip_grad_norm_(b.parameters(), 0.1) for b in model.module.blocks])


@loop
def clip_by_total_norm_and_scale(kit: Any) -> None:
    def clip(model: Any, _o: Any, _n: int) -> Any:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        total = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.3, total)
        return total

    run(kit, before=clip)


@loop
def adaptive_clipping_of_each_parameter(kit: Any) -> None:
    def clip(model: Any, _o: Any, _n: int) -> None:
        for parameter in model.local_parameters():
            norm, most = parameter.grad.norm(), 0.02 * parameter.detach().norm().clamp_min(1e-3)
            parameter.grad.mul_((most / norm.clamp_min(1e-6)).clamp(max=1))

    run(kit, before=clip)


@loop
def nan_gradients_become_numbers(kit: Any) -> None:
    def clean(model: Any, _o: Any, number: int) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                torch.nan_to_num(parameter.grad, nan=0.0, out=parameter.grad)

    run(kit, before=clean)


@loop
def gradients_divided_by_hand(kit: Any) -> None:
    def divide(model: Any, _o: Any, _n: int) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= 3

    run(kit, before=divide)


@loop
def gradients_accumulate_over_steps(kit: Any) -> None:
    kit.begin()
    model = kit.model(Deep())
    optimizer, train = kit.optimizer(sgd(model.parameters())), kit.step(classify)
    for number in range(6):
        kit.note(f"loss {number}", train(model, *BATCHES(number)))
        if number % 3 == 2:
            kit.gradients(f"gradients {number}", model)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    kit.note("state", model.state_dict())


@loop
def zeroed_as_the_model_does(kit: Any) -> None:
    run(kit, zero=lambda model, _o: model.zero_grad())


@loop
def zeroed_by_hand(kit: Any) -> None:
    def zero(model: Any, _o: Any) -> None:
        for parameter in model.parameters():
            parameter.grad = None

    run(kit, zero=zero)


@loop
def zeroed_in_place_by_hand(kit: Any) -> None:
    def zero(model: Any, _o: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.detach_().zero_()

    run(kit, zero=zero)


def scheduled(kit: Any, schedule: Callable[[Any], Any], advance: Any = lambda s, loss: s.step()) -> None:
    made: list[Any] = []

    def after(_m: Any, optimizer: Any, number: int) -> Any:
        if not made:
            made.append(schedule(optimizer))
        advance(made[0], 1.0 / (number + 1) if number < 2 else 1.0)
        return [group["lr"] for group in optimizer.param_groups]

    run(kit, after=after)


@loop
def cosine_with_restarts(kit: Any) -> None:
    scheduled(kit, lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2))


@loop
def one_cycle_with_momentum(kit: Any) -> None:
    scheduled(kit, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=8))


@loop
def warmup_then_exponential(kit: Any) -> None:
    kinds = torch.optim.lr_scheduler
    scheduled(
        kit, lambda o: kinds.SequentialLR(o, [kinds.LinearLR(o, 0.1, total_iters=2), kinds.ExponentialLR(o, 0.9)], [2])
    )


@loop
def plateau_by_the_loss(kit: Any) -> None:
    scheduled(
        kit,
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
        lambda s, loss: s.step(loss),
    )


@loop
def rate_set_by_hand(kit: Any) -> None:
    def after(_m: Any, optimizer: Any, number: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (number + 2)
            group["momentum"] = 0.5

    run(kit, after=after)


@loop
def sgd_by_hand_over_all_parameters(kit: Any) -> None:
    def update(model: Any, _o: Any, _n: int) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    run(kit, before=update)


@loop
def decay_by_hand_of_all_parameters(kit: Any) -> None:
    def decay(model: Any, _o: Any, _n: int) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.99)

    run(kit, after=decay)


@loop
def weights_clamped_after_each_step(kit: Any) -> None:
    def clamp(model: Any, _o: Any, _n: int) -> None:
        for parameter in model.parameters():
            parameter.data.clamp_(-0.3, 0.3)

    run(kit, after=clamp)


@loop
def weights_rounded_by_a_function_of_torch(kit: Any) -> None:
    def project(model: Any, _o: Any, _n: int) -> None:
        with torch.no_grad():
            for parameter in model.local_parameters():
                parameter.copy_((parameter * 64).round() / 64)

    run(kit, after=project)


@loop
def rows_of_weights_normalized(kit: Any) -> None:
    """Max-norm regularization, over the user's modules."""

    def project(model: Any, _o: Any, _n: int) -> None:
        with torch.no_grad():
            for parameter in model.local_parameters():
                if parameter.dim() == 2:
                    parameter.div_(parameter.norm(dim=1, keepdim=True).clamp_min(1.0))

    run(kit, after=project)


@loop
def average_of_local_parameters(kit: Any) -> None:
    """EMA as the pages advise it."""
    average: dict[str, torch.Tensor] = {}

    def move(model: Any, _o: Any, number: int) -> None:
        for name, parameter in model.local_named_parameters():
            kept = average.setdefault(name, parameter.detach().clone())
            kept.lerp_(parameter.detach(), 0.1)
        kit.parts[f"average {number}"] = {name: value.clone() for name, value in average.items() if number}

    run(kit, after=move)


@loop
def average_of_whole_states(kit: Any) -> None:
    average: dict[str, torch.Tensor] = {}

    def move(model: Any, _o: Any, _n: int) -> Any:
        for name, value in model.state_dict().items():
            kept = average.setdefault(name, value.clone())
            kept.lerp_(value, 0.2)
        return average

    run(kit, after=move)


@misuse
def averaged_model_of_torch(kit: Any) -> None:
    made: list[Any] = []

    def move(model: Any, _o: Any, _n: int) -> Any:
        if not made:
            made.append(torch.optim.swa_utils.AveragedModel(model.module))
        made[0].update_parameters(model.module)
        return made[0].state_dict()

    run(kit, after=move)


@misuse
def norm_of_gradients_by_hand(kit: Any) -> None:
    def norm(model: Any, _o: Any, _n: int) -> Any:
        return torch.stack([p.grad.norm() for p in model.parameters()]).norm()

    run(kit, before=norm)


@loop
def sharpness_aware_two_steps(kit: Any) -> None:
    """SAM: up along the gradient by its own norm, a second backward, back, and an update."""
    kit.begin()
    model = kit.model(Deep())
    optimizer, train = kit.optimizer(sgd(model.parameters())), kit.step(classify)
    for number in range(3):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *BATCHES(number)))
        norm = clip_grad_norm_(model.parameters(), 1e9)
        held = [p for p in model.local_parameters() if p.grad is not None]
        up = [p.grad * (0.05 / norm) for p in held]
        with torch.no_grad():
            torch._foreach_add_(held, up)
        optimizer.zero_grad()
        kit.note(f"again {number}", train(model, *BATCHES(number)))
        with torch.no_grad():
            torch._foreach_sub_(held, up)
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def lookahead_by_hand(kit: Any) -> None:
    slow: dict[str, torch.Tensor] = {}

    def after(model: Any, _o: Any, number: int) -> None:
        for name, parameter in model.local_named_parameters():
            kept = slow.setdefault(name, parameter.detach().clone())
            if number % 2:
                kept.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(kept)

    run(kit, after=after)


@loop
def lbfgs_with_a_closure(kit: Any) -> None:
    kit.begin()
    model = kit.model(Deep(8))
    optimizer = kit.optimizer(torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2))
    train = kit.step(classify)

    def closure() -> Any:
        optimizer.zero_grad()
        return train(model, *BATCHES(0)).reduce_mean()

    for number in range(2):
        kit.note(f"loss {number}", optimizer.step(closure))
    kit.note("state", model.state_dict())


@loop
def closure_for_plain_sgd(kit: Any) -> None:
    kit.begin()
    model = kit.model(Deep())
    optimizer, train = kit.optimizer(sgd(model.parameters())), kit.step(classify)
    for number in range(3):

        def closure(number: int = number) -> Any:
            optimizer.zero_grad()
            return train(model, *BATCHES(number)).reduce_mean()

        kit.note(f"loss {number}", optimizer.step(closure))
    kit.note("state", model.state_dict())


@loop
def another_optimizer_from_the_third_step_on(kit: Any) -> None:
    kit.begin()
    model, train = kit.model(Deep()), kit.step(classify)
    optimizer = kit.optimizer(sgd(model.parameters()))
    for number in range(4):
        if number == 2:
            optimizer = kit.optimizer(torch.optim.Adagrad(model.parameters(), lr=0.01))
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *BATCHES(number)))
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def a_group_is_added_later(kit: Any) -> None:
    def after(model: Any, optimizer: Any, number: int) -> None:
        if number == 1:
            optimizer.add_param_group({"params": list(model.module.head.parameters()), "lr": 0.5})

    run(kit, lambda model: sgd(model.module.blocks.parameters()), after=after)


@loop
def optimizer_made_before_the_model_is_wrapped(kit: Any) -> None:
    kit.begin()
    module = Deep()
    inner = sgd(module.parameters())
    model, optimizer, train = kit.model(module), kit.optimizer(inner), kit.step(classify)
    for number in range(3):
        optimizer.zero_grad()
        kit.note(f"loss {number}", train(model, *BATCHES(number)))
        optimizer.step()
    kit.note("state", model.state_dict())


@loop
def l1_of_all_parameters_in_the_loss(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        penalty = sum(parameter.abs().sum() for parameter in model.parameters())
        loss = F.cross_entropy(model(x), y) + 1e-3 * penalty
        model.backward(loss)
        return loss, penalty

    run(kit, step=step)


@loop
def orthogonality_of_some_weights_in_the_loss(kit: Any) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        penalty = sum((b.line.weight @ b.line.weight.t() - torch.eye(8)).square().sum() for b in model.module.blocks[::3])
        loss = F.cross_entropy(model(x), y) + 1e-2 * penalty
        model.backward(loss)
        return loss

    run(kit, step=step)


@loop
def distance_from_the_first_weights_in_the_loss(kit: Any) -> None:
    """Elastic weight consolidation: a copy made before training."""
    first: dict[str, torch.Tensor] = {}

    def build() -> nn.Module:
        net = Deep()
        first.update(copy.deepcopy({name: p.detach() for name, p in net.named_parameters()}))
        return net

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        drift = sum((p - first[name]).square().sum() for name, p in model.module.named_parameters())
        loss = F.cross_entropy(model(x), y) + 0.1 * drift
        model.backward(loss)
        return loss

    run(kit, build=build, step=step)
