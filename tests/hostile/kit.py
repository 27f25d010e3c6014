"""What a case's script holds: the pipeline, or one process that does the same without one."""

from __future__ import annotations

import hashlib
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

import trainshed.parallel as pipe
from hostile.combinations import MICROBATCHES, Combination
from jobs.parallel.plans import counted as counted_costs
from trainshed.parallel.plan import planner
from trainshed.parallel.split import StepOutput, join, rows, split
from trainshed.parallel.tracing import host_rng as dice

# Less than the player waits for a case.
SECONDS = 170


class Kit:
    """What both have: notes, which are compared.

    found: name -> value; on every rank the same as in one process.
    parts: name -> tensors by name, of which each rank has some.
    """

    parts_of_a_batch = MICROBATCHES
    alone = False

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.parts: dict[str, dict[str, torch.Tensor]] = {}

    def begin(self, **settings: Any) -> None:
        """Instead of `pipe.init`."""

    def note(self, name: str, value: Any) -> None:
        """What is to be compared."""
        self.found[name] = plain(value)

    def gradients(self, name: str, model: Any) -> None:
        """Notes the gradients that this rank has."""
        held = model.local_named_parameters()
        self.parts[name] = {n: p.grad.detach().clone() for n, p in held if p.grad is not None}


class PipelineKit(Kit):
    """Trains in a pipeline."""

    def __init__(self, combination: Combination) -> None:
        super().__init__()
        self.combination = combination

    def begin(self, **settings: Any) -> None:
        pipe.init({**self.combination.settings(), "timeout_seconds": SECONDS, **settings})

    def model(self, module: nn.Module) -> Any:
        """Instead of `PipelineModel`."""
        return pipe.PipelineModel(module)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        """Instead of `PipelineOptimizer`."""
        return pipe.PipelineOptimizer(optimizer)

    def step(self, function: Any = None, **options: Any) -> Any:
        """Instead of `pipe.step`."""
        return pipe.step(function, **options)

    @property
    def rank(self) -> int:
        """Of the pipeline's ranks."""
        return pipe.pp_rank()


class AloneKit(Kit):
    """Trains in one process: microbatch by microbatch, with the random numbers that docs/pipeline.md promises."""

    alone = True
    rank = 0

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        self._in_step = False
        self._share = [1.0]  # by which the loss of the microbatch that runs counts

    def model(self, module: nn.Module) -> Any:
        return Alone(module, self._share)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        return optimizer

    def step(self, function: Any = None, **options: Any) -> Any:
        if function is None:
            return lambda chosen: self.step(chosen, **options)
        signature = inspect.signature(function)

        def stepped(*args: Any, **kwargs: Any) -> Any:
            if self._in_step:
                return function(*args, **kwargs)
            given = _parts(signature, args, kwargs, **options)
            counts = [_rows(bound, **options) for bound in given]
            mean = sum(counts) / len(counts)
            parts = [count / mean if mean else 1.0 for count in counts]
            self._in_step = True
            try:
                return join(self._run(function, given, parts), parts)
            finally:
                self._in_step = False

        return stepped

    def _run(self, function: Callable[..., Any], given: list[inspect.BoundArguments], parts: list[float]) -> list[Any]:
        rolled, before = dice.get_state(), torch.get_rng_state()
        rolls, draw = dice.seed_of(rolled, self._calls), int(torch.randint(0, 2**62, (1,)))
        self._calls += 1
        after, drawn, results = torch.get_rng_state(), False, []
        try:
            for number, bound in enumerate(given):
                torch.manual_seed(draw + number)
                self._share[0] = parts[number] / len(parts)
                fresh = torch.get_rng_state()
                dice.start(rolls, number)
                results.append(_without_graph(function(*bound.args, **bound.kwargs)))
                drawn |= not torch.equal(fresh, torch.get_rng_state())
        finally:
            dice.set_state(rolled)
            torch.set_rng_state(after if drawn else before)
        return results


class Alone(nn.Module):
    """Has what a `PipelineModel` has."""

    def __init__(self, module: nn.Module, share: list[float]) -> None:
        super().__init__()
        self.module, self._share = module, share

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        outputs = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        gradients = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or [])
        gradients += [torch.ones_like(output) for output in outputs[len(gradients) :]]
        torch.autograd.backward(outputs, [gradient * self._share[0] for gradient in gradients])

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.module.named_parameters()

    def local_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.module.parameters()

    def local_buffers(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_buffers())

    def set_partition(self, module: nn.Module, stage: int) -> None:
        """There are no stages."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return {name: value.clone() for name, value in self.module.state_dict().items()}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:  # type: ignore[override]
        return self.module.load_state_dict(state, strict)


def _parts(
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    non_split_inputs: tuple[str, ...] = (),
    input_split_axes: Mapping[str, int] | None = None,
) -> list[inspect.BoundArguments]:
    bound = signature.bind(*args, **kwargs)
    parts = min(MICROBATCHES, _rows(bound, non_split_inputs, input_split_axes) or MICROBATCHES)
    pieces = {
        name: [value] * parts
        if name in non_split_inputs or isinstance(value, nn.Module)
        else split(value, parts, (input_split_axes or {}).get(name, 0), name)
        for name, value in bound.arguments.items()
    }
    return [
        inspect.BoundArguments(signature, type(bound.arguments)((name, values[n]) for name, values in pieces.items()))
        for n in range(parts)
    ]


def _rows(
    bound: inspect.BoundArguments,
    non_split_inputs: tuple[str, ...] = (),
    input_split_axes: Mapping[str, int] | None = None,
) -> int:
    """Of the first argument that is split; 0 if there is none."""
    axes = input_split_axes or {}
    counts = (
        rows(value, axes.get(name, 0))
        for name, value in bound.arguments.items()
        if name not in non_split_inputs and not isinstance(value, nn.Module)
    )
    return next((count for count in counts if count is not None), 0)


def _without_graph(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value) in (tuple, list):
        return type(value)(_without_graph(one) for one in value)
    if type(value) is dict:
        return {key: _without_graph(one) for key, one in value.items()}
    return value


def plain(value: Any) -> Any:
    """As lists, dictionaries, numbers and tensors."""
    if isinstance(value, StepOutput):
        return [plain(one) for one in value.outputs]
    if isinstance(value, torch.Tensor):
        found = value.detach().clone()
        return found if type(found) is torch.Tensor else torch.tensor(found.tolist(), dtype=found.dtype)  # it is read here
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(type(value))


@contextmanager
def planned_by_seed(seed: str) -> Iterator[None]:
    """Costs of modules are drawn: cuts lie anywhere, and in the same places whenever a case is played again."""

    def drawn(name: str) -> float:
        number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big")
        return math.exp(random.Random(number).uniform(-9.0, -5.0))

    def profile(subject: Any, units: Any) -> Any:
        trace = counted(subject, units)
        for event in trace.events:
            event.seconds_forward = drawn(event.name) if event.is_unit else 0.0
            event.seconds_backward = 2 * event.seconds_forward
        return trace

    def choose_units(tree: Any, *rest: Any) -> Any:
        def visit(call: Any) -> float:
            call.seconds = sum(map(visit, call.inside)) or drawn(call.name)
            return call.seconds

        visit(tree)
        return chosen(tree, *rest)

    with counted_costs(runs=True):
        counted, chosen = planner.profile, planner.choose_units
        with patch.object(planner, "profile", profile), patch.object(planner, "choose_units", choose_units):
            yield


def together() -> bool:
    """Whether other processes take part."""
    return dist.is_initialized() and dist.get_world_size() > 1
