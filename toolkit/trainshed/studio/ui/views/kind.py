"""What a kind of further page can do; each overrides what it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainshed.studio.batches.folder import Folder

from .known import Known
from .parts import Part

End = Callable[..., None]


class Kind:
    """Pages of one kind over the same runs. Methods may raise TrainshedError."""

    def __init__(self, known: Known, environ: Mapping[str, str]) -> None:
        self.known, self.environ = known, environ

    def keys(self) -> list[str]:
        """The keys of what has a page of its own."""
        return []

    def listed(self) -> Part | None:
        """The page of all; None where there is none."""
        return None

    def one(self, key: str) -> Part | None:
        """The page of one; None for a key of none."""
        return None

    def chart(self, key: str) -> Part | None:
        """Its curves: `title`, `axis`, the places `x`, and `lines` with a value at each place, by their names."""
        return None

    def end(self, key: str) -> tuple[Folder, End] | None:
        """(folder, what stops it) of what can be stopped."""
        return None
