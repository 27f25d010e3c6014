"""Parameters that a rank does not hold: reading, saving, copying, averaging or running them is refused with words."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import trainshed.parallel as pipe

from .table import begin, case, refused, same
from .training import check, nothing, one_process, squared


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


X = torch.ones(4, 4)


def trained(optimizer: Callable[..., Any] = torch.optim.SGD) -> tuple[pipe.PipelineModel, Any, Any]:
    begin(partitions=2, microbatches=2)
    torch.manual_seed(3)
    model = pipe.PipelineModel(net())
    update = pipe.PipelineOptimizer(optimizer(model.parameters(), lr=0.5))
    step = pipe.step(squared)
    step(model, rows(0, 0)[0])
    return model, update, step


def rows(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 4, generator=torch.Generator().manual_seed(number)),)


def average(model: nn.Module) -> None:
    AveragedModel(model)


def average_by_hand(model: nn.Module) -> None:
    kept = {name: torch.zeros(parameter.shape) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        kept[name].lerp_(parameter.detach(), 0.1)


def norm_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            float(parameter.grad.norm())


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        model.eval()(X).argmax(-1)


READS: dict[str, Callable[[nn.Module], Any]] = {
    "state_dict": lambda model: torch.save(model.state_dict(), io.BytesIO()),
    "state_dict that keeps variables": lambda model: torch.save(model.state_dict(keep_vars=True), io.BytesIO()),
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: torch.save(model, io.BytesIO()),
    "average": average,
    "average_by_hand": average_by_hand,
    "norm_by_hand": norm_by_hand,
    "forward": evaluate,
    "sum of weights": lambda model: sum(parameter.data.sum() for parameter in model.parameters()),
    "numpy": lambda model: [parameter.detach().numpy() for parameter in model.parameters()],
    "flat": lambda model: nn.utils.parameters_to_vector(model.parameters()),
    "to": lambda model: model.double(),
}


@case(ranks=2)
def reads_of_the_users_module_are_refused() -> None:
    model, _, _ = trained()
    answers = {}
    for name, read in READS.items():
        answers[name] = refused(lambda read=read: read(model.module))
    # torch puts the errors of all parameters into one of its own.
    answers["load"] = refused(lambda: model.module.load_state_dict(net().state_dict()), kind=RuntimeError)
    for name, answer in answers.items():
        assert "on rank" in answer or "outside a step" in answer, (name, answer)


@case(ranks=2)
def loops_over_all_parameters_go_on() -> None:
    """What training scripts do with all parameters, and needs no values."""
    model, update, step = trained()
    before = {name: parameter.detach().clone() for name, parameter in model.local_named_parameters()}
    for parameter in model.module.parameters():
        assert parameter.requires_grad and parameter.numel() and parameter.device.type == "cpu" and parameter.shape
        parameter.register_hook(lambda gradient: gradient)
        parameter.data.clamp_(-0.1, 0.1)
        with torch.no_grad():
            parameter.mul_(0.5)
    for name, parameter in model.local_named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name].clamp(-0.1, 0.1) * 0.5)
    assert "AbsentParameter" in repr(list(model.module.parameters()))
    update.zero_grad()
    model.zero_grad()
    step(model, X)
    update.step()


@case(ranks=2)
def optimizers_of_torch_and_of_scripts() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any, lr: float) -> None:
            super().__init__(parameters, {"lr": lr})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.data.add_(parameter.grad, alpha=-group["lr"])

    for kind in (Own, torch.optim.AdamW, torch.optim.Adagrad):
        model, update, step = trained(kind)
        for number in range(2):
            update.step()
            update.zero_grad()
            step(model, rows(number, 0)[0])
        state = model.state_dict()
        pipe.shutdown()
        torch.manual_seed(3)

        def batches(number: int, replica: int) -> tuple[torch.Tensor, ...]:
            return rows([0, 0][number], replica)

        expected = one_process(net, batches, 1, 2, 2, nothing, lambda parameters, kind=kind: kind(parameters, lr=0.5))
        floats = {name for name, value in expected.items() if "running" not in name and value.is_floating_point()}
        same({name: state[name] for name in floats}, {name: expected[name] for name in floats}, 1e-4)


@case(ranks=2)
def checkpoints_and_states_are_whole() -> None:
    model, _, step = trained()
    state = model.state_dict()
    assert not any(value.isnan().any() for value in state.values())
    other = net()
    other.load_state_dict(state)
    step(model, torch.ones(8, 4))  # another shape: recorded again
    model.load_state_dict(state)
    same(model.state_dict(), state)


@case(ranks=2)
def a_loop_without_the_decorator_is_refused() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(net())
    refused(lambda: squared(model, X), "outside a step", "@step")
    refused(lambda: model.module(X), "outside a step")
    with torch.no_grad():
        model.eval()
        assert model(X).shape == (4, 2)  # the whole model is still everywhere
    teacher = copy.deepcopy(model.module)
    model.train()
    pipe.step(squared)(model, X)
    assert teacher(X).requires_grad
    with torch.no_grad():
        refused(lambda: model.module(X), "outside a step")


@case(ranks=2)
def replicas_without_the_decorator_are_refused() -> None:
    begin(partitions=1, microbatches=2)
    model = pipe.PipelineModel(net())
    refused(lambda: squared(model, X), "outside a step")
    pipe.step(squared)(model, X)
    refused(lambda: model(X), "outside a step")
    with torch.no_grad():
        model(X)


def momentum_by_hand(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is None:
                continue
            parameter -= 0.1 * parameter.grad
            parameter.add_(parameter.grad.sign() * parameter.grad.abs().mean(), alpha=-0.01)
            parameter.data = parameter.data - 0.01 * parameter.grad.data
            parameter.grad.detach_().mul_(0.5)


def zeroed_by_hand(module: nn.Module) -> None:
    momentum_by_hand(module)
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


@case(ranks=2)
def gradients_are_used_by_hand() -> None:
    for change in (momentum_by_hand, zeroed_by_hand):
        check(wide, batch, steps=4, partitions=2, between=lambda _n, module, change=change: change(module))
        pipe.shutdown()


def wide() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


def batch(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
    return rows(number, 0)


def clips_by_hand(module: nn.Module) -> None:
    total = sum(parameter.grad.norm() ** 2 for parameter in module.parameters() if parameter.grad is not None)
    for parameter in module.parameters():
        parameter.grad.mul_(1 / (total + 1))


USES: tuple[Callable[[nn.Module], Any], ...] = (
    clips_by_hand,
    lambda module: [float(parameter.grad.sum()) for parameter in module.parameters()],
    lambda module: [bool(parameter.grad.isfinite().all()) for parameter in module.parameters()],
    lambda module: [repr(parameter.grad) for parameter in module.parameters()],
    lambda module: [parameter.grad.numpy() for parameter in module.parameters()],
    lambda module: [module[at].weight.data.copy_(module[3].weight.grad + module[0].weight.grad) for at in (0, 3)],
)


@case(ranks=2)
def gradients_of_other_ranks_are_not_read() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(wide())
    pipe.step(squared)(model, X)
    for use in USES:
        refused(lambda use=use: use(model.module), "gradient of", "clip_grad_norm_")
    here, elsewhere = (model.module[0], model.module[3]) if pipe.rank() == 0 else (model.module[3], model.module[0])
    refused(lambda: setattr(here.weight, "data", elsewhere.weight.grad), kind=RuntimeError)
    refused(lambda: setattr(here.weight, "grad", elsewhere.weight.grad), kind=RuntimeError)
    assert here.weight.isfinite().all() and elsewhere.weight.grad.device == here.weight.device
