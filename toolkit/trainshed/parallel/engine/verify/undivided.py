"""One step of the undivided model, in one process, with the microbatches and random numbers of the pipeline's step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...record.subject import Backward
from ...replay import dice, rng
from ...replay.gates import UnitGates
from ...tree import leaves, map_leaves
from ..absent import AbsentParameter
from ..stage import Step
from .sketch import Sketch, sketch
from .traces import no_gradients
from .unit_outputs import Call, Watch


@dataclass
class Outcome:
    """What a step has computed.

    outputs: of the calls of units.
    results: tensors and numbers that the step function returned, by microbatch.
    gradients: of parameters that have one.
    buffers: after the step.
    parameters: before the step.
    trained: names of parameters that may get a gradient.
    """

    outputs: dict[Call, list[Sketch]] = field(default_factory=dict)
    results: list[list[Sketch]] = field(default_factory=list)
    gradients: dict[str, Sketch] = field(default_factory=dict)
    buffers: dict[str, Sketch] = field(default_factory=dict)
    parameters: dict[str, Sketch] = field(default_factory=dict)
    trained: tuple[str, ...] = ()


def run(
    root: nn.Module,
    gates: UnitGates,
    attach: Callable[[Backward | None], None],
    step: Step,
    device: torch.device,
    values: Mapping[str, torch.Tensor],
    *,
    scale: float,
    copies: bool,
    watch: Watch | None = None,
) -> Outcome:
    """What one process computes; the caller puts back what that changes (`Traces`).

    Args:
        values: parameters, where those in the model are not here.
        scale: of each microbatch's loss.
        copies: whether the step function changes its inputs in place.
        watch: looks at the units.
    """
    watch = watch or Watch()
    found = Outcome(outputs=watch.seen)
    with filled(root, values), no_gradients(root):
        found.parameters = {name: sketch(parameter) for name, parameter in root.named_parameters()}
        for number, (args, kwargs) in enumerate(step.microbatches):
            if copies:
                args, kwargs = map_leaves(_copy, args), map_leaves(_copy, kwargs)
            if step.states:
                rng.set_state(step.states[number], device)
            dice.start(step.seed, number)
            losses = _Losses()
            attach(losses)
            gates.watched(watch, number)
            try:
                with _as_written(), gates.kept(_Units()):
                    result = step.function(*args, **kwargs)
            finally:
                gates.watch = None
                attach(None)
            found.results.append(results_of(result))
            del result, args, kwargs
            if step.training:
                losses.run(scale)
        found.gradients = {name: sketch(p.grad) for name, p in root.named_parameters() if p.grad is not None}
        found.buffers = {name: sketch(buffer) for name, buffer in root.named_buffers() if not buffer.is_meta}
    return found


def results_of(result: Any) -> list[Sketch]:
    """Sketches of the tensors and numbers that a step function returned for a microbatch."""
    found = []
    for leaf in leaves(result):
        if isinstance(leaf, torch.Tensor):
            found.append(sketch(leaf))
        elif isinstance(leaf, (int, float)):
            found.append(sketch(torch.tensor(float(leaf), dtype=torch.float64)))
    return found


@contextmanager
def filled(root: nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Within the block parameters are what is given, also those of other ranks."""
    kept: list[tuple[Any, type, torch.Tensor]] = []
    try:
        with torch.inference_mode(False):
            for name, parameter in root.named_parameters():
                if name not in values:
                    continue
                kind: type = type(parameter)
                if kind is AbsentParameter:
                    parameter.__class__ = nn.Parameter
                kept.append((parameter, kind, parameter.data))
                parameter.data = values[name]
        yield
    finally:
        with torch.inference_mode(False):
            for parameter, kind, data in kept:
                parameter.data = data
                parameter.__class__ = kind


class _Losses:
    def __init__(self) -> None:
        self._given: list[torch.Tensor] = []

    def backward(self, losses: list[torch.Tensor]) -> None:
        """`model.backward(...)` in the step function."""
        self._given.extend(losses)

    def run(self, scale: float) -> None:
        """The backward itself, after the step function."""
        given = [loss.float() if loss.dtype.itemsize < 4 else loss for loss in self._given]
        total = torch.stack(given).sum() if given else None
        if total is not None and total.requires_grad:
            (total * scale).backward()


class _Units:
    """Units run as they do on their stages: compiled, if the user compiled them."""

    def unit_call(self, _name: str, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call itself."""
        if "torch._dynamo" not in sys.modules:
            return native(*args, **kwargs)
        with torch.compiler.set_stance("default"):
            return native(*args, **kwargs)


def _as_written() -> Any:
    """Between units nothing is compiled in a stage, nor here."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
