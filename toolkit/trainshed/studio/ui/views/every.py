"""All further pages, by the word in their addresses."""

from __future__ import annotations

from collections.abc import Mapping

from trainshed.studio.batches.folder import Folder

from .ancestors import Data, Lineage
from .kind import End, Kind
from .known import Known
from .parts import Part
from .pipelines import Pipelines
from .shelf import Models
from .stores import Stores
from .tunings import Tunings

KINDS: dict[str, type[Kind]] = {
    "tunings": Tunings, "pipelines": Pipelines, "models": Models, "lineage": Lineage, "data": Data, "storage": Stores,
}  # fmt: skip


class Views:
    """All of them over the same runs."""

    def __init__(self, known: Known, environ: Mapping[str, str]) -> None:
        self._kinds = {name: make(known, environ) for name, make in KINDS.items()}
        self._none = Kind(known, environ)

    def get(self, kind: str, key: str) -> Part | None:
        """A page: of one, or with "" as its key the list of all; None where there is none."""
        shown = self._of(kind)
        return shown.one(key) if key else shown.listed()

    def chart(self, kind: str, key: str) -> Part | None:
        """The curves of a page that has some."""
        return self._of(kind).chart(key)

    def end(self, kind: str, key: str) -> tuple[Folder, End] | None:
        """(folder, what stops it) of what can be stopped."""
        return self._of(kind).end(key)

    def addresses(self) -> list[tuple[str, str]]:
        """(kind, key) of every page that there is."""
        return [(kind, key) for kind, shown in self._kinds.items() for key in ("", *shown.keys())]

    def _of(self, kind: str) -> Kind:
        return self._kinds.get(kind, self._none)
