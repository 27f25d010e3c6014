"""Modules that are called in unusual ways: compiled by TorchScript or fx, with other weights, with hooks of the backward."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainshed.parallel as pipe

from .table import begin, case, refused, same
from .training import Alone, adam, check, squared


def rows(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * number + replica)),)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(self.a(x).tanh())


def blocks(count: int = 4) -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(count)))


FOUR = {"0": 0, "1": 0, "2": 1, "3": 1}
HALVES = {"1": 0, "2": 1}


@case(ranks=2)
def scripted_children() -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(torch.jit.script(Block()) for _ in range(4)))

    check(build, rows, partitions=2, pins=HALVES)
    pipe.shutdown()
    check(build, rows, partitions=2)


@case(ranks=2)
def scripted_model() -> None:
    """Cannot be cut: with words, or run as one part."""
    begin(partitions=2, microbatches=2)
    refused(lambda: pipe.step(squared)(pipe.PipelineModel(torch.jit.script(blocks())), *rows(0, 0)), "TorchScript")


@case(ranks=2)
def traced_and_fx_children() -> None:
    def build() -> nn.Module:
        made = [torch.fx.symbolic_trace(Block()) for _ in range(3)]
        return nn.Sequential(*made, torch.jit.trace(Block(), torch.ones(2, 4)))

    check(build, rows, partitions=2, pins=HALVES)


@case(ranks=2)
def fx_model() -> None:
    check(lambda: torch.fx.symbolic_trace(blocks()), rows, partitions=2, pins=HALVES)


@case(ranks=2)
def lazy_modules() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(4), nn.Linear(4, 2))

    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(build())
    refused(lambda: pipe.step(squared)(model, *rows(0, 0)), "0.weight", "no shape", "run the model")
    pipe.shutdown()

    def run_once() -> nn.Module:
        model = build()
        model(torch.ones(2, 4))
        return model

    check(run_once, rows, partitions=2)


@case(ranks=2)
def models_on_the_meta_device() -> None:
    with torch.device("meta"):
        module = blocks()
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(module)
    refused(lambda: pipe.step(squared)(model, *rows(0, 0)), "meta device", "0.a.weight")


class Checkpointed(nn.Module):
    """Checkpoints in a checkpoint, across several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = blocks(6), nn.Linear(4, 4)

    def part(self, x: torch.Tensor, first: int) -> torch.Tensor:
        for number in range(first, first + 3):
            x = checkpoint(self.blocks[number], x, use_reentrant=False)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first in (0, 3):
            x = checkpoint(self.part, x, first, use_reentrant=False)
        return self.last(x)


@case(ranks=2)
def nested_checkpoints() -> None:
    for options in ({}, {"pipeline": "interleavedzerobubble"}):
        check(Checkpointed, rows, partitions=2, pins={"blocks.2": 0, "blocks.3": 1}, **options)
        pipe.shutdown()


class Scaled(nn.Module):
    """Runs its blocks with weights that it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(4)
        self.scales = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            weights = {name: value * self.scales[number] for name, value in block.named_parameters()}
            x = torch.func.functional_call(block, weights, (x,))
        return x


@case(ranks=2)
def functional_call_with_scaled_weights() -> None:
    whole = [f"blocks.{number}" for number in range(4)]
    check(Scaled, rows, partitions=2, pins={"blocks.1": 0, "blocks.2": 1}, atomic=whole)
    pipe.shutdown()
    check(Scaled, rows, partitions=2, pipeline="interleavedzerobubble")


def hooked(kind: str) -> nn.Module:
    """Hooks that change what passes, on blocks that the planner would open."""
    model = blocks()
    for number, block in enumerate(model):
        if kind == "forward":
            block.register_forward_hook(lambda _m, _a, output, n=number: output * (1 + 0.1 * n))
            block.a.register_forward_pre_hook(lambda _m, args: (args[0] * 0.5,))
        elif kind == "keywords":
            block.register_forward_pre_hook(lambda _m, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)
        elif kind == "backward pre":
            block.register_full_backward_pre_hook(lambda _m, out: tuple(g * 0.5 for g in out))
        elif kind == "inside":
            block.b.register_full_backward_hook(lambda _m, given, _out: (given[0] * 3,))
    return model


@case(ranks=2)
def forward_hooks_that_change_values() -> None:
    for kind in ("forward", "keywords"):
        check(lambda kind=kind: hooked(kind), rows, partitions=2)
        pipe.shutdown()
        # Cut within a block: its hooks belong to both sides.
        check(lambda kind=kind: hooked(kind), rows, partitions=2, pins={"1.a": 0, "1.b": 1})
        pipe.shutdown()


@case(ranks=2)
def full_backward_hooks_that_change_gradients() -> None:
    for kind in ("backward pre", "inside"):
        check(lambda kind=kind: hooked(kind), rows, partitions=2)
        pipe.shutdown()
        check(lambda kind=kind: hooked(kind), rows, partitions=2, pipeline="interleavedzerobubble")
        pipe.shutdown()
    # The gradient of the first block's input is not computed in one process either.
    check(lambda: doubled(), rows, partitions=2)


def doubled() -> nn.Module:
    model = blocks()
    for block in list(model)[1:]:
        block.register_full_backward_hook(lambda _m, given, _out: (given[0] * 2,))
    return model


@case(ranks=2)
def full_backward_hook_of_the_model_itself() -> None:
    seen = []

    def build() -> nn.Module:
        model = blocks()
        model.register_full_backward_hook(lambda _m, _given, out: seen.append(out[0].norm()))
        return model

    check(build, rows, partitions=2, pins=HALVES)


class Moves(nn.Module):
    """Puts its parts where the input is, in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = blocks(3), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block.to(x.device)(x)
        self.last = self.last.to(device=x.device, dtype=x.dtype)
        return self.last(x)


@case(ranks=2)
def modules_are_moved_in_the_forward() -> None:
    check(Moves, rows, partitions=2)
    pipe.shutdown()
    check(Moves, rows, partitions=2, atomic=[f"blocks.{n}" for n in range(3)], pins={"blocks.0": 0, "blocks.1": 1})


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))
        self.critic = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.critic(self.generator(z))


def critic_step(model: Any, real: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        fake = model.module.generator(z)
    inner = model.module
    loss = inner.critic(fake).mean() - inner.critic(real).mean()
    model.backward(loss)
    return loss


def features_step(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Trains the first part alone."""
    loss = model.module.generator(x).square().mean() * 2
    model.backward(loss)
    return loss


def generator_step(model: Any, z: torch.Tensor) -> torch.Tensor:
    loss = -model(z).mean()
    model.backward(loss)
    return loss


def gan(model: Any, wraps: Any, optimizers: Any, microbatches: int) -> None:
    critic, generator = wraps(critic_step), wraps(generator_step)
    for number in range(4):
        made = torch.Generator().manual_seed(number)
        real, z = torch.randn(4, 4, generator=made), torch.randn(4, 3, generator=made)
        for update in optimizers:
            update.zero_grad()
        critic(model, real, z)
        optimizers[1].step()
        for parameter in model.module.critic.parameters():
            parameter.data.clamp_(-0.2, 0.2)
        if number % 2:
            for update in optimizers:
                update.zero_grad()
            generator(model, z)
            optimizers[0].step()


@case(ranks=2)
def gan_with_two_steps_and_two_optimizers() -> None:
    torch.manual_seed(3)
    module = Gan()
    start = copy.deepcopy(module.state_dict())

    def both(model: nn.Module) -> list[Any]:
        return [adam(model.generator.parameters()), adam(model.critic.parameters())]

    def alone(function: Any) -> Any:
        def run(model: Any, *inputs: torch.Tensor) -> None:
            for part in zip(*[value.chunk(2) for value in inputs], strict=True):
                function(model, *part)

        return run

    gan(Alone(module, 0.5), alone, both(module), 2)
    expected = copy.deepcopy(module.state_dict())
    options: dict[str, Any]
    for options in ({}, {"pins": ("generator.2", "critic.0")}, {"pipeline": "interleavedzerobubble"}):
        pins = options.pop("pins", None)
        begin(partitions=2, microbatches=2, **options)
        module = Gan()
        module.load_state_dict(start)
        model = pipe.PipelineModel(module)
        if pins is not None:
            model.set_partition(module.get_submodule(pins[0]), 0)
            model.set_partition(module.get_submodule(pins[1]), 1)
        updates = [pipe.PipelineOptimizer(one) for one in both(module)]
        gan(model, pipe.step, updates, 2)
        same(model.state_dict(), expected)
        state = updates[0].state_dict()
        assert len(state["state"]) == 4, state["state"].keys()
        pipe.shutdown()


def parts_in_turn(ranks: int, **settings: Any) -> None:
    """Some steps use only what the first stages have: the last ones have nothing to run then."""
    torch.manual_seed(3)
    module = Gan()
    start = copy.deepcopy(module.state_dict())
    update, one = adam(module.parameters()), Alone(module, 0.5)
    for number in range(4):
        update.zero_grad()
        for part in points(number).chunk(2):
            (features_step if number % 2 else generator_step)(one, part)
        update.step()
    expected = copy.deepcopy(module.state_dict())
    begin(partitions=ranks, microbatches=2, **settings)
    module = Gan()
    module.load_state_dict(start)
    model = pipe.PipelineModel(module)
    for stage, name in enumerate(("generator.0", "generator.2", "critic.0", "critic.2")):
        model.set_partition(module.get_submodule(name), stage * ranks // 4)
    mine = pipe.PipelineOptimizer(adam(module.parameters()))
    steps = [pipe.step(generator_step), pipe.step(features_step)]
    for number in range(4):
        mine.zero_grad()
        loss = steps[number % 2](model, points(number))
        mine.step()
        assert len(loss) == 2
    with torch.no_grad():
        found = pipe.step(lambda model, x: model.module.generator(x))(model, points(0)).concat()
    same(model.state_dict(), expected)
    module = Gan()
    module.load_state_dict(expected)
    torch.testing.assert_close(found, module.generator(points(0)))


def points(number: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(number))


@case(ranks=2)
def steps_that_use_the_first_part_only() -> None:
    for options in ({}, {"pipeline": "interleavedzerobubble"}):
        parts_in_turn(2, **options)
        pipe.shutdown()


@case(ranks=4)
def steps_that_use_the_first_part_of_four_stages() -> None:
    parts_in_turn(4)


@case(ranks=2)
def a_second_model_is_refused() -> None:
    begin(partitions=2, microbatches=2)
    pipe.PipelineModel(blocks())
    refused(lambda: pipe.PipelineModel(blocks()), "one nn.Module")
    refused(lambda: pipe.PipelineModel(pipe.PipelineModel(blocks())), "PipelineModel")


@case(ranks=2)
def sharded_modules_are_refused() -> None:
    from torch.distributed import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = blocks()
    fully_shard(module[1], mesh=init_device_mesh("cpu", (2,)))
    begin(partitions=2, microbatches=2)
    refused(lambda: pipe.PipelineModel(module), "sharded", "1.a.weight")


@case(ranks=2)
def distributed_data_parallel_inside_or_outside_is_refused() -> None:
    begin(partitions=2, microbatches=2)
    model = nn.Sequential(blocks(), nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))
    refused(lambda: pipe.PipelineModel(model), "DistributedDataParallel")
