"""Side effects of a forward: one that is run to verify leaves nothing of it behind.

Beside what `Surroundings` knows (buffers, random generators, numbers and texts in attributes): tensors and generators in
attributes, frozen parameters (a teacher that the forward moves), gradients, hooks of modules (a model of transformers puts
some on its blocks when it is first asked for hidden states, and notes that it has), and what the step function has at hand
without being given it: numbers, lists and modules in its closure, its defaults and the globals that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ...ground.torch_private import ALL_HOOKS, accumulated_hooks
from ...tracing.captured_values import behind, closure_of, is_own
from ...tracing.contents import contents_of
from ...tracing.global_effects import Surroundings, empty_buffers
from ...tracing.held import held_tensors

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class Traces:
    """A snapshot of a model and its step function; `restore` puts it back.

    Args:
        function: the step function.
    """

    def __init__(self, root: nn.Module, function: Callable[..., Any], device: torch.device) -> None:
        self._puts: list[Callable[[], object]] = []
        self._frozen: list[tuple[torch.Tensor, torch.Tensor]] = []
        modules, self._cells = _at_hand(function)
        roots = [root, *(module for module in modules if not _contains(module, root))]
        self._surroundings = [Surroundings(one, device, function) for one in roots]
        for one in roots:
            self._puts += [contents.reset for contents in contents_of(one)]
            self._puts += [
                partial(value.set_state, value.get_state())
                for module in one.modules()
                for value in module.__dict__.values()
                if isinstance(value, torch.Generator)
            ]
            hooks = [module.__dict__[kind] for module in one.modules() for kind in ALL_HOOKS if kind in module.__dict__]
            self._puts += [_refilling(some, some.copy()) for some in hooks]
            self._puts += [partial(holder.__setitem__, name, None) for holder, name in empty_buffers(one)]
            self._puts += [_putting(value, value.clone()) for *_, value in held_tensors(one)]
            for parameter in one.parameters():
                if not parameter.requires_grad and _is_real(parameter):
                    self._frozen.append((parameter, parameter.detach().clone()))

    def restore(self) -> None:
        """As it was. Copies of frozen parameters that have not moved since go: what runs next will not move them either."""
        for one in self._surroundings:
            one.restore()
        for put in self._puts:
            put()
        self._frozen = [one for one in self._frozen if one[0].shape == one[1].shape and not torch.equal(*one)]
        with torch.no_grad():
            for parameter, before in self._frozen:
                parameter.copy_(before)
        for put in self._cells:
            put()


@contextmanager
def no_gradients(root: nn.Module) -> Iterator[None]:
    """Within the block parameters have no gradients of before, and no hooks that wait for gradients."""
    kept = []
    for parameter in root.parameters():
        hooks = accumulated_hooks(parameter)
        kept.append((parameter, parameter.grad, hooks, dict(hooks or {})))
        parameter.grad = None
        if hooks:
            hooks.clear()
    try:
        yield
    finally:
        for parameter, gradient, hooks, every in kept:
            parameter.grad = gradient
            if hooks is not None:
                hooks.update(every)


@contextmanager
def waiting_hooks(root: nn.Module) -> Iterator[Callable[[], None]]:
    """Within the block no hook is told that a gradient is there: it is a part of one, and another part may come.

    Yields:
        what calls the hooks, when gradients are those of the whole batch.
    """
    kept = [(parameter, hooks, dict(hooks)) for parameter in root.parameters() if (hooks := accumulated_hooks(parameter))]

    def call() -> None:
        for parameter, _, every in kept:
            for hook in every.values() if parameter.grad is not None else ():
                hook(parameter)

    for _, hooks, _ in kept:
        hooks.clear()
    try:
        yield call
    finally:
        for _, hooks, every in kept:
            hooks.update(every)


def _putting(tensor: torch.Tensor, before: torch.Tensor) -> Callable[[], None]:
    def put() -> None:
        with torch.no_grad():
            if tensor.shape == before.shape and not torch.equal(tensor.detach(), before):
                tensor.detach().copy_(before)

    return put


def _is_real(tensor: torch.Tensor) -> bool:
    """Whether it has memory of its own: no stand-in, no parameter of another rank."""
    return not tensor.is_meta and type(tensor) in (torch.Tensor, nn.Parameter)


def _contains(module: nn.Module, root: nn.Module) -> bool:
    return any(one is root for one in module.modules())


def _at_hand(function: Callable[..., Any]) -> tuple[list[nn.Module], list[Callable[[], object]]]:
    """Modules that a function knows without being given them, and what puts back the rest of what it knows."""
    modules: dict[int, nn.Module] = {}
    puts: list[Callable[[], object]] = []

    def see(value: Any) -> None:
        if isinstance(value, nn.Module):
            modules[id(value)] = value
        elif isinstance(value, torch.Generator):
            puts.append(partial(value.set_state, value.get_state()))
        elif type(value) in (list, dict, set) and _is_plain(value):
            puts.append(_refilling(value, value.copy()))

    functions, objects = behind(function)
    for owner in objects:
        see(owner)
        if is_own(owner):
            _see_names(owner.__dict__, list(owner.__dict__), see, puts)
    for native in functions:
        for _, cell, value in closure_of(native):
            see(value)
            if isinstance(value, _PLAIN):
                puts.append(partial(setattr, cell, "cell_contents", value))
        for value in native.__defaults__ or ():
            see(value)
        there = native.__globals__
        _see_names(there, [name for name in native.__code__.co_names if name in there], see, puts)
    return list(modules.values()), puts


def _see_names(
    there: dict[str, Any], names: list[str], see: Callable[[Any], None], puts: list[Callable[[], object]]
) -> None:
    for name in names:
        value = there[name]
        see(value)
        if isinstance(value, _PLAIN):
            puts.append(partial(there.__setitem__, name, value))


def _is_plain(container: Any) -> bool:
    return all(isinstance(one, _PLAIN) for one in (container.values() if isinstance(container, dict) else container))


def _refilling(container: Any, before: Any) -> Callable[[], None]:
    def put() -> None:
        if container != before:
            container.clear()
            container.extend(before) if isinstance(container, list) else container.update(before)

    return put
