"""Which operations let a tensor's values decide what Python does next, or what shapes come out."""

from __future__ import annotations

from typing import Any

import torch

# Python reads the values.
_READS = frozenset(
    {
        *("item", "__bool__", "__int__", "__float__", "__index__", "__complex__", "tolist", "numpy", "__array__"),
        *("is_nonzero", "equal", "allclose", "__contains__"),
    }
)
# The shape of the result depends on the values.
_SHAPES = frozenset(["nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount", "flatnonzero"])


def reads_values(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether control flow or shapes after this operation depend on the values of its arguments."""
    if name in _READS or name in _SHAPES:
        return True
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "repeat_interleave":
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
        return isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) for item in index)
    return False
