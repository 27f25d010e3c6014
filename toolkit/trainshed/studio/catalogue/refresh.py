"""Brings the catalogue up to date: which folders hold runs, and which of them have changed since they were last read.

A run that is over costs two calls of stat(2). Its files are replaced as a whole, which changes the folder's time; edits in
place change their own.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from trainshed.base.record import Record
from trainshed.runner.files.user_dirs import RUNS
from trainshed.runner.state import index

from . import tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

SETTLED = 5.0  # seconds: what was written so shortly before it was read is read again, since it may be written on
SAVED = 10.0  # seconds between two times that a long look is saved
SLOW = 1.0  # seconds after which a look says what it does
_DEPTH = 3  # folders below --runs in which runs are looked for
_MOST_FOLDERS = 100_000
_FILES = ("status.json", "labels.json")  # of a run that is over, what may still change
_ABSENT = "-"
_FRESH = "fresh:"  # before a signature: the run is read again


class Look(Record):
    """What a look has found.

    shown: numbers of the runs that were found; the catalogue may know others, of other folders.
    changed: how many rows are new, other, or gone, and worth saving.
    gone: names of runs whose folders are not where they were, and were not removed by `trainshed rm`.
    moved: (name, folder) of runs that were found elsewhere.
    """

    shown: list[int]
    changed: int
    gone: list[str]
    moved: list[tuple[str, str]]


def look(
    connection: sqlite3.Connection,
    environ: Mapping[str, str],
    below: Iterable[str],
    say: Callable[[str], None],
    save: Callable[[], object],
) -> Look:
    """Reads what has changed.

    Args:
        connection: the catalogue in memory.
        below: further folders in which runs are looked for.
        say: told how far it is, where it takes long.
        save: called now and then where it takes long, so that a kill does not lose what was read.
    """
    known = {
        folder: (run, signature, live)
        for run, folder, signature, live in connection.execute("SELECT run, folder, signature, live FROM runs")
    }
    noted, missing = _noted(connection, environ)
    kept, out, new = [], [], []
    seen: set[tuple[int, int]] = set()
    places: set[str | bytes] = set()
    for folder, status in itertools.chain(noted, _found(below, {folder for folder, _ in noted})):
        own = (status.st_dev, status.st_ino)
        if own in seen:  # a link to a run is not a second one
            continue
        seen.add(own)
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
    shown, worth_saving, ids = _read(connection, new, say, save)
    if out or gone:
        tables.forget_names(connection)
    connection.execute("COMMIT")
    moved = [(name, folder) for run_id, (name, folder) in ids.items() if run_id in missing]
    for run_id in missing & ids.keys():
        index.move(run_id, *ids[run_id], environ)
    lost = [str(name) for run_id, name in told if run_id in missing and run_id not in ids]
    return Look([*kept, *shown], worth_saving + len(gone), lost, moved)


def _read(
    connection: sqlite3.Connection,
    new: list[tuple[str, str, bool]],
    say: Callable[[str], None],
    save: Callable[[], object],
) -> tuple[list[int], int, dict[str, tuple[str, str]]]:
    """Reads runs into the tables: their numbers, how many are worth saving, and (name, folder) of each by its id."""
    if not new:
        return [], 0, {}
    from .indexed import row_of  # knows how runs are read, which takes longer to load than a look without news

    numbers = {(kind, name): number for number, kind, name in connection.execute("SELECT number, kind, name FROM names")}
    shown, worth_saving, ids = [], 0, {}
    began = told = saved = time.monotonic()
    for count, (folder, signature, is_first) in enumerate(new, 1):
        row = row_of(folder, signature)
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


def runs_below(top: str) -> Iterator[str]:
    """Folders of runs in a folder and below; links are not followed."""
    queue, looked = [(os.path.abspath(top), 0)], 0
    while queue and looked < _MOST_FOLDERS:
        folder, depth = queue.pop()
        looked += 1
        if os.path.isfile(f"{folder}/status.json") or os.path.isfile(f"{folder}/job.json"):
            yield folder
            continue
        if depth >= _DEPTH:
            continue
        try:
            with os.scandir(folder) as entries:
                queue += [(entry.path, depth + 1) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue


def _found(below: Iterable[str], known: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Folders in `./runs`, and those of runs in further folders; not those that are known already."""
    here = ""
    try:
        here = f"{os.getcwd()}/{RUNS}"
        with os.scandir(here) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        names = []
    for folder in itertools.chain((f"{here}/{name}" for name in names), *map(runs_below, below)):
        if folder in known:
            continue
        try:
            yield folder, os.stat(folder)
        except OSError:
            continue


def _noted(connection: sqlite3.Connection, environ: Mapping[str, str]) -> tuple[list[tuple[str, os.stat_result]], set[str]]:
    """Folders that the index names, and ids of runs that are not where it says.

    An entry's file is read where it is new, or its run is not where it was.
    """
    known = dict(connection.execute("SELECT id, folder FROM entries"))
    found: list[tuple[str, os.stat_result]] = []
    missing: set[str] = set()
    listed = index.listed(environ)
    for run_id in listed:
        try:
            folder = path_of(known[run_id])
            found.append((folder, os.stat(folder)))
            continue
        except (OSError, ValueError, KeyError):
            folder = index.folder_of(run_id, environ)
        try:
            found.append((folder, os.stat(folder)))
        except (OSError, ValueError):
            missing.add(run_id)
            continue
        connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (run_id, _key(folder)))
    for run_id in (known.keys() - {*listed}) | (missing & known.keys()):
        connection.execute("DELETE FROM entries WHERE id = ?", (run_id,))
    return found, missing


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
