"""Leaves of nested Python values, in one fixed order.

Tuples (also named ones), lists, sets, mappings (also transformers' ModelOutput and BatchEncoding) and dataclasses are
walked; anything else is a leaf. Kept apart from torch's pytree because that one treats an unregistered dataclass as a
leaf, and models return those.

With `objects` also objects of the script's own classes are walked where they hold tensors, as what passes between modules.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Container, MutableMapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch

_ATOMS = (torch.Tensor, torch.Size, str, bytes, int, float, bool, type(None), torch.dtype, torch.device)
# Whose objects keep to themselves what is in them: a cache of transformers belongs to the layers of one stage.
_CLOSED = frozenset({*sys.stdlib_module_names, "numpy", "torch", "trainshed", "transformers"})
_OPEN = ("torch.distributions.",)
_PLAIN = (types.SimpleNamespace,)  # nothing but attributes, wherever it comes from


class Stand:
    """Base of what stands for a tensor in a structure."""

    __slots__ = ()


def leaves(value: Any, *, objects: bool = False, stops: Container[int] = ()) -> list[Any]:
    """All leaves of `value`.

    Args:
        stops: ids of lists, mappings and objects that count as leaves.
    """
    found: list[Any] = []
    _collect(value, found, [] if objects else None, stops)
    return found


def tensors(value: Any, *, objects: bool = False) -> list[torch.Tensor]:
    """All tensors in `value`."""
    return [leaf for leaf in leaves(value, objects=objects) if isinstance(leaf, torch.Tensor)]


def _collect(value: Any, found: list[Any], around: list[int] | None, stops: Container[int]) -> None:
    """Args:
    around: ids of the objects that are being walked; None where objects are leaves.
    """
    kind: Any = type(value)
    if kind is torch.Tensor:
        found.append(value)
    elif (kind is tuple or kind is list) and not stops:
        for item in value:
            _collect(item, found, around, stops)
    elif kind is dict and not stops:
        for item in value.values():
            _collect(item, found, around, stops)
    elif _is_leaf(kind) or (stops and id(value) in stops):
        found.append(value)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            _collect(item, found, around, stops)
    elif isinstance(value, MutableMapping):
        for item in value.values():
            _collect(item, found, around, stops)
    elif _is_data(value):
        for field in fields(value):
            _collect(getattr(value, field.name, None), found, around, stops)
    elif around is not None and _opens(value):
        if id(value) in around:
            return
        inner: list[Any] = []
        around.append(id(value))
        for item in attributes_of(value).values():
            _collect(item, inner, around, stops)
        around.pop()
        found += inner if any(isinstance(leaf, (torch.Tensor, Stand)) for leaf in inner) else [value]
    else:
        found.append(value)


@cache
def _is_leaf(kind: type) -> bool:
    """Whether values of a type are leaves whatever is in them: not so for a plain object, which counts by what it holds."""
    if issubclass(kind, _ATOMS):
        return True
    return issubclass(kind, torch.nn.Module) and not issubclass(kind, (tuple, list, set, frozenset, MutableMapping))


def _is_data(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, (type, torch.nn.Module))


def _opens(value: Any) -> bool:
    """Whether an object is nothing but its attributes, and for everyone to read."""
    kind: Any = type(value)
    return _has_attributes_alone(kind)


@cache
def _has_attributes_alone(kind: type) -> bool:
    home = f"{kind.__module__}."
    if kind in _PLAIN:
        return True
    if home.partition(".")[0] in _CLOSED and not home.startswith(_OPEN):
        return False
    if issubclass(kind, (type, torch.nn.Module, BaseException)):
        return False
    try:
        object.__new__(kind)
    except TypeError:  # made of something else than attributes
        return False
    return True


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, also those in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def map_leaves(function: Callable[[Any], Any], value: Any, *, objects: bool = False, stops: Container[int] = ()) -> Any:
    """A copy of `value`'s structure with `function` applied to each leaf, in the order of `leaves`."""
    return _map(function, value, {} if objects else None, stops)


def with_cloned_tensors(value: Any) -> Any:
    """A copy of `value` whose tensors may be changed in place."""
    return map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _map(function: Callable[[Any], Any], value: Any, made: dict[int, Any] | None, stops: Container[int]) -> Any:
    """Args:
    made: id of an object that is being walked -> its copy; None where objects are leaves.
    """
    kind: Any = type(value)
    if kind is torch.Tensor:
        return function(value)
    if _is_leaf(kind) or (stops and id(value) in stops):
        return function(value)
    if isinstance(value, (tuple, list, set, frozenset)):
        return _like(value, [_map(function, item, made, stops) for item in value])
    if isinstance(value, MutableMapping):
        if type(value) is dict:
            return {key: _map(function, item, made, stops) for key, item in value.items()}
        changed = copy.copy(value) if not isinstance(value, dict) else _copy_of_dict(value)
        for key in list(value):
            changed[key] = _map(function, value[key], made, stops)
        return changed
    if _is_data(value):
        changed = copy.copy(value)
        for field in fields(value):
            if hasattr(value, field.name):
                object.__setattr__(changed, field.name, _map(function, getattr(value, field.name), made, stops))
        return changed
    if made is None or not _opens(value):
        return function(value)
    if id(value) in made:
        return made[id(value)]
    if not any(isinstance(leaf, (torch.Tensor, Stand)) for leaf in leaves(value, objects=True)):
        return function(value)
    changed = made[id(value)] = kind() if kind in _PLAIN else object.__new__(kind)
    for name, item in attributes_of(value).items():
        object.__setattr__(changed, name, _map(function, item, made, stops))
    del made[id(value)]
    return changed


def _like(value: Any, items: list[Any]) -> Any:
    """A tuple, list or set of the type of `value`, past what that type does when it is made."""
    kind: Any = type(value)
    if kind in (tuple, list) or isinstance(value, (set, frozenset)):
        return kind(items)
    if isinstance(value, list):
        changed: Any = list.__new__(kind)
        list.extend(changed, items)
    else:
        try:
            changed = tuple.__new__(kind, items)
        except TypeError:  # a structure of torch's own, like what `torch.max` returns
            return kind(items)
    if hasattr(value, "__dict__"):
        vars(changed).update(vars(value))
    return changed


def _copy_of_dict(value: dict[Any, Any]) -> Any:
    """A copy past what its type does when it is made; `copy` would call that with what it does not expect."""
    try:
        return copy.copy(value)
    except TypeError:
        changed = type(value).__new__(type(value))
        if hasattr(value, "__dict__"):
            vars(changed).update(vars(value))
        for key, item in value.items():
            changed[key] = item
        return changed


def holders(value: Any) -> list[Any]:
    """Everything in `value` that a module may change in place: lists, mappings and objects, from the outside in."""
    found: list[Any] = []
    _find_holders(value, found, set())
    return found


def _find_holders(value: Any, found: list[Any], seen: set[int]) -> None:
    if isinstance(value, _ATOMS) or id(value) in seen:
        return
    if _has_contents(value):
        seen.add(id(value))
        if not isinstance(value, tuple):
            found.append(value)
        for item in list(contents(value).values()):
            _find_holders(item, found, seen)


def _has_contents(value: Any) -> bool:
    """Whether `contents` says all that is in it; a set's content has no keys."""
    return isinstance(value, (tuple, list, MutableMapping)) or _is_data(value) or _opens(value)


def contents(holder: Any) -> dict[Any, Any]:
    """Returns what a tuple, list, mapping or object holds, by index, key or attribute."""
    if isinstance(holder, (tuple, list)):
        return dict(enumerate(holder))
    return dict(holder) if isinstance(holder, MutableMapping) else attributes_of(holder)


def put_contents(holder: Any, found: dict[Any, Any]) -> None:
    """Gives a list, mapping or object other contents."""
    if isinstance(holder, list):
        holder[:] = found.values()
        return
    before = contents(holder)
    is_mapping = isinstance(holder, MutableMapping)
    for key in before.keys() - found.keys():
        if is_mapping:
            del holder[key]
        else:
            object.__delattr__(holder, key)
    for key, value in found.items():
        if key in before and before[key] is value:
            continue
        if is_mapping:
            holder[key] = value
        else:
            object.__setattr__(holder, key, value)


def exchange(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `function` applied to each leaf, objects included: lists, mappings and objects stay the ones that they
    are."""
    return _exchange(function, value, set())


def _exchange(function: Callable[[Any], Any], value: Any, seen: set[int]) -> Any:
    if isinstance(value, _ATOMS):
        return function(value)
    if id(value) in seen or not _has_contents(value):
        return value
    seen.add(id(value))
    before = contents(value)
    after = {key: _exchange(function, item, seen) for key, item in before.items()}
    if all(after[key] is before[key] for key in before):
        return value
    if isinstance(value, tuple):
        return _like(value, list(after.values()))
    put_contents(value, after)
    return value
