"""The losses that a step function gives to `model.backward` where no stages run it, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ground.tree import map_leaves
from ..tracing.subject import Backward
from .batch import Microbatch


class Losses:
    """Those of one microbatch."""

    def __init__(self) -> None:
        self._given: list[torch.Tensor] = []

    def backward(self, losses: list[torch.Tensor]) -> None:
        """`model.backward(...)` in the step function."""
        self._given.extend(losses)

    @property
    def any(self) -> bool:
        """Tells whether there are losses."""
        return bool(self._given)

    def total(self) -> torch.Tensor | None:
        """Their sum, for the backward after the step function; None if there are none. They are forgotten."""
        given, self._given = self._given, []
        return torch.stack([loss.float() for loss in given]).sum() if given else None


def called(
    function: Callable[..., Any], microbatch: Microbatch, losses: Losses, attach: Callable[[Backward | None], None]
) -> Any:
    """Returns what the step function returns for a microbatch, without gradients.

    Args:
        losses: takes its losses.
        attach: tells the model where its `backward` goes.
    """
    args, kwargs = microbatch
    attach(losses)
    try:
        result = function(*args, **kwargs)
    finally:
        attach(None)
    return map_leaves(_detached, result)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
