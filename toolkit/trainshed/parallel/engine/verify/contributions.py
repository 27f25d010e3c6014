"""Notes what the backward of each microbatch adds to the gradients of this rank's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from ...ground.shards import whole
from .tensor_digest import NOTHING, Sketch, sketch


class Contributions:
    """Sketches of what arrives at parameters, until it is closed.

    Args:
        parameters: by name.
        number: of the microbatch that is verified.

    microbatch: whose backward runs.
    of_one, of_all: what that microbatch has added, and what all have.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], number: int) -> None:
        self.microbatch = 0
        self.of_one: dict[str, Sketch] = {}
        self.of_all: dict[str, Sketch] = {}
        self._number = number
        self._kinds = {name: one.dtype for name, one in parameters.items()}
        self._hooks = [one.register_hook(partial(self._arrived, name)) for name, one in parameters.items()]

    def close(self) -> None:
        """Looks at nothing any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _arrived(self, name: str, gradient: torch.Tensor) -> None:
        found = sketch(whole(gradient)).rounded_as(self._kinds[name])
        self.of_all[name] = self.of_all.get(name, NOTHING).plus(found)
        if self.microbatch == self._number:
            self.of_one[name] = self.of_one.get(name, NOTHING).plus(found)
