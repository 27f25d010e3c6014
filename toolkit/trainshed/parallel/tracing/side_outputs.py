"""Values that leave a module sideways: kept somewhere, or caught by a hook, for whoever reads them later.

A stage does not run the modules of other stages, so nothing is left there by them. Before and after the call of a unit we
therefore look where tensors may have been put: attributes of the modules inside and around, what their forwards and hooks
have at hand (variables around them and of their module, objects), and transformers' recorder of outputs. What is new there
is a result of the call like any other: its stage sends it, and stages that do not run the unit put what they have received
in the same place.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import nn

from ..ground.torch_private import CHILDREN, FORWARD_HOOKS, FORWARD_PRE_HOOKS
from ..ground.tree import tensors
from .captured_values import ATOMS, OF_EVERY_MODULE, Variables, functions_of, is_own, of_a_library

# (what it hangs on, keys from there); the last key of a list counts from its end before the call.
Place = tuple[tuple[Any, ...], tuple[Any, ...]]
Holder = MutableMapping[Any, Any] | list[Any]

_HOOKS = (FORWARD_HOOKS, FORWARD_PRE_HOOKS)
_DEPTH = 5


class Sideways:
    """The places of one model."""

    def __init__(self, root: nn.Module) -> None:
        self._modules = dict(root.named_modules())
        self._functions: dict[tuple[int, type], tuple[Any, list[Any]]] = {}

    def look(self, unit: str) -> dict[Place, tuple[Holder, Any]]:
        """Every place with tensors, and every list, that a call of the unit may change: its holder, and what is there."""
        found: dict[Place, tuple[Holder, Any]] = {}
        for anchor, holder in self._anchors(unit):
            self._walk(anchor, (), holder, found, set())
        return found

    def news(
        self, before: dict[Place, tuple[Holder, Any]], after: dict[Place, tuple[Holder, Any]]
    ) -> Iterator[tuple[Place, Any]]:
        """Places with other tensors than before, and what is there."""
        for place, (holder, value) in after.items():
            old = before.get(place)
            if isinstance(value, _Length):
                continue
            if old is None or [id(one) for one in tensors(old[1])] != [id(one) for one in tensors(value)]:
                anchor, keys = place
                if isinstance(holder, list):
                    length = before.get((anchor, (*keys[:-1], "length")))
                    if length is None:
                        continue
                    yield (anchor, (*keys[:-1], keys[-1] - length[1].length)), value
                else:
                    yield place, value

    def holders(self, places: list[Place]) -> list[tuple[Any, Any]]:
        """Holder and key of each place, to be asked before the call.

        Raises:
            LookupError: the model has changed.
        """
        found = []
        for anchor, keys in places:
            holder: Any = self._anchor(anchor)
            for key in keys[:-1]:
                holder = _inside(holder[key])
            key = keys[-1]
            found.append((holder, len(holder) + key if isinstance(holder, list) else key))
        return found

    @staticmethod
    def put(holder: Any, key: Any, value: Any) -> None:
        """Puts a value in its place."""
        if isinstance(holder, list) and key >= len(holder):
            holder.append(value)
        else:
            holder[key] = value

    def _walk(
        self, anchor: tuple[Any, ...], keys: tuple[Any, ...], holder: Any, found: dict[Any, Any], seen: set[int]
    ) -> None:
        if id(holder) in seen or len(keys) >= _DEPTH:
            return
        seen.add(id(holder))
        entries: Any = enumerate(holder)
        of_a_module = False
        if isinstance(holder, MutableMapping):
            entries, of_a_module = holder.items(), CHILDREN in holder
        elif isinstance(holder, list):
            found[anchor, (*keys, "length")] = (holder, _Length(len(holder)))
        for key, value in list(entries):
            if type(value) in ATOMS or not isinstance(key, (str, int)) or (of_a_module and key in OF_EVERY_MODULE):
                continue
            inner = _inside(value)
            if inner is not None and not isinstance(value, tuple):
                self._walk(anchor, (*keys, key), inner, found, seen)
            elif tensors(value) and not isinstance(holder, tuple):
                found[anchor, (*keys, key)] = (holder, value)
            elif inner is not None:
                self._walk(anchor, (*keys, key), inner, found, seen)

    def _anchors(self, unit: str) -> Iterator[tuple[tuple[Any, ...], Holder]]:
        seen: set[int] = set()
        parts = unit.split(".")
        around = {".".join(parts[:length]) for length in range(len(parts))}
        for name in sorted(around & self._modules.keys()):
            yield ("attributes", name), self._modules[name].__dict__
        for name, module in self._modules[unit].named_modules(prefix=unit):
            yield ("attributes", name), module.__dict__
            for kind in (*_HOOKS, "forward"):
                for number, hook in enumerate(_hooks(module, kind)):
                    if kind == "forward" and (id(hook) in seen or of_a_library(hook)):
                        continue
                    seen.add(id(hook))
                    for at, holder in enumerate(self._reached(hook, type(module))):
                        yield ("hook", name, kind, number, at), holder
        collector = _collector()
        if collector is not None:
            yield ("collector",), collector

    def _anchor(self, anchor: tuple[Any, ...]) -> Holder:
        if anchor[0] == "collector":
            collector = _collector()
            if collector is None:
                raise LookupError("transformers records no outputs now")
            return collector
        module = self._modules[anchor[1]]
        if anchor[0] == "attributes":
            return module.__dict__
        _, _, kind, number, at = anchor
        return self._reached(_hooks(module, kind)[number], type(module))[at]

    def _reached(self, function: Any, owner: type) -> list[Holder]:
        """What a function has at hand and may put tensors into, in a fixed order."""
        key = id(function), owner
        if key not in self._functions:
            self._functions[key] = function, functions_of(function, owner)
        found: list[Holder] = []
        if isinstance(function, functools.partial):
            given = [*function.args, *function.keywords.values()]
            found += [inner for value in given if (inner := _inside(value)) is not None]
            function = function.func
        bound = getattr(function, "__self__", None)
        if bound is None and not hasattr(function, "__code__"):
            bound = function  # an object that can be called
        if (inner := _inside(bound)) is not None:
            found.append(inner)
        for one in self._functions[key][1]:
            found.append(Variables(one))
            found += [inner for value in one.__defaults__ or () if (inner := _inside(value)) is not None]
        return found


class _Length:
    def __init__(self, length: int) -> None:
        self.length = length


def _hooks(module: nn.Module, kind: str) -> list[Any]:
    if kind == "forward":
        return [vars(module).get("forward") or getattr(type(module), "forward", None)]
    return list(getattr(module, kind).values())


def _inside(value: Any) -> Any:
    """What holds the parts of a container or an object; None of anything else."""
    if isinstance(value, (dict, list, tuple)):
        return value
    return value.__dict__ if isinstance(value, nn.Module) or is_own(value) else None


def _collector() -> dict[str, Any] | None:
    """Where transformers collects hidden states, attentions and router logits now."""
    module = sys.modules.get("transformers.utils.output_capturing")
    active = getattr(module, "_active_collector", None)
    collected = active.get() if active is not None else None
    return collected if isinstance(collected, dict) else None
