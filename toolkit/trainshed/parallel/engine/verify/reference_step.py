"""One step of the undivided model, in one process, with the microbatches and random numbers of the pipeline's step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...ground.tree import leaves, with_cloned_tensors
from ...tracing import host_rng as dice
from ...tracing import rng
from ...tracing.call_routing import UnitGates
from ...tracing.subject import Backward
from ..step import Step
from .tensor_digest import Sketch, sketch
from .traces import no_gradients
from .unit_outputs import Call, Watch
from .values import Values


@dataclass
class Outcome:
    """The outcome of a step.

    outputs: of the calls of units; again: which of them may have run in one model alone (`Watch.again`).
    results: tensors and numbers that the step function returned, by microbatch.
    gradients: of parameters that have one.
    buffers: after the step.
    parameters: before the step.
    trained: names of parameters that may get a gradient.
    """

    outputs: dict[Call, list[Sketch]] = field(default_factory=dict)
    again: frozenset[Call] = frozenset()
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
    values: Values,
    *,
    only: int | None,
    scale: float,
    copies: bool,
    watch: Watch,
) -> Outcome:
    """Runs the step as one process does; the caller puts back what that changes (`Traces`).

    Args:
        values: of the parameters.
        only: the one microbatch that is computed; None for all.
        scale: of each microbatch's loss.
        copies: whether the step function changes its inputs in place.
        watch: looks at the units.
    """
    found = Outcome(outputs=watch.seen, results=[[] for _ in step.microbatches])
    with no_gradients(root), values.there():
        for number, (args, kwargs) in enumerate(step.microbatches):
            if only not in (None, number):
                continue
            if copies:
                args, kwargs = with_cloned_tensors((args, kwargs))
            if step.states:
                rng.set_state(step.states[number], device)
            dice.start(step.seed, number)
            losses = _Losses()
            attach(losses)
            gates.watched(watch, number)
            try:
                with _as_written(), gates.kept(_Units(values)):
                    result = step.function(*args, **kwargs)
            finally:
                gates.watch = None
                attach(None)
            found.results[number] = results_of(result)
            del result, args, kwargs
            if step.training:
                losses.run(scale * step.parts[number])
        found.parameters, found.gradients = values.sketches(), values.gradients()
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

    def __init__(self, values: Values) -> None:
        self._values = values

    def unit_call(self, name: str, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call itself."""
        native = self._values.before(name, native)
        if "torch._dynamo" not in sys.modules:
            return native(*args, **kwargs)
        with torch.compiler.set_stance("default"):
            return native(*args, **kwargs)


def _as_written() -> Any:
    """Between units nothing is compiled in a stage, nor here."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
