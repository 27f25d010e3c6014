"""The runs that the page shows, and what is new about them: the catalogue of `trainshed ls`, looked at again and again.

A run's files are read again only where they have changed, and only while somebody looks.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.plain_json import finite
from trainshed.metrics.reading import MetricsReader
from trainshed.runner.state.stored import Stored, load
from trainshed.studio.catalogue.language import ExpressionError, Name, read_names
from trainshed.studio.catalogue.listing import all_names, common_metrics, fitting, values_of
from trainshed.studio.catalogue.open_catalogue import Catalogue
from trainshed.studio.catalogue.refresh import path_of
from trainshed.studio.catalogue.tables import COLUMNS

PAUSE = 1.0  # seconds between two looks
MOST_COLUMNS = 30
LONGEST = 300  # characters of a cell
USUAL = ("state", "name", "tags", "started", "duration", "place")
_FACTS = (*COLUMNS, "tags")
_WORDS = ("name", "state", "phase", "tags", "image", "place", "note", "folder")  # what words are looked for in
_EXPRESSION = re.compile(r"[=<>~()]|\b(?:in|is|like)\b")  # what no mere words hold


class Entry:
    """One run. version: of the catalog when it last changed. facts: all of it but metrics and hyperparameters."""

    __slots__ = ("facts", "folder", "run", "version", "words")

    def __init__(self, run: int, folder: str, facts: tuple[Any, ...], version: int) -> None:
        self.run, self.folder, self.facts, self.version = run, folder, facts, version
        held = dict(zip(_FACTS, facts, strict=True))
        self.words = " ".join(_text(held[name]) for name in _WORDS if held[name]).lower()


class Catalog:
    """All runs of this user's index, of ./runs, and below further folders.

    Args:
        folders: these.
    """

    def __init__(self, environ: Mapping[str, str], folders: tuple[str, ...] = ()) -> None:
        self._catalogue = Catalogue(environ, folders, lambda _: None)
        self._readers: dict[str, MetricsReader] = {}  # of runs that go on
        self._entries: dict[str, Entry] = {}
        self._gone: dict[str, int] = {}  # key -> version at which it went
        self._keys: dict[str, str] = {}  # folder -> key: following all links takes longer than the rest of a look
        self._version = 1
        self._looked = 0.0
        self._lock = threading.Lock()

    def changes(self, since: int, wanted: str = "", had: str | None = None) -> dict[str, Any]:
        """Rows that are new or other than at a version, keys of runs that are gone, and the present version.

        Args:
            wanted: the columns, as `trainshed ls --columns` takes them; "" for the usual ones.
            had: the columns that the page has, None for these: where they are others, all rows come.

        Returns:
            columns: (name, kind) of each. rows: key, name, state and phase, and `values`, one a column. version, gone.
            had: to be sent next time. problem: why the usual columns come and not those wanted, "" where they do.
        """
        with self._lock:
            self._look()
            names, problem = self._names_of(wanted)
            spelled = ",".join(map(str, names))
            since = since if had in (None, spelled) else 0
            entries = {key: entry for key, entry in self._entries.items() if entry.version > since}
            kinds, rows = values_of(self._catalogue.connection, names, [entry.run for entry in entries.values()])
            return {
                "version": self._version,
                "columns": [[str(name), kind] for name, kind in zip(names, kinds, strict=True)],
                "rows": [_row(key, entry, row) for (key, entry), row in zip(entries.items(), rows, strict=True)],
                "gone": [key for key, version in self._gone.items() if version > since] if since else [],
                "had": spelled,
                "problem": problem,
            }

    def fitting(self, text: str) -> list[str]:
        """Keys of the runs that words, or an expression of `trainshed ls --where`, are true of. Raises ExpressionError."""
        with self._lock:
            self._look()
            if _EXPRESSION.search(text):
                runs = {*fitting(self._catalogue.connection, text, "filter")}
                return [key for key, entry in self._entries.items() if entry.run in runs]
            words = text.lower().split()
            return [key for key, entry in self._entries.items() if all(word in entry.words for word in words)]

    def names(self) -> dict[str, list[str]]:
        """What there may be columns of, by kind."""
        with self._lock:
            self._look()
            found = all_names(self._catalogue.connection)
        return {kind: [str(name) for name in names] for kind, names in found.items()}

    def find(self, key: str) -> Stored | None:
        """A run as its files are now; None for a key of none."""
        with self._lock:
            if key not in self._entries:
                self._look()
            entry = self._entries.get(key)
        return load(entry.folder) if entry else None

    def folders(self) -> dict[str, str]:
        """The folders of all runs by their keys."""
        with self._lock:
            self._look()
            return {key: entry.folder for key, entry in self._entries.items()}

    def look_again(self) -> None:
        """The next look is not put off."""
        self._looked = 0.0

    def _names_of(self, wanted: str) -> tuple[list[Name], str]:
        """The columns, and why they are not those wanted."""
        problem = ""
        try:
            names = [name for name, _ in read_names(wanted, "columns")][:MOST_COLUMNS] if wanted.strip() else []
            values_of(self._catalogue.connection, names, [])  # refused now where no run has them
        except ExpressionError as error:
            names, problem = [], said(error)
        metrics = [name.replace(prefix="metric") for name in common_metrics(self._catalogue.connection)]
        return names or [*map(Name, USUAL), *metrics], problem

    def _look(self) -> None:
        if self._looked and time.monotonic() - self._looked < PAUSE:
            return
        connection = self._catalogue.connection
        found = self._catalogue.look(self._readers)
        shown, read = {*found.shown}, {*found.read}
        known = {entry.run: key for key, entry in self._entries.items()}
        fresh = [run for run in shown if run in read or run not in known]
        folders = dict(connection.execute("SELECT run, folder FROM runs"))
        _, rows = values_of(connection, [*map(Name, _FACTS)], fresh)
        version = self._version + 1
        changed = [self._put(run, path_of(folders[run]), row, version) for run, row in zip(fresh, rows, strict=True)]
        gone = [key for key, entry in self._entries.items() if entry.run not in shown]
        for key in gone:
            del self._entries[key]
            self._gone[key] = version
        if gone or any(changed):
            self._version = version
        self._looked = time.monotonic()

    def _put(self, run: int, folder: str, facts: tuple[Any, ...], version: int) -> bool:
        """Notes a run that was read; whether it is another than before."""
        key = self._keys.get(folder)
        if key is None:
            key = self._keys[folder] = key_of(folder)
        entry = self._entries.get(key)
        changed = entry is None or entry.facts != facts
        self._entries[key] = Entry(run, folder, facts, version if entry is None or changed else entry.version)
        self._gone.pop(key, None)
        return changed


def key_of(folder: str) -> str:
    """What a run is called in addresses: nothing that a request holds is ever used as a path."""
    return hashlib.sha256(os.path.realpath(folder).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def said(error: ExpressionError) -> str:
    """What is wrong with an expression, and what to do, in one line."""
    return one_line(error.message + (f" ({error.hint})" if error.hint else ""))


def _row(key: str, entry: Entry, values: tuple[Any, ...]) -> dict[str, Any]:
    held = dict(zip(_FACTS, entry.facts, strict=True))
    return {
        "key": key,
        "name": _text(held["name"]),
        "state": held["state"],
        "phase": _text(held["phase"] or ""),
        "values": [_sendable(value) for value in values],
    }


def _sendable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text(name): _text(text) for name, text in value.items()}
    return _text(value) if isinstance(value, str) else finite(value)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" if text else name for name, text in value.items())
    return one_line(str(value))[:LONGEST]
