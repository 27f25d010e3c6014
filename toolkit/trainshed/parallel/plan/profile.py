"""Measures what each recorded event costs: seconds forward and backward, bytes kept for the backward.

Every unit, and every operation between units that takes time, is run by itself a few times on copies of its inputs: the
median forward, and the median backward to its inputs and parameters. On the meta device nothing can be timed; floating
point operations are counted there and turned into seconds with `SECONDS_PER_OPERATION`, which keeps the proportions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..frontend import rng
from ..frontend.record import Recorder
from ..frontend.trace import Event
from ..tree import leaves, map_leaves, tensors

SECONDS_PER_OPERATION = 1e-13
SECONDS_PER_BYTE = 1e-12
# Operations faster than this are not worth a measurement of their own; seconds.
_WORTH = 1e-4


class Profiler(Recorder):
    """A recorder that also measures."""

    repeats = 3

    def _run(self, event: Event, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.device.type == "meta":
            return _count(event, function, args, kwargs)
        alone = _can_run_alone(args, kwargs)
        copies = _copies(args, kwargs) if event.is_unit and alone else None
        started = self._now()
        result = function(*args, **kwargs)
        event.seconds_forward = self._now() - started
        differentiable = any(tensor.requires_grad for tensor in tensors(result))
        event.seconds_backward = 2 * event.seconds_forward if differentiable else 0.0
        changes = event.name.endswith("_") or event.name.startswith("__i") or event.name == "__setitem__"
        if alone and not event.is_unit and not changes and event.seconds_forward > _WORTH:
            copies = _copies(args, kwargs)
        if copies is not None:
            self._measure(event, function, *copies)
        return result

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _measure(self, event: Event, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        parameters: list[torch.Tensor] = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
        state = rng.get_state(self.device)
        forwards, backwards = [], []
        try:
            for attempt in range(self.repeats + 1):
                given, named = _copies(args, kwargs)
                sources = [tensor for tensor in [*tensors((given, named)), *parameters] if tensor.requires_grad]
                saved = _Saved(parameters)
                started = self._now()
                with torch.autograd.graph.saved_tensors_hooks(saved.keep, saved.give):
                    result = function(*_views(given), **_views(named))
                forward = self._now() - started
                outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
                started = self._now()
                if outputs and sources:
                    ones = [torch.ones_like(tensor) for tensor in outputs]
                    torch.autograd.grad(outputs, sources, ones, allow_unused=True)
                if attempt:  # the first run warms caches up
                    forwards.append(forward)
                    backwards.append(self._now() - started if outputs and sources else 0.0)
                event.saved_bytes = saved.bytes
        except RuntimeError:  # reentrant checkpoints and modules with state of their own cannot be run by themselves
            return
        finally:
            rng.set_state(state, self.device)
        event.seconds_forward, event.seconds_backward = median(forwards), median(backwards)


class _Saved:
    """Counts the memory that autograd keeps, each storage once, parameters not."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._seen = {parameter.untyped_storage()._cdata for parameter in parameters}
        self.bytes = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.bytes += storage.nbytes()
        return tensor

    def give(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def _can_run_alone(args: Any, kwargs: Any) -> bool:
    """Whether extra runs leave no trace: not so with an object that a module may change (a cache of keys)."""
    plain = (torch.Tensor, torch.nn.Module, str, int, float, bool, type(None), torch.dtype, torch.device, torch.Size, slice)
    return all(isinstance(leaf, plain) or callable(leaf) or leaf is Ellipsis for leaf in leaves((args, kwargs)))


def _copies(args: Any, kwargs: Any) -> tuple[Any, Any]:
    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    with torch.enable_grad():
        return map_leaves(copy, args), map_leaves(copy, kwargs)


def _views(value: Any) -> Any:
    """In-place operations are allowed on views of what is no leaf, as in the real forward."""

    def view(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not isinstance(leaf, torch.nn.Parameter):
            return leaf * 1
        return leaf

    return map_leaves(view, value)


def _count(event: Event, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    counter = FlopCounterMode(display=False)
    with counter:
        result = function(*args, **kwargs)
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors((args, kwargs, result)))
    event.seconds_forward = counter.get_total_flops() * SECONDS_PER_OPERATION + moved * SECONDS_PER_BYTE
    differentiable = any(tensor.requires_grad for tensor in tensors(result))
    event.seconds_backward = 2 * event.seconds_forward if differentiable else 0.0
    event.saved_bytes = moved if differentiable else 0
    return result
