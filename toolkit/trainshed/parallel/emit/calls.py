"""The model's call by a script's step, and the gradients that a try is compared with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..ground.errors import PlanError
from ..ground.tree import tensors
from ..tracing.subject import Subject

# Sums of parts are other sums: float32 differs in its last digits.
_ROUNDING = 1e-4


class NotEmitted(PlanError):
    """Plain torch does not train by this plan as one process does; says what stands in the way."""


@dataclass(frozen=True)
class ModelCall:
    """One call of the model: its arguments by name.

    draws: whether the forward takes random numbers. unused: whether the backward leaves parameters out.
    """

    root: nn.Module
    batch: Mapping[str, Any]
    draws: bool = False
    unused: bool = False

    def output(self, model: nn.Module | None = None) -> Any:
        """What the model gives; or another one that stands for it."""
        return (model or self.root)(**self.batch)


def model_call(subject: Subject) -> ModelCall:
    """Runs the step function once to see it.

    Raises:
        NotEmitted: it calls the model several times, or with arguments that have no names.
    """
    root, seen = subject.root, list[tuple[Any, Any]]()
    handle = root.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    reached = _Reached(root)
    try:
        with subject.untouched(), subject.attached(reached):
            args, kwargs = subject.inputs()
            subject.function(*args, **kwargs)
    finally:
        handle.remove()
    if len(seen) != 1:
        raise NotEmitted(f"the step calls the model {len(seen)} times", hint="an emitted file has one call of it a step")
    args, kwargs = seen[0]
    bound = inspect.signature(root.forward).bind(*args, **kwargs)
    batch = dict[str, Any]()
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise NotEmitted(f"the model takes *{name}", hint="give its forward names for what it is called with")
        batch.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    call = ModelCall(root, batch)
    with subject.untouched():
        before = _dice(subject.device)
        call.output()
        draws = not torch.equal(before, _dice(subject.device))
    return replace(call, draws=draws, unused=reached.unused)


class _Reached:
    """A backward that notes whether it reaches all parameters, and leaves no gradients."""

    def __init__(self, root: nn.Module) -> None:
        self._parameters = [parameter for parameter in root.parameters() if parameter.requires_grad]
        self.unused = False

    def backward(self, losses: list[torch.Tensor]) -> None:
        found = torch.autograd.grad(losses, self._parameters, allow_unused=True)
        self.unused |= any(one is None for one in found)


def _dice(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def judged(output: Any) -> torch.Tensor:
    """A loss of all that the model gives."""
    found = [one for one in tensors(output) if one.requires_grad]
    return sum((one.float().square().mean() for one in found), torch.zeros(()))


def gradients(loss: torch.Tensor, root: nn.Module) -> dict[str, torch.Tensor | None]:
    """Of each parameter; None for one that it does not reach."""
    named = {name: one for name, one in root.named_parameters() if one.requires_grad}
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True))


def close(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether both are the same but for rounding; None is zeros."""
    if one is None or other is None:
        given = one if other is None else other
        return given is None or not given.any()
    return one.shape == other.shape and bool((one - other).norm() <= _ROUNDING * other.norm() + 1e-12)


def all_close(found: Any, expected: Any) -> bool:
    """The same of all tensors in two structures."""
    ours, theirs = list(tensors(found)), list(tensors(expected))
    return len(ours) == len(theirs) and all(map(close, ours, theirs))


@contextmanager
def quiet(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Within the block nothing is dropped out, so that the same comes out each time."""
    training = [one for root in modules for one in root.modules() if one.training]
    try:
        for one in training:
            one.training = False
        yield
    finally:
        for one in training:
            one.training = True
