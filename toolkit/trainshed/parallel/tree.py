"""Leaves of nested Python values, in one fixed order.

Tuples (also named ones), lists, sets, mappings (also transformers' ModelOutput and BatchEncoding) and dataclasses are
walked; anything else is a leaf. Kept apart from torch's pytree because that one treats an unregistered dataclass as a
leaf, and models return those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

_ATOMS = (torch.Tensor, torch.Size, str, bytes, int, float, bool, type(None), torch.dtype, torch.device)


def leaves(value: Any) -> list[Any]:
    """All leaves of `value`."""
    found: list[Any] = []
    _collect(value, found)
    return found


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in `value`."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _collect(value: Any, found: list[Any]) -> None:
    kind = type(value)
    if kind is torch.Tensor:
        found.append(value)
    elif kind is tuple or kind is list:
        for item in value:
            _collect(item, found)
    elif kind is dict:
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, _ATOMS):
        found.append(value)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, MutableMapping):
        for item in value.values():
            _collect(item, found)
    elif _is_data(value):
        for field in fields(value):
            _collect(getattr(value, field.name, None), found)
    else:
        found.append(value)


def _is_data(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, (type, torch.nn.Module))


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """A copy of `value`'s structure with `function` applied to each leaf, in the order of `leaves`."""
    kind = type(value)
    if kind is torch.Tensor:
        return function(value)
    if kind is tuple:
        return tuple([map_leaves(function, item) for item in value])
    if kind is dict:
        return {key: map_leaves(function, item) for key, item in value.items()}
    if isinstance(value, _ATOMS):
        return function(value)
    if isinstance(value, tuple):
        items = [map_leaves(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, (list, set, frozenset)):
        return type(value)([map_leaves(function, item) for item in value])
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)
        for key in list(value):
            changed[key] = map_leaves(function, value[key])
        return changed
    if _is_data(value):
        changed = copy.copy(value)
        for field in fields(value):
            if hasattr(value, field.name):
                object.__setattr__(changed, field.name, map_leaves(function, getattr(value, field.name)))
        return changed
    return function(value)


def fill(structure: Any, values: Iterator[Any]) -> Any:
    """`structure` with its leaves replaced by `values`, in order."""
    return map_leaves(lambda _leaf: next(values), structure)
