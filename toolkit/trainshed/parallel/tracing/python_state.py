"""State that Python code of a forward may decide by besides tensors, as it is now.

Numbers, texts, switches and containers of them: among the step's arguments, in attributes of modules and of objects that
these hold (a configuration), and in variables that the step function and the forwards of modules read. What lies outside of
units is read by code that every stage runs, so that the way it goes can be found out (see `replay.route`). What lies inside
a unit is read by its own stage alone. There a number is mostly a factor, live in every forward; only whether it is zero
counts, as for a dropout.
"""

from __future__ import annotations

import enum
import functools
import types
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..ground.torch_private import CHILDREN, FORWARD_HOOKS, FORWARD_PRE_HOOKS
from ..ground.tree import leaves
from .captured_values import OF_EVERY_MODULE, behind, closure_of, is_own
from .naming import outside

Key = tuple[str, str]  # the module (or what else), and what of it
Values = dict[Key, Hashable]

_NUMBERS = (int, float, complex)
_PLAIN = (*_NUMBERS, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.Size)
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_NO_OBJECTS = (torch.Tensor, nn.Module, type, types.ModuleType, torch.Generator)
_DEEPEST = 3
_LONGEST = 256


@dataclass(frozen=True)
class Look:
    """The values at one time.

    outside: of code between units.
    inside: of units, and what a module is made of: its children, its hooks, whether it is in training.
    """

    outside: Values
    inside: Values


@dataclass(frozen=True)
class _Held:
    """A module as it was when it was first seen.

    keys: its attributes that are not those of every module.
    forward: its own, where that is read by all stages.
    """

    name: str
    own: dict[str, Any]
    size: int
    children: tuple[Any, ...]
    keys: tuple[str, ...]
    outside: bool
    forward: Any


class Switches:
    """The values that a model's forward may decide by.

    Args:
        function: the step function, as the user wrote it.
        units: names of the modules that are never split.
    """

    def __init__(self, root: nn.Module, function: Callable[..., Any], units: frozenset[str]) -> None:
        self._root, self._function, self.units = root, function, units
        self._held: list[_Held] = []
        self._made_of = 0

    def look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Look:
        """Returns what is there now; called before every step.

        Args:
            args, kwargs: of the step function, for one microbatch.
        """
        if not self._held or any(map(_is_other, self._held)):
            self._see()
        outside: Values = {}
        inside: Values = {("", "modules"): self._made_of, ("", "training"): tuple(o.own.get("training") for o in self._held)}
        seen = {id(self._root)}
        for one in self._held:
            own, found = one.own, outside if one.outside else inside
            for key in one.keys:
                if key in own:
                    _note(one.name, key, own[key], found, seen, whole=one.outside)
            if own.get(FORWARD_HOOKS) or own.get(FORWARD_PRE_HOOKS):
                hooks = (*_part(own, FORWARD_HOOKS), *_part(own, FORWARD_PRE_HOOKS))
                inside[one.name, "hooks"] = tuple(map(_maker, hooks))
            if one.forward is not None:
                _variables(one.forward, outside, seen)
        _variables(self._function, outside, seen)
        for number, leaf in enumerate(leaves((args, kwargs))):
            if isinstance(leaf, _NUMBERS) and not isinstance(leaf, bool):
                outside["", f"argument {number + 1}"] = leaf
        return Look(outside, inside)

    def _see(self) -> None:
        self._held = []
        of_every_stage = outside(self._root, self.units)
        for name, module in self._root.named_modules():
            own = module.__dict__
            children = _part(own, CHILDREN)
            keys = tuple(key for key in own if key not in OF_EVERY_MODULE)
            read = name in of_every_stage
            forward = type(module).forward if read else None
            self._held.append(_Held(name, own, len(own), children, keys, read, forward))
        self._made_of = hash(tuple((one.name, id(one.own)) for one in self._held))


@functools.lru_cache(maxsize=4096)
def _kind(of: type) -> str:
    """How a value of this type is read."""
    if issubclass(of, _NUMBERS) and of is not bool:
        return "number"
    if issubclass(of, _PLAIN):
        return "plain"
    if issubclass(of, _CONTAINERS):
        return "container"
    if issubclass(of, _NO_OBJECTS) or any("__call__" in vars(base) for base in of.__mro__):
        return ""
    return "object"


def _note(where: str, name: str, value: Any, found: Values, seen: set[int], *, whole: bool, deeper: bool = True) -> None:
    kind = _kind(type(value))  # type: ignore[arg-type]
    if kind == "plain":
        found[where, name] = value
    elif kind == "number":
        found[where, name] = value if whole else bool(value)
    elif kind == "container":
        found[where, name] = _frozen(value, 0) if whole else bool(value)
    elif kind == "object" and deeper and id(value) not in seen:
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            seen.add(id(value))
            for key, one in held.items():
                if isinstance(key, str):
                    _note(where, f"{name}.{key}", one, found, seen, whole=whole, deeper=False)


def _variables(function: Any, found: Values, seen: set[int]) -> None:
    """Values of the variables that a function reads, of its module and of the functions around it."""
    functions, objects = behind(function)
    for one in functions:
        if id(one.__code__) in seen:
            continue
        seen.add(id(one.__code__))
        code = one.__code__
        for name, _, value in closure_of(one):
            _note("", name, value, found, seen, whole=True)
        held = one.__globals__
        for name in code.co_names:
            if name in held:
                _note("", name, held[name], found, seen, whole=True)
        for bound in filter(is_own, objects):
            for name in code.co_names:
                if name in bound.__dict__:
                    _note("", f"{type(bound).__qualname__}.{name}", bound.__dict__[name], found, seen, whole=True)


def _frozen(value: Any, depth: int) -> Hashable:
    """A container's content; of a long one the length and the end. What is neither plain nor a container is left out."""
    if isinstance(value, _PLAIN):
        return value
    if not isinstance(value, _CONTAINERS) or depth == _DEEPEST:
        return None
    if isinstance(value, (set, frozenset)):
        return frozenset(one for one in value if isinstance(one, _PLAIN))
    entries = list(value.items()) if isinstance(value, dict) else list(value)
    return len(entries), tuple(_frozen(one, depth + 1) for one in entries[-_LONGEST:])


def _is_other(held: _Held) -> bool:
    """Whether a module has other attributes or children than when it was first seen."""
    own = held.own
    if len(own) != held.size:
        return True
    children = own.get(CHILDREN)
    return (tuple(children.values()) if children else ()) != held.children


def _part(own: dict[str, Any], name: str) -> tuple[Any, ...]:
    """Children or hooks of a module; compiled and scripted ones keep them elsewhere."""
    held = own.get(name)
    return tuple(held.values()) if held else ()


def _maker(hook: Any) -> Hashable:
    """Which code a hook runs: it may be put there anew for each step."""
    hook = getattr(hook, "__func__", hook)
    return id(getattr(hook, "__code__", type(hook)))


def changes(before: Look, after: Look) -> list[Key]:
    """Lists what is another value than it was, or is new, or gone."""
    found = []
    for was, now in ((before.outside, after.outside), (before.inside, after.inside)):
        found += [key for key in {**was, **now} if was.get(key, _MISSING) != now.get(key, _MISSING)]
    return found


def spoken(key: Key) -> str:
    """For people."""
    where, name = key
    return f"{where}.{name}" if where else name


_MISSING: Any = object()
