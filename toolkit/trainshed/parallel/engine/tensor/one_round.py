"""One step of ranks that run the same batches together: what is to run, and its losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...tree import with_cloned_tensors
from .turns import Turn


class Step:
    """scale: of the loss. average: whether it is divided by the number of microbatches as well. losses: by microbatch."""

    def __init__(self, function: Callable[..., Any], turns: list[Turn], scale: float, average: bool) -> None:
        self.function, self.turns, self.scale, self.average = function, turns, scale, average
        self.losses: list[torch.Tensor | None] = []

    @property
    def trains(self) -> bool:
        """Whether a loss was given to `model.backward`."""
        return any(one is not None for one in self.losses)

    def copied(self) -> Step:
        """The same with inputs that may be changed in place."""
        turns = [
            Turn([with_cloned_tensors(one) for one in turn.microbatches], turn.parts, turn.random, turn.rolled)
            for turn in self.turns
        ]
        return Step(self.function, turns, self.scale, self.average)


class Losses:
    """What the step function has given to `model.backward` in a microbatch."""

    def __init__(self) -> None:
        self._given: list[torch.Tensor] = []

    def backward(self, losses: list[torch.Tensor]) -> None:
        """`model.backward(...)` in the step function."""
        self._given.extend(losses)

    def run(self, scale: float) -> torch.Tensor | None:
        """The backward itself, after the step function; the loss, if there is one."""
        given, self._given = self._given, []
        if not given:
            return None
        total = torch.stack([loss.float() for loss in given]).sum()
        if total.requires_grad:
            (total * scale).backward()
        return total.detach()


def detached(leaf: Any) -> Any:
    """A tensor without its gradient; anything else as it is."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
