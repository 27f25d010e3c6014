"""Brings the catalogue up to date: which folders hold runs, and which of them have changed since they were last read.

A run that is over costs two calls of stat(2). Its files are replaced as a whole, which changes the folder's time; edits in
place change their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

from trainshed.base.record import Record
from trainshed.runner.state import index

from . import tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    from trainshed.metrics.reading import MetricsReader

SETTLED = 5.0  # seconds: what was written so shortly before it was read is read again, since it may be written on
SAVED = 10.0  # seconds between two times that a long look is saved
SLOW = 1.0  # seconds after which a look says what it does
_FILES = ("status.json", "labels.json")  # of a run that is over, what may still change
_ABSENT = "-"
_FRESH = "fresh:"  # before a signature: the run is read again


class Look(Record):
    """What a look has found.

    shown: numbers of the runs that were found; the catalogue may know others, of other folders.
    read: those of them that were read just now.
    changed: how many rows are new, other, or gone, and worth saving.
    gone: names of runs whose folders are not where they were, and were not removed by `trainshed rm`.
    moved: (name, folder) of runs that were found elsewhere.
    """

    shown: list[int]
    read: list[int]
    changed: int
    gone: list[str]
    moved: list[tuple[str, str]]


def look(
    connection: sqlite3.Connection,
    environ: Mapping[str, str],
    below: Iterable[str],
    say: Callable[[str], None],
    save: Callable[[], object],
    readers: dict[str, MetricsReader] | None = None,
) -> Look:
    """Reads what has changed.

    Args:
        connection: the catalogue in memory.
        below: further folders in which runs are looked for.
        say: told how far it is, where it takes long.
        save: called now and then where it takes long, so that a kill does not lose what was read.
        readers: as of `indexed.row_of`.
    """
    known = {
        folder: (run, signature, live)
        for run, folder, signature, live in connection.execute("SELECT run, folder, signature, live FROM runs")
    }
    found, missing = _noted(connection, environ, below)
    kept, out, new = [], [], []
    places: set[str | bytes] = set()
    for folder, status in found:
        key = _key(folder)
        held = known.get(key)
        if held and not held[2] and _is_unchanged(folder, status, held[1]):
            places.add(key)
            kept.append(held[0])
            continue
        signature = _signature(folder, status)
        if not signature:
            continue
        places.add(key)
        if held:
            out.append(held[0])
        new.append((folder, signature, held is None))
    gone = [run for key, (run, *_) in known.items() if key not in places and not _is_run(path_of(key))]
    told = [connection.execute("SELECT id, name FROM runs WHERE run = ?", (run,)).fetchone() for run in gone]
    connection.execute("BEGIN")
    if out or gone:
        tables.take_out(connection, [*out, *gone])
    read, worth_saving, ids = _read(connection, new, say, save, readers)
    if out or gone:
        tables.forget_names(connection)
    connection.execute("COMMIT")
    moved = [(name, folder) for run_id, (name, folder) in ids.items() if run_id in missing]
    for run_id in missing & ids.keys():
        index.move(run_id, *ids[run_id], environ)
    lost = [str(name) for run_id, name in told if run_id in missing and run_id not in ids]
    return Look([*kept, *read], read, worth_saving + len(gone), lost, moved)


def _read(
    connection: sqlite3.Connection,
    new: list[tuple[str, str, bool]],
    say: Callable[[str], None],
    save: Callable[[], object],
    readers: dict[str, MetricsReader] | None,
) -> tuple[list[int], int, dict[str, tuple[str, str]]]:
    """Reads runs into the tables: their numbers, how many are worth saving, and (name, folder) of each by its id."""
    if not new:
        return [], 0, {}
    from .indexed import row_of  # knows how runs are read, which takes longer to load than a look without news

    numbers = {(kind, name): number for number, kind, name in connection.execute("SELECT number, kind, name FROM names")}
    shown, worth_saving, ids = [], 0, {}
    began = told = saved = time.monotonic()
    for count, (folder, signature, is_first) in enumerate(new, 1):
        row = row_of(folder, signature, readers)
        if row is not None:
            shown.append(tables.put(connection, row.replace(facts={**row.facts, "folder": _key(folder)}), numbers))
            worth_saving += is_first or not (row.live or signature.startswith(_FRESH))
            if row.facts["id"]:
                ids[str(row.facts["id"])] = (str(row.facts["name"]), folder)
        now = time.monotonic()
        if now - told >= SLOW or (count == len(new) and told > began):
            told = now
            say(f"reading runs that are new or have changed: {count:,} of {len(new):,}")
        if now - saved >= SAVED:
            connection.execute("COMMIT")
            save()
            connection.execute("BEGIN")
            saved = time.monotonic()
    return shown, worth_saving, ids


def _noted(
    connection: sqlite3.Connection, environ: Mapping[str, str], below: Iterable[str]
) -> tuple[list[tuple[str, os.stat_result]], set[str]]:
    """All folders that may hold runs, and ids of runs that are not where the index says.

    An entry's file is read where it is new, or its run is not where it was.
    """
    known = {run_id: path_of(key) for run_id, key in connection.execute("SELECT id, folder FROM entries")}
    folders = {run_id: known.get(run_id) or index.folder_of(run_id, environ) for run_id in index.listed(environ)}
    absent: set[str] = set()
    found = [*index.each_once(folders.values(), below, absent)]
    again = {run_id: index.folder_of(run_id, environ) for run_id, folder in folders.items() if folder in absent}
    if any(os.path.exists(folder) for folder in again.values()):  # another command knows where they are now
        folders |= again
        absent = set()
        found = [*index.each_once(folders.values(), below, absent)]
    there = {run_id: folder for run_id, folder in folders.items() if folder not in absent}
    for run_id in known.keys() - there.keys():
        connection.execute("DELETE FROM entries WHERE id = ?", (run_id,))
    new = [(run_id, _key(folder)) for run_id, folder in there.items() if known.get(run_id) != folder]
    connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", new)
    return found, folders.keys() - there.keys()


def _is_unchanged(folder: str, status: os.stat_result, signature: str) -> bool:
    """Whether a run's files are as they were when it had this signature, by as few calls as that takes.

    A file that was not there then is not looked for while the folder's own time is the same.
    """
    own, *files = signature.split(" ")
    if own != f"{status.st_ino}:{status.st_mtime_ns}":
        return False
    for name, known in zip(_FILES, files, strict=True):
        if known == _ABSENT:
            continue
        try:
            found = os.stat(f"{folder}/{name}")
        except OSError:
            return False
        if known != f"{found.st_ino}:{found.st_mtime_ns}:{found.st_size}":
            return False
    return True


def _signature(folder: str, status: os.stat_result) -> str:
    """Of a run's files, "" where the folder holds no run; status: of the folder."""
    newest = status.st_ctime
    parts = [f"{status.st_ino}:{status.st_mtime_ns}"]
    for name in _FILES:
        try:
            found = os.stat(f"{folder}/{name}")
        except OSError:
            parts.append(_ABSENT)
            continue
        parts.append(f"{found.st_ino}:{found.st_mtime_ns}:{found.st_size}")
        newest = max(newest, found.st_ctime)
    if parts[1] == _ABSENT and not os.path.exists(f"{folder}/job.json"):
        return ""
    return (_FRESH if abs(time.time() - newest) < SETTLED else "") + " ".join(parts)


def _is_run(folder: str) -> bool:
    return any(os.path.exists(f"{folder}/{name}") for name in ("status.json", "job.json"))


def _key(folder: str) -> str | bytes:
    """A path as SQLite takes it: as bytes where it is not UTF-8."""
    if folder.isascii():
        return folder
    raw = os.fsencode(folder)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def path_of(key: str | bytes) -> str:
    """The path that a row's `folder` stands for."""
    return os.fsdecode(key)
