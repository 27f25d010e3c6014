"""The runs that further pages tell of: all of the catalogue, or those that were chosen for a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

KEPT = 0.5  # seconds for which the folders are not looked at again: a page asks for many


class Known:
    """Runs by their keys.

    Args:
        every: the folders of all runs by their keys, as they are now.
        key_of: the key of a folder.
        chosen: keys of the runs that may be told of; None for all.
    """

    def __init__(
        self, every: Callable[[], dict[str, str]], key_of: Callable[[str], str], chosen: Iterable[str] | None = None
    ) -> None:
        self._every, self.key_of = every, key_of
        self._chosen = None if chosen is None else frozenset(chosen)
        self._held: tuple[float, dict[str, str]] = (0.0, {})

    @property
    def whole(self) -> bool:
        """Whether these are all runs."""
        return self._chosen is None

    def folders(self) -> dict[str, str]:
        """The folder of each."""
        until, found = self._held
        if time.monotonic() > until:
            found = self._every()
            if self._chosen is not None:
                found = {key: path for key, path in found.items() if key in self._chosen}
            self._held = (time.monotonic() + KEPT, found)
        return found

    def address(self, folder: str) -> str:
        """The address of a run's page, "" where it is not among these."""
        key = self.key_of(folder)
        return f"#/run/{key}" if key in self.folders() else ""
