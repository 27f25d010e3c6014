"""On XLA: optimizers without a fused implementation, and a report of what was compiled.

There is no fused implementation, and asking for one is an error deep inside torch.

Recent versions of transformers ask for it by default (`adamw_torch_fused`). The plain implementation computes the same.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys

from trainshed.contract.wire.compile_plan import plan_of

from .messages import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_said: set[str] = set()
_reporting: list[bool] = []


def install(module: ModuleType) -> None:
    """Hooks into an optimizer's module of `torch.optim`."""
    for name, value in list(vars(module).items()):
        own = isinstance(value, type) and value.__module__ == module.__name__
        if own and "fused" in inspect.signature(value.__init__).parameters:  # type: ignore[misc]
            value.__init__ = _plain(value.__init__, name)  # type: ignore[misc]
    if not _reporting:
        _reporting.append(True)
        atexit.register(_report)


def _report() -> None:
    """compiles: how many graphs XLA compiled, compile_seconds: how long that took; nothing where nothing ran on XLA."""
    plan = plan_of(os.environ)
    if plan is None or "torch_xla" not in sys.modules:
        return
    from torch_xla.debug import metrics

    from .counters import put

    data = metrics.metric_data("CompileTime")
    if data:  # how many, and their sum in nanoseconds
        put(plan, {"backend": "xla", "compiles": int(data[0]), "compile_seconds": {"xla": round(data[1] / 1e9, 3)}})


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
