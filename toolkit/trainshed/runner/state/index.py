"""Which runs there are: the index of this machine's runs, `./runs`, and folders that are named besides.

The index is one small file a run in the user's state folder, read by commands in any folder.

`$XDG_STATE_HOME/trainshed/runs/<id>.json`, else below `~/.local/state`. Losing it loses nothing: runs below `./runs` are
found by looking there, and every command takes a run's folder.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from trainshed.base.files import read_object, remove, write_atomic
from trainshed.base.record import Record

from ..files.user_dirs import RUNS, state_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..files.run import Run

_ID = re.compile(r"[0-9a-f]{32}")
LARGEST = 64 << 10  # bytes of one entry
_DEPTH = 3  # folders below one that is named in which runs are looked for
_MOST_FOLDERS = 100_000


class Noted(Record):
    """One entry. name: of the run. started: the folder from which it was started first; "" for what is not known."""

    id: str
    name: str
    folder: str
    started: str


def folder(environ: Mapping[str, str]) -> str:
    """The folder of the entries."""
    return f"{state_folder(environ)}/runs"


def note(run: Run, environ: Mapping[str, str]) -> None:
    """Notes a run; where that is not possible, it is found from its own folder only."""
    _write(run.id, run.name, run.folder, environ, new=True)


def forget(run_id: str, environ: Mapping[str, str]) -> None:
    """Forgets a run."""
    if _ID.fullmatch(run_id):
        remove(f"{folder(environ)}/{run_id}.json")


def knows(run_id: str, place: str, environ: Mapping[str, str]) -> bool:
    """Returns whether a runner of this user has noted that the run of this id is in this folder."""
    return bool(_ID.fullmatch(run_id)) and os.path.realpath(folder_of(run_id, environ)) == os.path.realpath(place)


def move(run_id: str, name: str, folder: str, environ: Mapping[str, str]) -> None:
    """Notes that a run is in another folder now; where that is not possible, it is found from its own folder only."""
    if _ID.fullmatch(run_id):
        _write(run_id, name, folder, environ)


def listed(environ: Mapping[str, str]) -> list[str]:
    """Ids of the runs noted, whether or not they are where they were."""
    try:
        names = sorted(os.listdir(folder(environ)))
    except OSError:
        return []
    return [run_id for name in names if _ID.fullmatch(run_id := name.removesuffix(".json"))]


def folder_of(run_id: str, environ: Mapping[str, str]) -> str:
    """The folder that was noted for a run, "" if none was."""
    return _entry(run_id, environ).folder


def noted(environ: Mapping[str, str]) -> list[Noted]:
    """The runs noted, those that are gone left out (and forgotten)."""
    found = []
    for one in (_entry(run_id, environ) for run_id in listed(environ)):
        if os.path.isdir(one.folder):
            found.append(one)
        elif one.folder:
            forget(one.id, environ)
    return found


def each_once(
    folders: Iterable[str], below: Iterable[str] = (), absent: set[str] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Folders that may hold runs: these, those in `./runs`, and of runs in and below others. A link is not a second one.

    Args:
        absent: takes those that are not there.
    """
    return once(itertools.chain(folders, of_runs(), *map(runs_below, below)), set() if absent is None else absent)


def once(folders: Iterable[str], absent: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Those of the folders that are there, each once."""
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        try:
            status = os.stat(folder)
        except (OSError, ValueError):
            absent.add(folder)
            continue
        own = (status.st_dev, status.st_ino)
        if own not in seen:
            seen.add(own)
            yield folder, status


def of_runs() -> list[str]:
    """The folders in `./runs`."""
    try:
        here = f"{os.getcwd()}/{RUNS}"
        with os.scandir(here) as entries:
            return sorted(f"{here}/{entry.name}" for entry in entries if entry.is_dir())
    except OSError:
        return []


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


def _entry(run_id: str, environ: Mapping[str, str]) -> Noted:
    """What an entry says; "" for what is missing or damaged."""
    found = read_object(f"{folder(environ)}/{run_id}.json", LARGEST)
    name = found.get("run")
    return Noted(run_id, name if isinstance(name, str) else "", *(_path(found.get(key)) for key in ("folder", "from")))


def _path(value: object) -> str:
    return value if isinstance(value, str) and os.path.isabs(value) and "\0" not in value else ""


def _write(run_id: str, name: str, place: str, environ: Mapping[str, str], *, new: bool = False) -> None:
    path = f"{folder(environ)}/{run_id}.json"
    try:
        # Who resumes it elsewhere does not move it.
        started = _entry(run_id, environ).started or (os.getcwd() if new else "")
        entry = {"run": name, "folder": place, "from": started}
        write_atomic(path, json.dumps(entry) + "\n")
    except OSError:
        pass
