"""What a forward changes outside of the values that it returns: one that is run to verify leaves nothing of it behind.

Beside what `Surroundings` knows (buffers, random generators, numbers and texts in attributes): tensors and generators in
attributes, frozen parameters (a teacher that the forward moves), gradients, and what the step function has at hand without
being given it: numbers, lists and modules in its closure, its defaults and the globals that it names.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ...record.surroundings import Surroundings

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_OWN = frozenset(vars(nn.Module()))


class Traces:
    """A snapshot of a model and its step function; `restore` puts it back.

    Args:
        function: the step function.
    """

    def __init__(self, root: nn.Module, function: Callable[..., Any], device: torch.device) -> None:
        self._puts: list[Callable[[], object]] = []
        modules, self._cells = _at_hand(function)
        roots = [root, *(module for module in modules if not _contains(module, root))]
        self._surroundings = [Surroundings(one, device) for one in roots]
        for one in roots:
            for module in one.modules():
                self._keep_attributes(module)
            for parameter in one.parameters():
                if not parameter.requires_grad and _is_real(parameter):
                    self._puts.append(_putting(parameter, parameter.detach().clone()))

    def _keep_attributes(self, module: nn.Module) -> None:
        there = module.__dict__
        for name, value in list(there.items()):
            if name in _OWN:
                continue
            if isinstance(value, torch.Generator):
                self._puts.append(partial(value.set_state, value.get_state()))
            elif isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self._puts.append(partial(there.__setitem__, name, value))
                if _is_real(value) and not value.requires_grad:
                    self._puts.append(_putting(value, value.clone()))

    def restore(self) -> None:
        """As it was."""
        for one in self._surroundings:
            one.restore()
        for put in self._puts:
            put()
        for put in self._cells:
            put()


@contextmanager
def no_gradients(root: nn.Module) -> Iterator[None]:
    """Within the block parameters have no gradients of before, and no hooks that wait for gradients."""
    kept = []
    for parameter in root.parameters():
        hooks: Any = parameter._post_accumulate_grad_hooks  # type: ignore[attr-defined]
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


def _putting(tensor: torch.Tensor, before: torch.Tensor) -> Callable[[], None]:
    def put() -> None:
        with torch.no_grad():
            if tensor.shape == before.shape and not _same(tensor, before):
                tensor.detach().copy_(before)

    return put


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.detach(), other)


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

    native = inspect.unwrap(function)
    owner = getattr(native, "__self__", None)
    native = getattr(native, "__func__", native)
    if owner is not None and not isinstance(owner, (nn.Module, types.ModuleType)):
        _see_names(getattr(owner, "__dict__", {}), list(getattr(owner, "__dict__", {})), see, puts)
    elif owner is not None:
        see(owner)
    for cell in getattr(native, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        see(value)
        if isinstance(value, _PLAIN):
            puts.append(partial(setattr, cell, "cell_contents", value))
    for value in getattr(native, "__defaults__", None) or ():
        see(value)
    code = getattr(native, "__code__", None)
    if code is not None:
        _see_names(native.__globals__, [name for name in code.co_names if name in native.__globals__], see, puts)
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
