"""Defects that are planted in the runtime, one at a time: each is found before the first optimizer step, by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.engine.gradients import GradientSync
from trainshed.parallel.engine.holding import Holding
from trainshed.parallel.engine.outputs import Post
from trainshed.parallel.engine.remote_parameters import Absent
from trainshed.parallel.stages import stage, steps
from trainshed.parallel.stages.stage import ReplayStage, StageModule
from trainshed.parallel.tracing import host_rng as dice
from trainshed.parallel.tracing import rng

from .table import begin, case

Plant = AbstractContextManager[Any]
_PARTS = 4


class Mixed(nn.Module):
    """A tied table, batch norm, dropout, numbers from Python's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)
        self.a, self.norm, self.b = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.c, self.drop, self.d = nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.b(self.norm(torch.tanh(self.a(self.table(x))))))
        x = self.d(self.drop(torch.tanh(self.c(x)))) * (1 + random.random())
        return x @ self.table.weight.t()


STAGES = {"table": 0, "a": 0, "norm": 0, "b": 0, "c": 1, "drop": 1, "d": 1}


def classify(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    model.backward(loss)
    return loss


def _nothing(*_: Any, **__: Any) -> None:
    pass


def train(
    plant: Plant,
    steps: int = 1,
    given: float | None = None,
    scale: float = 0.0,
    kind: Callable[[], nn.Module] = Mixed,
    **settings: Any,
) -> str:
    """What the first `steps` steps raise, none of which has moved a parameter then; empty if nothing."""
    begin(microbatches=_PARTS, **{"verify": "changes", **settings})
    torch.manual_seed(3)
    module = kind()
    model = pipe.PipelineModel(module)
    if pipe.pp_size() > 1:
        for name, number in STAGES.items():
            model.set_partition(getattr(module, name), number)
    scaler = pipe.GradScaler(init_scale=scale) if scale else None
    update = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), scaler)
    train_step = pipe.step(classify)
    if given is not None:
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, given)
    generator = torch.Generator().manual_seed(pipe.dp_rank())
    for _ in range(steps):
        x, y = (torch.randint(0, 12, (16,), generator=generator) for _ in range(2))
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        with plant:
            try:
                train_step(model, x, y)
            except pipe.PipelineError as error:
                assert all(p.grad is None for p in model.local_parameters()), "an optimizer could go on"
                update.optimizer.step()
                moved = [n for n, p in model.local_named_parameters() if not torch.equal(p, before[n])]
                # The defect may be in the parameters themselves.
                assert not moved or "parameter" in str(error), moved
                return str(error)
        update.step()
        update.zero_grad()
    return ""


def found(*words: str, **options: Any) -> Callable[[Callable[[], Plant]], Callable[[], Plant]]:
    """Puts a defect into the table: it must be found, with these words."""

    def put(plant: Callable[[], Plant]) -> Callable[[], Plant]:
        def planted() -> None:
            said = train(plant(), **options)
            assert said, "the defect was not found"
            assert "is not right, no parameter was changed" in said, said
            assert all(word in said for word in words), said

        planted.__name__ = plant.__name__
        planted.__module__ = plant.__module__
        case(ranks=2)(planted)
        return plant

    return put


def after(owner: Any, name: str, action: Callable[..., Any]) -> Plant:
    """`action(result, *arguments)` runs after each call of a function, and gives its result."""
    native = getattr(owner, name)

    def changed(*args: Any, **kwargs: Any) -> Any:
        return action(native(*args, **kwargs), *args)

    return patch.object(owner, name, changed)


def at_gradients(change: Callable[[GradientSync], None]) -> Plant:
    """Changes the gradients of a rank when they are summed."""
    return after(GradientSync, "finish", lambda _result, sync: change(sync))


TWO = {"partitions": 2}
REPLICAS = {"partitions": 1}
BUBBLE = {"partitions": 2, "pipeline": "interleavedzerobubble"}


@found("gradient", "0.25 times", **TWO)
def a_microbatch_is_scaled_twice() -> Plant:
    return after(StageModule, "_loss", lambda loss, *_: loss / _PARTS)


@found("gradient", "4 times", **TWO)
def the_loss_is_not_divided_by_the_number_of_microbatches() -> Plant:
    native = steps.Step
    return patch.object(steps, "Step", lambda f, m, w, t, _scale, counted, seed: native(f, m, w, t, 1.0, counted, seed))


@found("gradient", **TWO)
def one_microbatch_counts_twice() -> Plant:
    return after(StageModule, "_loss", lambda loss, module, *_: loss * (2 if module.microbatch == 1 else 1))


@found("gradient", "times what it should be", scale=8.0, **TWO)
def the_loss_scale_is_forgotten() -> Plant:
    return after(StageModule, "_loss", lambda loss, *_: loss / 8)


@found("gradient of 'b.weight'", "module 'b'", "rank 0", **TWO)
def a_gradient_is_dropped() -> Plant:
    def drop(sync: GradientSync) -> None:
        if "b.weight" in sync.parameters:
            sync.parameters["b.weight"].grad = None

    return at_gradients(drop)


@found("gradient of 'd.bias'", "module 'd'", "rank 1", "2 times", **TWO)
def a_gradient_is_added_twice() -> Plant:
    def double(sync: GradientSync) -> None:
        if "d.bias" in sync.parameters:
            sync.parameters["d.bias"].grad *= 2  # type: ignore[operator]

    return at_gradients(double)


@found("gradient", given=0.5, **TWO)
def accumulated_gradients_are_forgotten() -> Plant:
    return after(GradientSync, "begin", lambda _result, sync, *_: sync._before.clear())


@found("gradient", given=0.5, **TWO)
def accumulated_gradients_are_added_twice() -> Plant:
    return at_gradients(lambda sync: [p.grad.add_(0.5) for p in sync.parameters.values() if p.grad is not None] and None)


@found("buffer 'norm.running_mean'", "module 'norm'", **TWO)
def a_buffer_stays_as_it_was() -> Plant:
    native = steps.Engine._run_schedule

    def run(engine: Any, *args: Any) -> None:
        before = engine._root.norm.running_mean.clone()
        native(engine, *args)
        engine._root.norm.running_mean.copy_(before)

    return patch.object(steps.Engine, "_run_schedule", run)


@found("buffer 'norm.", "rank 1", **TWO)
def a_buffer_is_kept_by_the_wrong_rank() -> Plant:
    native = Holding.note_buffers
    return patch.object(Holding, "note_buffers", lambda self, homes: native(self, dict.fromkeys(homes, 1)))


@found("module 'c'", "stage 1", **TWO)
def a_stage_takes_the_activations_of_another_microbatch() -> Plant:
    kept: dict[int, torch.Tensor] = {}
    native = StageModule._forward

    def forward(self: StageModule, step: Any, received: Any) -> Any:
        if self.index == 1:
            received = (kept.setdefault(self.index, received[0]), *received[1:])
        return native(self, step, received)

    return patch.object(StageModule, "_forward", forward)


@found("module 'c'", "stage 1", **TWO)
def activations_are_sent_in_half_precision() -> Plant:
    return after(StageModule, "_outgoing", lambda sent, *_: (sent[0].half().float(), *sent[1:]))


@found("module 'c'", "microbatch 2", **TWO)
def activations_of_one_microbatch_are_a_little_larger() -> Plant:
    return after(
        StageModule, "_outgoing", lambda sent, self, *_: (sent[0] * (1.001 if self.microbatch == 2 else 1), *sent[1:])
    )


@found("gradient of 'b.", "module 'b'", "rank 0", **TWO)
def gradients_of_activations_are_sent_in_half_precision() -> Plant:
    def round_off(_result: Any, self: ReplayStage, number: int, *_: Any) -> None:
        self.bwd_cache[number] = tuple(None if g is None else g.half().float() for g in self.bwd_cache[number])

    return after(ReplayStage, "backward_one_chunk", round_off)


@found("gradient of 'b.", "module 'b'", "rank 0", **TWO)
def an_activation_is_detached_in_one_microbatch() -> Plant:
    def forget(_result: Any, self: ReplayStage, number: int, *_: Any) -> None:
        if number == 1 and not self.is_first:
            self.bwd_cache[number] = tuple(None if g is None else g * 0 for g in self.bwd_cache[number])

    return after(ReplayStage, "backward_one_chunk", forget)


@found("gradient of 'b.", "module 'b'", "rank 0", **TWO)
def a_stage_takes_the_gradients_of_another_microbatch() -> Plant:
    def other(gradients: Any, self: ReplayStage, number: int) -> Any:
        first = vars(self).setdefault("planted", [None if g is None else g.clone() for g in gradients])
        return gradients if number < 1 else first

    return after(ReplayStage, "_gradients", other)


@found("gradient of 'b.", "module 'b'", "rank 0", **TWO)
def the_first_stage_leaves_out_the_last_backward() -> Plant:
    native = ReplayStage.backward_one_chunk

    def backward(self: ReplayStage, number: int, *args: Any, **kwargs: Any) -> None:
        if self.is_first and number == _PARTS - 1:
            _, inputs = self.fwd_cache.pop(number)
            self.bwd_cache[number] = tuple(None for _ in inputs)
        else:
            native(self, number, *args, **kwargs)

    return patch.object(ReplayStage, "backward_one_chunk", backward)


@found("result", **TWO)
def the_last_stage_takes_the_inputs_of_another_microbatch() -> Plant:
    native = StageModule._forward

    def forward(self: StageModule, step: Any, received: Any) -> Any:
        given = step.microbatches
        if self.is_last:
            step.microbatches = [given[0], given[2], given[1], given[3]]
        try:
            return native(self, step, received)
        finally:
            step.microbatches = given

    return patch.object(StageModule, "_forward", forward)


@found("result", "2 times", **TWO)
def another_loss_is_returned() -> Plant:
    return after(Post, "share", lambda results, *_: [2 * loss for loss in results])


@found("result", **TWO)
def results_come_in_another_order() -> Plant:
    return after(Post, "share", lambda results, *_: results[::-1])


@found("gradient of 'table.weight'", "module 'table'", **TWO)
def the_gradients_of_a_tied_table_are_not_summed() -> Plant:
    return patch.object(GradientSync, "_sum_shared", _nothing)


@found("gradient of 'table.weight'", "module 'table'", **TWO)
def the_gradients_of_a_tied_table_are_summed_twice() -> Plant:
    native = GradientSync._sum_shared
    return patch.object(GradientSync, "_sum_shared", lambda sync: (native(sync), native(sync)))


@found("gradient", **REPLICAS)
def replicas_are_not_averaged() -> Plant:
    return patch.object(GradientSync, "_sum_replicas", _nothing)


@found("gradient", "2 times", **REPLICAS)
def replicas_are_averaged_by_the_wrong_count() -> Plant:
    native = GradientSync._put
    return patch.object(GradientSync, "_put", lambda sync, names, flat, there, _divisor: native(sync, names, flat, there, 1))


@found("gradient", **REPLICAS)
def a_replicas_sum_lacks_its_own_part() -> Plant:
    native = GradientSync._gradient

    def gradient(sync: GradientSync, name: str) -> torch.Tensor:
        return native(sync, name) * (0 if pipe.dp_rank() else 1)

    return patch.object(GradientSync, "_gradient", gradient)


@found("parameter 'd.weight'", steps=2, verify_steps=1, **REPLICAS)
def replicas_have_drifted_apart() -> Plant:
    def drift(states: Any, engine: Any, *_: Any) -> Any:
        if engine.steps == 1 and pipe.dp_rank():
            engine._root.d.weight.data.add_(1e-3)
        return states

    return after(steps.Engine, "_draw_states", drift)


class _Wrong:
    """A module with one function that does something else."""

    def __init__(self, native: Any, **functions: Any) -> None:
        self.__dict__.update(vars(native), **functions)


@found("module 'drop'", "stage 1", **TWO)
def the_random_state_is_another_microbatchs() -> Plant:
    def set_state(_state: torch.Tensor, device: torch.device) -> None:
        rng.set_state(rng.state_of_seed(1, device), device)

    return patch.object(stage, "rng", _Wrong(rng, set_state=set_state))


@found("result", **TWO)
def pythons_random_numbers_are_another_microbatchs() -> Plant:
    return patch.object(stage, "dice", _Wrong(dice, start=lambda seed, _microbatch: dice.start(seed, 0)))


def at_module(name: str, change: Callable[..., Any]) -> Plant:
    """In the pipeline alone the call of one module is another one: `change(native, arguments)`."""
    native = stage.StageForward.unit_call

    def call(self: Any, called: str, run: Any, args: Any, kwargs: Any) -> Any:
        return native(self, called, partial(change, run) if called == name else run, args, kwargs)

    return patch.object(stage.StageForward, "unit_call", call)


@found("'norm.", **TWO)
def a_module_runs_twice() -> Plant:
    return at_module("norm", lambda run, x: (run(x), run(x))[1])


@found("module 'drop'", "stage 1", **TWO)
def a_stage_runs_in_another_mode() -> Plant:
    native = StageModule._forward

    def forward(self: StageModule, step: Any, received: Any) -> Any:
        module = self.frame.root.drop
        module.eval()
        try:
            return native(self, step, received)
        finally:
            module.train()

    return patch.object(StageModule, "_forward", forward)


@found("parameter 'c.weight'", "rank 1", **TWO)
def two_modules_have_each_others_parameters() -> Plant:
    def swap(_result: Any, _self: Any, root: Any, *_: Any) -> None:
        root.c.weight.data, root.d.weight.data = root.d.weight.data.clone(), root.c.weight.data.clone()

    return after(Absent, "give_up", lambda result, self, root, *_: swap(result, self, root) if pipe.pp_rank() else None)


@found("gradient of 'd.", "stage 1", **BUBBLE)
def the_second_part_of_the_last_backward_is_lost() -> Plant:
    native = ReplayStage.backward_weight_one_chunk

    def backward(self: ReplayStage, number: int, *args: Any, **kwargs: Any) -> None:
        if number == _PARTS - 1:
            self._later.pop(number, None)
        native(self, number, *args, **kwargs)

    return patch.object(ReplayStage, "backward_weight_one_chunk", backward)


@found("module 'c'", partitions=2, pipeline="interleaved1f1b", virtual_stages=1)
def activations_are_rounded_with_another_schedule() -> Plant:
    return after(StageModule, "_outgoing", lambda sent, *_: (sent[0].bfloat16().float(), *sent[1:]))
