"""The function that is called in the place of a module's forward, for a while."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from ..tracing.call_routing import compiled_call

Run = Callable[..., Any]


class StandIn:
    """Stands for the forward of a module; who inherits says what a call does.

    native: the module's own forward.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.native: Run = module.forward
        self._before: Run | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def install(self) -> None:
        """Calls of the module come here."""
        self.native, self._before = self.module.forward, self.module.__dict__.get("forward")
        self.module.__dict__["forward"] = self

    def remove(self) -> None:
        """Has the module called as it was."""
        del self.module.__dict__["forward"]
        if self._before is not None:
            self.module.__dict__["forward"] = self._before

    def __deepcopy__(self, memo: dict[int, Any]) -> Run:
        """A copy of the module, made within a step, runs its own forward."""
        copied: Run = copy.deepcopy(self.native, memo)
        return copied


def is_compiled(module: nn.Module) -> bool:
    """Returns whether torch.compile was given the module."""
    return compiled_call(module) is not None or type(module).__name__ == "OptimizedModule"
