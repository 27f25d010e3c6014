"""Facts about operations of torch, by their schemas: what they write, whether they draw, the shapes that they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ground.schemas import schema_of
from ..ground.tree import tensors


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of each leaf of an operation's arguments; named tuples are leaves."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size) and not hasattr(value, "_fields"):
        return type(value)(mapped(function, one) for one in value)
    if isinstance(value, dict):
        return {key: mapped(function, one) for key, one in value.items()}
    return function(value)


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation changes in place."""
    found: list[torch.Tensor] = []
    for number, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors(args[number] if number < len(args) else kwargs.get(argument.name))
    return found


def draws(func: Any) -> bool:
    """Returns whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def results_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """The results on the meta device; None where they are no tensors, or their shapes depend on values."""
    if not schema_of(func).returns or any(str(one.type) != "Tensor" for one in schema_of(func).returns):
        return None
    device = {"device": torch.device("meta")} if any(one.name == "device" for one in schema_of(func).arguments) else {}
    if kwargs.get("pin_memory") or kwargs.get("layout") not in (None, torch.strided):
        return None
    try:
        result = func(*mapped(_on_meta, args), **{**mapped(_on_meta, kwargs), **device})
    except Exception:  # there is no such operation on the meta device: it is done with values
        return None
    return tensors(result)


def _on_meta(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")
