"""What a rank does before its steps: for how long it looks for modules."""

from __future__ import annotations

import importlib.abc
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_APART = 1.0  # seconds between two modules, from which on something else was done


class Imports(importlib.abc.MetaPathFinder):
    """Finds nothing, and notes when Python looks for modules.

    Args:
        began: when the process began, seconds since 1970; all until now counts as importing.

    Attributes:
        seconds: how long it has imported.
    """

    def __init__(self, began: float, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._last = now()
        self.seconds = max(0.0, self._last - began)

    def find_spec(self, *_: object) -> None:
        """A module that is not loaded yet is wanted."""
        before, self._last = self._last, self._now()
        if 0 < self._last - before < _APART:
            self.seconds += self._last - before

    def watch(self) -> None:
        """From now on."""
        sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Not any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
