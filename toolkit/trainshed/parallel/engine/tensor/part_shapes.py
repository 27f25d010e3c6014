"""Foresees what functions give for whole tensors, without computing it, and whether parts are parts of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...ground.tree import leaves, map_leaves
from .op_call import OpStrategy

# Sizes and strides of a tensor; of all that a function gives.
Shape = tuple[tuple[int, ...], tuple[int, ...]]
Shapes = list[Shape]
# Units of rounding that a part may be off, of a whole tensor's largest value.
_ROUNDING = 64
# Calls whose shapes are kept.
_KEPT = 10_000


def are_the_same(found: Any, wholes: Any, cut: Callable[[torch.Tensor], torch.Tensor], *, values: bool = True) -> bool:
    """Returns whether all results are parts of the whole ones, but for rounding.

    Args:
        cut: gives this rank's part.
        values: whether values are compared, too; else shapes and types alone.
    """
    pairs = [(a, b) for a, b in zip(leaves(found), leaves(wholes), strict=True) if isinstance(a, torch.Tensor)]
    with torch.no_grad():
        return all(_is_close(a, cut(b), values=values) for a, b in pairs)


def _is_close(part: torch.Tensor, whole: torch.Tensor, *, values: bool) -> bool:
    if part.shape != whole.shape or part.dtype != whole.dtype:
        return False
    if not values:
        return True
    if not part.is_floating_point():
        return torch.equal(part, whole)
    rounding = _ROUNDING * torch.finfo(part.dtype).eps
    sizes = whole.abs()
    sizes = sizes[sizes < torch.finfo(part.dtype).max / 4]  # masks are as large as can be
    size = sizes.max() if sizes.numel() else 0
    return torch.allclose(part, whole, rtol=rounding, atol=float(rounding * size), equal_nan=True)


def shapes_of(way: OpStrategy, known: dict[Any, Shapes | None]) -> Shapes | None:
    """Sizes and strides of what a function gives for whole tensors; None if that cannot be told without values.

    Args:
        known: those that were asked for before.
    """
    try:
        key: Any = (way.func, _key(way.args), _key(way.kwargs))
        if key in known:
            return known[key]
    except TypeError:  # an argument that is not hashable
        key = None
    with torch.no_grad():
        try:
            results = way.func(*map_leaves(_on_meta, way.args), **map_leaves(_on_meta, way.kwargs))
            found = [(tuple(one.shape), one.stride()) for one in leaves(results) if isinstance(one, torch.Tensor)]
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            found = None
    if key is not None:
        if len(known) >= _KEPT:
            known.clear()
        known[key] = found
    return found


def _on_meta(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    kind = torch.float32 if leaf.is_floating_point() else leaf.dtype  # autocast would give them one type, but not here
    return torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=kind, device="meta")


def _key(value: Any) -> Any:
    """What a shape depends on, hashable."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.ndim
    if isinstance(value, (tuple, list)):
        return tuple(_key(one) for one in value)
    if isinstance(value, dict):
        return tuple((name, _key(one)) for name, one in value.items())
    if isinstance(value, slice):
        return "slice", value.start, value.stop, value.step
    if isinstance(value, float):
        return float
    return type(value), value
