"""What scripts do between steps: evaluate, average, copy, clamp and initialise again."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import trainshed.parallel as pipe

from .table import begin, case, refused, same
from .training import check, language, nothing, one_process, sgd, squared


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
    )


PINS = {"2": 0, "3": 0, "4": 1, "5": 1}


def rows(number: int, _replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 4, generator=torch.Generator().manual_seed(number)),)


def trained(build: Callable[[], nn.Module] = net, **settings: Any) -> tuple[pipe.PipelineModel, nn.Module]:
    """After one step, with the model of one process that has the same state."""
    begin(**{"partitions": 2, "microbatches": 2, **settings})
    torch.manual_seed(3)
    model = pipe.PipelineModel(build())
    for name, stage in PINS.items() if settings.get("virtual_stages", 1) == 1 else ():
        model.set_partition(model.module.get_submodule(name), stage)
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    pipe.step(squared)(model, *rows(0, 0))
    update.step()
    alone = build()
    alone.load_state_dict(model.state_dict())
    return model, alone


@case(ranks=2)
def the_model_is_called_for_evaluation() -> None:
    for options in ({}, {"pipeline": "interleaved1f1b", "virtual_stages": 2}, {"pipeline": "interleavedzerobubble"}):
        model, alone = trained(**options)
        for size in (4, 3, 1):  # whatever the number of microbatches is
            x = torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
            with torch.no_grad():
                torch.testing.assert_close(model.eval()(x), alone.eval()(x), rtol=0, atol=0)
            with torch.inference_mode():
                torch.testing.assert_close(model(x), alone(x), rtol=0, atol=0)
        pipe.step(squared)(model.train(), *rows(1, 0))
        pipe.shutdown()


@case(ranks=2)
def a_step_without_gradients_comes_before_all_training() -> None:
    begin(partitions=2, microbatches=2)
    torch.manual_seed(3)
    model, alone = pipe.PipelineModel(net()), net()
    alone.load_state_dict(model.module.state_dict())
    for name, stage in PINS.items():
        model.set_partition(model.module.get_submodule(name), stage)
    x = rows(0, 0)[0]
    with torch.inference_mode():
        made = pipe.step(lambda module, inputs: module(inputs))(model.eval(), x)
        torch.testing.assert_close(made.concat(), alone.eval()(x))
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    pipe.step(squared)(model.train(), x)
    update.step()
    assert not any(torch.equal(p, dict(alone.named_parameters())[name]) for name, p in model.local_named_parameters()
                   if name in ("0.weight", "6.weight"))  # fmt: skip


@case(ranks=4)
def replicas_evaluate_what_each_of_them_has() -> None:
    model, alone = trained()
    with torch.no_grad():
        for number in range(1 + pipe.dp_rank()):  # one of them has more
            x = torch.randn(3 + pipe.dp_rank(), 4, generator=torch.Generator().manual_seed(number))
            torch.testing.assert_close(model.eval()(x), alone.eval()(x))


@case(ranks=2)
def calls_that_only_one_process_could_answer() -> None:
    model, _ = trained()
    x = torch.ones(2, 4)
    refused(lambda: model(x), "outside a step", "torch.no_grad()")
    with torch.no_grad():
        refused(lambda: model.module(x), "outside a step", "model(x)")
        refused(lambda: model(x + pipe.rank()), "another batch")
        if pipe.rank() == 0:
            refused(lambda: model(x), "rank 1 is at model.state_dict()")
        else:
            refused(model.state_dict, "rank 1 is at model.state_dict()")


@case(ranks=2)
def statistics_of_batch_norms_are_renewed() -> None:
    model, alone = trained()
    batches = [rows(number, 0)[0] for number in range(3)]
    update_bn(batches, alone)
    update_bn(batches, model)
    same(model.state_dict(), alone.state_dict())


@case(ranks=2)
def greedy_decoding_without_a_cache() -> None:
    from .sideways import LAYERS, tiny_llama, tokens

    begin(partitions=2, microbatches=2, atomic=LAYERS)
    torch.manual_seed(3)
    model = pipe.PipelineModel(tiny_llama())
    x = tokens(0, 0)[0]
    pipe.step(language)(model, x)
    alone = tiny_llama()
    alone.load_state_dict(model.state_dict())

    def decode(model: Any) -> torch.Tensor:
        found = x
        with torch.no_grad():
            for _ in range(3):
                logits = model(input_ids=found, use_cache=False).logits
                found = torch.cat([found, logits[:, -1:].argmax(-1)], 1)
        return found

    assert torch.equal(decode(model.eval()), decode(alone.eval()))
    refused(lambda: model.module.generate(x, max_new_tokens=2), "outside a step")


@case(ranks=2)
def copies_of_the_wrapped_model_are_refused() -> None:
    begin(partitions=2, microbatches=2)
    torch.manual_seed(3)
    model = pipe.PipelineModel(net())
    teacher = copy.deepcopy(model.module)
    averaged = AveragedModel(model.module)
    for copied in (copy.deepcopy, AveragedModel, copy.copy, lambda model: torch.save(model, io.BytesIO())):
        refused(lambda copied=copied: copied(model), "PipelineModel", "model.module")
    pipe.step(squared)(model, *rows(0, 0))
    assert teacher(torch.ones(2, 4)).shape == averaged(torch.ones(2, 4)).shape
    refused(lambda: averaged.update_parameters(model.module), "on rank")
    for copied in (copy.deepcopy, AveragedModel):
        refused(lambda copied=copied: copied(model), "state_dict")


@case(ranks=2)
def averages_of_what_is_here_are_put_in_and_saved() -> None:
    """The way that the pages give for an average of the weights."""
    decay, steps = 0.8, 4
    torch.manual_seed(3)
    alone = net()
    update = sgd(alone.parameters())
    average = {name: p.detach().clone() for name, p in alone.named_parameters()}
    for number in range(steps):
        update.zero_grad()
        for part in rows(number, 0)[0].chunk(2):
            (alone(part).square().mean() / 2).backward()
        update.step()
        for name, parameter in alone.named_parameters():
            average[name].lerp_(parameter.detach(), 1 - decay)
    begin(partitions=2, microbatches=2)
    torch.manual_seed(3)
    model = pipe.PipelineModel(net())
    mine = pipe.PipelineOptimizer(sgd(model.parameters()))
    kept = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    step = pipe.step(squared)
    for number in range(steps):
        mine.zero_grad()
        step(model, *rows(number, 0))
        mine.step()
        for name, parameter in model.local_named_parameters():
            kept[name].lerp_(parameter.detach(), 1 - decay)
    trained = {name: p.detach().clone() for name, p in model.local_named_parameters()}
    for name, parameter in model.local_named_parameters():
        parameter.data.copy_(kept[name])
    found = model.state_dict()
    for name, parameter in model.local_named_parameters():
        parameter.data.copy_(trained[name])
    same({name: found[name] for name in average}, average)
    same(model.state_dict(), alone.state_dict())


def by_number(change: Callable[[nn.Parameter], Any]) -> Callable[[int, nn.Module], None]:
    def between(number: int, model: nn.Module) -> None:
        if number == 2:
            torch.manual_seed(number)
            for parameter in model.parameters():
                change(parameter)

    return between


FIXED = torch.linspace(-1, 1, 16)


def shrink(parameter: nn.Parameter) -> None:
    with torch.no_grad():
        parameter.mul_(0.5).clamp_(min=-0.4).add_(0.01)


def normal(parameter: nn.Parameter) -> None:
    nn.init.normal_(parameter, std=0.3)


def kaiming(parameter: nn.Parameter) -> None:
    if parameter.dim() > 1:
        nn.init.kaiming_uniform_(parameter, a=2.0)
        nn.init.xavier_normal_(parameter)
    else:
        nn.init.uniform_(parameter, -0.1, 0.1)
    parameter.data.uniform_(-0.5, 0.5)


def from_elsewhere(parameter: nn.Parameter) -> None:
    parameter.data.copy_(FIXED[: parameter.numel()].view(parameter.shape))
    with torch.no_grad():
        parameter.add_(torch.randn(parameter.shape), alpha=0.1)
        parameter[...] = FIXED[: parameter.numel()].view(parameter.shape) * 2


def _changed_between_steps(change: Callable[[nn.Parameter], Any]) -> None:
    check(net, rows, steps=4, partitions=2, pins=PINS, between=by_number(change))


case(ranks=2, name="shrink_of_all_parameters_between_steps")(lambda: _changed_between_steps(shrink))
case(ranks=2, name="normal_of_all_parameters_between_steps")(lambda: _changed_between_steps(normal))
case(ranks=2, name="kaiming_of_all_parameters_between_steps")(lambda: _changed_between_steps(kaiming))
case(ranks=2, name="from_elsewhere_of_all_parameters_between_steps")(lambda: _changed_between_steps(from_elsewhere))


@case(ranks=2)
def modules_are_initialised_again() -> None:
    def between(number: int, model: nn.Module) -> None:
        if number == 2:
            torch.manual_seed(number)
            for module in model.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()

    check(net, rows, steps=4, partitions=2, pins=PINS, between=between)


@case(ranks=2)
def many_parameters_are_changed_at_once() -> None:
    def between(number: int, model: nn.Module) -> None:
        if number == 2:
            every = list(model.parameters())
            with torch.no_grad():
                torch._foreach_mul_(every, 0.5)
                torch._foreach_add_(every, [torch.full_like(p, 0.1) for p in every])

    check(net, rows, steps=4, partitions=2, pins=PINS, between=between)


@case(ranks=2)
def a_teacher_of_averages_is_refused() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(net())
    teacher = copy.deepcopy(model.module)
    pipe.step(squared)(model, *rows(0, 0))

    def follow() -> None:
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.module.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)

    refused(follow, "on rank", "local_named_parameters")
    refused(lambda: torch._foreach_norm(list(model.module.parameters())), "on rank")


@case(ranks=2)
def a_closure_runs_the_step() -> None:
    begin(partitions=2, microbatches=2)
    expected = one_process(net, rows, 1, 2, 1, nothing, sgd)
    torch.manual_seed(3)
    model = pipe.PipelineModel(net())
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    step = pipe.step(squared)
    loss = update.step(lambda: step(model, *rows(0, 0)).reduce_mean())
    assert loss.shape == ()
    same(model.state_dict(), expected)


@case(ranks=2)
def optimizers_with_scalers_of_their_own_are_refused() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(net())
    parts = list(model.module)
    scaler = pipe.GradScaler(init_scale=8.0)
    first = pipe.PipelineOptimizer(sgd(parts[0].parameters()), scaler)
    second = pipe.PipelineOptimizer(sgd(parts[2].parameters()), pipe.GradScaler(init_scale=4.0))
    pipe.step(squared)(model, *rows(0, 0))
    refused(first.step, "another scaler")
    second.step()
