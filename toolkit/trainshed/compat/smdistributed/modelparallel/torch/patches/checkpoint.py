"""Activation checkpoints inside a module, as Amazon's library names them."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils import checkpoint as native


def checkpoint(module: nn.Module, *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """`module(*args, **kwargs)`, run again in the backward instead of keeping what is inside it."""
    return native.checkpoint(module, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs)


def checkpoint_sequential(
    sequential: nn.Sequential, input: Any, strategy: str = "each", preserve_rng_state: bool = True, **_packing: Any
) -> Any:
    """A sequence of modules, each child or (strategy "contiguous") all at once; `group_N` is as "each"."""
    for part in [sequential] if strategy == "contiguous" else sequential:
        input = checkpoint(part, input, preserve_rng_state=preserve_rng_state)
    return input
