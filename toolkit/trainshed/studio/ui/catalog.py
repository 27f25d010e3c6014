"""The runs that the page shows, and what is new about them. Two thousand runs are looked at anew within milliseconds.

A run's files are read again only where they have changed, and only while somebody looks.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from trainshed.base.errors import one_line
from trainshed.runner.files.user_dirs import RUNS
from trainshed.runner.state import index
from trainshed.runner.state.stored import Stored, load

PAUSE = 1.0  # seconds between two looks
_DEPTH = 3  # folders below --runs in which runs are looked for
_MOST_FOLDERS = 20_000
Signature = tuple[tuple[int, int, int], ...]


class Entry:
    """One run. version: of the catalog when its row last changed."""

    __slots__ = ("row", "signature", "stored", "version")

    def __init__(self, stored: Stored, signature: Signature, row: dict[str, Any], version: int) -> None:
        self.stored, self.signature, self.row, self.version = stored, signature, row, version


class Catalog:
    """All runs of this user's index, of ./runs, and below further folders.

    Args:
        folders: these.
    """

    def __init__(self, environ: Mapping[str, str], folders: tuple[str, ...] = ()) -> None:
        self._environ = environ
        self._folders = folders
        self._entries: dict[str, Entry] = {}
        self._gone: dict[str, int] = {}  # key -> version at which it went
        self._keys: dict[str, str] = {}  # folder -> key: following all links takes longer than the rest of a look
        self._version = 1
        self._looked = 0.0
        self._indexed: tuple[int, list[str]] = (-1, [])
        self._lock = threading.Lock()

    def changes(self, since: int) -> dict[str, Any]:
        """Rows that are new or other than at a version, keys of runs that are gone, and the present version."""
        with self._lock:
            self._look()
            rows = [entry.row for entry in self._entries.values() if entry.version > since]
            gone = [key for key, version in self._gone.items() if version > since] if since else []
            return {"version": self._version, "rows": rows, "gone": gone}

    def find(self, key: str) -> Stored | None:
        """A run as its files are now; None for a key of none."""
        with self._lock:
            if key not in self._entries:
                self._look()
            entry = self._entries.get(key)
        return load(entry.stored.folder) if entry else None

    def look_again(self) -> None:
        """The next look is not put off."""
        self._looked = 0.0

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < PAUSE and self._looked:
            return
        seen: set[str] = set()
        version = self._version + 1
        for folder in self._found():
            key = self._keys.get(folder)
            if key is None:
                key = self._keys[folder] = key_of(folder)
            if key in seen:
                continue
            seen.add(key)
            signature = tuple(_signature(f"{folder}/{name}") for name in ("status.json", "job.json"))
            entry = self._entries.get(key)
            if entry is not None and entry.signature == signature and entry.stored.ended:
                continue
            if entry is None or entry.signature != signature:
                stored = load(folder)
                if not (stored.status or stored.about):
                    seen.discard(key)
                    continue
            else:
                stored = entry.stored
            row = row_of(key, stored)
            if entry is None or entry.row != row:
                self._entries[key] = Entry(stored, signature, row, version)
                self._version = version
                self._gone.pop(key, None)
            else:
                entry.signature, entry.stored = signature, stored
        for key in self._entries.keys() - seen:
            del self._entries[key]
            self._gone[key] = self._version = version
        self._looked = time.monotonic()

    def _found(self) -> list[str]:
        folders = [*self._index(), *_folders_in(RUNS)]
        for folder in self._folders:
            folders += _runs_below(folder)
        return folders

    def _index(self) -> list[str]:
        """The index's folders; read again only when an entry has come or gone."""
        try:
            changed = os.stat(index.folder(self._environ)).st_mtime_ns
        except OSError:
            return []
        if changed != self._indexed[0]:
            self._indexed = (changed, index.folders(self._environ))
        return self._indexed[1]


def key_of(folder: str) -> str:
    """What a run is called in addresses: nothing that a request holds is ever used as a path."""
    return hashlib.sha256(os.path.realpath(folder).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def row_of(key: str, run: Stored) -> dict[str, Any]:
    """What the table shows of a run."""
    from trainshed.studio.pages.timeline import instant, paused

    status = run.status
    state, more = standing(run)
    started = instant(status.get("CreationTime"))
    resources = status.get("ResourceConfig") or {}
    tags = run.ours.get("Tags")
    metrics = [
        [one_line(str(one.get("MetricName")))[:80], _finite(one.get("Value"))]
        for one in (status.get("FinalMetricDataList") or [])[:40]
    ]
    metrics.sort(key=lambda item: "loss" not in str(item[0]).lower())
    return {
        "key": key,
        "name": run.name,
        "state": state,
        "more": one_line(more)[:300],
        "started": started,
        "paused": paused(status),
        "seconds": status.get("TrainingTimeInSeconds"),
        "hosts": resources.get("InstanceCount") if isinstance(resources.get("InstanceCount"), int) else None,
        "image": one_line(str((status.get("AlgorithmSpecification") or {}).get("TrainingImage") or ""))[:200],
        "tags": {one_line(str(name))[:80]: one_line(str(text))[:200] for name, text in tags.items()}
        if isinstance(tags, dict)
        else {},
        "metrics": metrics[:3],
        "folder": one_line(run.folder),
    }


def standing(run: Stored) -> tuple[str, str]:
    """(state, what more there is to say), from the run's files and processes alone: no container engine is asked."""
    state, phase = run.said
    if run.copied:
        return state, f"a copy of {run.copied}"
    return run.standing() or ("Lost", f"its runner was killed while {phase}")


def _finite(value: object) -> float | str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if value - value == 0 else str(value)
    return str(value)[:20]


def _signature(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [os.path.abspath(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _runs_below(top: str) -> list[str]:
    """Folders of runs in a folder and below; links are not followed."""
    found, queue, looked = [], [(os.path.abspath(top), 0)], 0
    while queue and looked < _MOST_FOLDERS:
        folder, depth = queue.pop()
        looked += 1
        if os.path.isfile(f"{folder}/status.json") or os.path.isfile(f"{folder}/job.json"):
            found.append(folder)
            continue
        if depth >= _DEPTH:
            continue
        try:
            with os.scandir(folder) as entries:
                queue += [(entry.path, depth + 1) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
    return found
