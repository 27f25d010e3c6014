"""Values that leave a module sideways: kept in an attribute, or caught by a hook, for whoever reads them later.

A stage does not run the modules of other stages, so nothing is left there by them. Before and after the call of a unit we
therefore look where tensors may have been put: attributes of the modules inside, what their hooks can reach (closures,
objects), and transformers' recorder of outputs. What is new there is a result of the call like any other: its stage sends
it, and stages that do not run the unit put what they have received in the same place.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..tree import tensors

# (what it hangs on, keys from there); the last key of a list counts from its end before the call.
Place = tuple[tuple[Any, ...], tuple[Any, ...]]
Holder = dict[Any, Any] | list[Any]

_OWN = frozenset(vars(nn.Module())) | {"_compiled_call_impl", "_is_hf_initialized"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_DEPTH = 3


class Sideways:
    """The places of one model."""

    def __init__(self, root: nn.Module) -> None:
        self._modules = dict(root.named_modules())

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
                holder = holder[key]
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
        self, anchor: tuple[Any, ...], keys: tuple[Any, ...], holder: Holder, found: dict[Any, Any], seen: set[int]
    ) -> None:
        if id(holder) in seen or len(keys) >= _DEPTH:
            return
        seen.add(id(holder))
        entries: Any = enumerate(holder)
        if isinstance(holder, dict):
            entries = holder.items()
        else:
            found[anchor, (*keys, "length")] = (holder, _Length(len(holder)))
        for key, value in list(entries):
            if not isinstance(key, (str, int)) or (anchor[0] == "attributes" and not keys and key in _OWN):
                continue
            if isinstance(value, (dict, list)):
                self._walk(anchor, (*keys, key), value, found, seen)
            elif not isinstance(value, nn.Module) and tensors(value):
                found[anchor, (*keys, key)] = (holder, value)

    def _anchors(self, unit: str) -> Iterator[tuple[tuple[Any, ...], Holder]]:
        for name, module in self._modules[unit].named_modules(prefix=unit):
            yield ("attributes", name), module.__dict__
            for kind in (*_HOOKS, "forward"):
                for number, hook in enumerate(_hooks(module, kind)):
                    for at, holder in enumerate(_reached(hook)):
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
        return _reached(_hooks(module, kind)[number])[at]


class _Length:
    def __init__(self, length: int) -> None:
        self.length = length


def _hooks(module: nn.Module, kind: str) -> list[Any]:
    if kind == "forward":
        return [vars(module)["forward"]] if "forward" in vars(module) else []
    return list(getattr(module, kind).values())


def _reached(function: Any) -> list[Holder]:
    """Dictionaries and lists that a function has at hand, in a fixed order."""
    if isinstance(function, functools.partial):
        given = [*function.args, *function.keywords.values()]
        return [*(one for value in given for one in _opened(value)), *_reached(function.func)]
    found = []
    native = getattr(function, "__func__", function)
    found += _opened(getattr(function, "__self__", None))
    if native is function and not hasattr(function, "__code__"):
        found += _opened(function)  # an object that can be called
    for cell in getattr(native, "__closure__", None) or ():
        try:
            found += _opened(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    for value in getattr(native, "__defaults__", None) or ():
        found += _opened(value)
    return found


def _opened(value: Any) -> list[Holder]:
    if isinstance(value, (dict, list)):
        return [value]
    if isinstance(value, (type, nn.Module)) or hasattr(value, "__code__") or type(value).__module__ in ("builtins", "torch"):
        return []
    attributes = getattr(value, "__dict__", None)
    return [attributes] if isinstance(attributes, dict) else []


def _collector() -> dict[str, Any] | None:
    """Where transformers collects hidden states, attentions and router logits now."""
    module = sys.modules.get("transformers.utils.output_capturing")
    active = getattr(module, "_active_collector", None)
    collected = active.get() if active is not None else None
    return collected if isinstance(collected, dict) else None
