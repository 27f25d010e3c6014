"""Finds out whether a microbatch goes the way of a recorded forward, before any stage runs it.

Values that all stages have (a mask, the number of tokens) may decide what the forward does. Every rank can therefore follow
the forward without the modules, which give stand-ins here, and all of them come to the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ground.tree import leaves
from .call_routing import UnitGates
from .replay import Finished, StageForward
from .trace import Trace


class Scout(StageForward):
    """A stage that owns no module: it computes what is replicated, up to a decision that not all stages can make."""

    def __init__(self, trace: Trace, gates: UnitGates, device: torch.device) -> None:
        super().__init__(trace, gates, device, trace.positions, trace.positions + 1, {}, ())
        self.checked_to = trace.decided_from
        self.passing = True

    def _plain(self, name: str, is_unit: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Every event is looked at."""

    def _event(self, name: str, is_unit: bool, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._next >= self.trace.decided_from:
            if self.trace.decided_from < len(self.trace.events) or self.trace.reads:
                raise Finished
            if is_unit:
                raise self._differs(f"module {name!r}", "the end of the forward")
            return self._untracked(name, function, args, kwargs, None, (), leaves((args, kwargs), objects=True))
        return super()._event(name, is_unit, function, args, kwargs)

    def backward(self, losses: list[torch.Tensor]) -> None:
        """The forward is over."""
        raise Finished

    def follows(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether the step function does what is recorded for these inputs."""
        try:
            self.run(function, args, kwargs)
        except Exception:  # whatever it is: recording this microbatch will show it
            return False
        return True
