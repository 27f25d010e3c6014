"""Tunings and pipelines: those in the working directory and of the runs that are shown, as a table and as a page each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Generic, TypeVar

from trainshed.base.errors import TrainshedError
from trainshed.studio.batches.folder import FAILED, Folder

from .kind import End, Kind
from .known import Known
from .parts import Part, is_live, link, pill, table, view

F = TypeVar("F", bound=Folder)
Row = tuple[object, ...]
Page = tuple[object, str, Iterable[tuple[str, object]], Iterable[Part | None]]


class Batches(Kind, Generic[F]):
    """Batches of one kind. Each says what is its own.

    folder, ends: the class of its folders, and what stops one. name: in the address. head: of the columns between state and
    folder. starts: the command that starts one. stop: what the question of the Stop button says.
    """

    folder: type[F]
    ends: End
    name: str
    head: tuple[str, ...]
    starts: str
    stop: str

    def keys(self) -> list[str]:
        """Of all."""
        return [*batches(self.folder, self.known)]

    def listed(self) -> Part:
        """A row for each."""
        rows = [self._row(key, folder) for key, folder in batches(self.folder, self.known).items()]
        head = (self.name.removesuffix("s"), "state", *self.head, "folder")
        empty = f"no {self.name}: {self.starts} starts one"
        return view(self.name.capitalize(), [table("", head, rows, empty=empty)], live=is_live(rows))

    def one(self, key: str) -> Part | None:
        """One of them."""
        folder = self._find(key)
        if folder is None:
            return None
        title, state, facts, parts = self.shown(key, folder)
        live = state == "InProgress"
        facts = [*facts, ("folder", folder.path)]
        return view(title, parts, state=state, facts=facts, live=live, can={"stop": live}, stop=self.stop, up=self.name)

    def end(self, key: str) -> tuple[Folder, End] | None:
        """(folder, what stops it)."""
        folder = self._find(key)
        return None if folder is None else (folder, type(self).ends)

    def row(self, folder: F) -> tuple[object, str, Row]:
        """(name, state, columns of `head`). Raises TrainshedError."""
        raise NotImplementedError

    def shown(self, key: str, folder: F) -> Page:
        """(name, state, facts, parts) of its page. Raises TrainshedError."""
        raise NotImplementedError

    def _find(self, key: str) -> F | None:
        return batches(self.folder, self.known).get(key)

    def _row(self, key: str, folder: F) -> Row:
        try:
            name, state, columns = self.row(folder)
        except TrainshedError as error:
            blank = [""] * (len(self.head) - 1)
            return (folder.shown, pill(FAILED), error.message, *blank, folder.path)
        return (link(name, f"#/{self.name}/{key}"), pill(state), *columns, folder.path)


def batches(kind: type[F], known: Known) -> dict[str, F]:
    """The folders of all batches of a kind by their keys, what was begun last first."""
    above = {os.path.dirname(os.path.dirname(run)) for run in known.folders().values() if _is_in(run, kind.parts[-1])}
    tops = above | {*_here(kind.home)} if known.whole else above
    found = {
        known.key_of(top): kind(top) for top in tops if _is_one(kind, top) and (known.whole or _is_within(kind, top, known))
    }
    return dict(sorted(found.items(), key=lambda one: _begun(one[1]), reverse=True))


def _is_in(run: str, part: str) -> bool:
    return os.path.basename(os.path.dirname(run)) == part


def _is_one(kind: type[Folder], top: str) -> bool:
    return os.path.isfile(f"{top}/{kind.about_file}") and all(os.path.isdir(f"{top}/{part}") for part in kind.parts)


def _is_within(kind: type[Folder], top: str, known: Known) -> bool:
    """Whether all runs of a batch are among those that are shown."""
    return all(known.address(path) for path in _here(f"{top}/{kind.parts[-1]}") if os.path.isdir(path))


def _here(home: str) -> list[str]:
    try:
        with os.scandir(home) as entries:
            return [os.path.abspath(entry.path) for entry in entries]
    except OSError:
        return []


def _begun(folder: Folder) -> float:
    try:
        return os.stat(f"{folder.path}/{folder.about_file}").st_ctime
    except OSError:
        return 0.0
