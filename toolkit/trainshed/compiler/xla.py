"""Optimizers on XLA: there is no fused implementation, and asking for one is an error deep inside torch.

Recent versions of transformers ask for it by default (`adamw_torch_fused`). The plain implementation computes the same.
"""

from __future__ import annotations

import functools
import inspect

from .voice import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_said: set[str] = set()


def install(module: ModuleType) -> None:
    """Hooks into an optimizer's module of `torch.optim`."""
    for name, value in list(vars(module).items()):
        own = isinstance(value, type) and value.__module__ == module.__name__
        if own and "fused" in inspect.signature(value.__init__).parameters:  # type: ignore[misc]
            value.__init__ = _plain(value.__init__, name)  # type: ignore[misc]


def _plain(init: Any, name: str) -> Any:
    @functools.wraps(init)
    def without_fused(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("fused"):
            kwargs["fused"] = None
            if name not in _said:
                _said.add(name)
                say(f"XLA has no fused {name}: the plain one takes its place, and computes the same")
        init(self, *args, **kwargs)

    return without_fused
