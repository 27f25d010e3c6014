"""The index of this machine's runs: one small file a run in the user's state folder, read by commands in any folder.

`$XDG_STATE_HOME/trainshed/runs/<id>.json`, else below `~/.local/state`. Losing it loses nothing: runs below `./runs` are
found by looking there, and every command takes a run's folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from trainshed.base.files import read_bytes, remove, write_atomic

from ..files.user_dirs import state_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..files.run import Run

_ID = re.compile(r"[0-9a-f]{32}")
LARGEST = 64 << 10  # bytes of one entry


def folder(environ: Mapping[str, str]) -> str:
    """Where the entries are."""
    return f"{state_folder(environ)}/runs"


def note(run: Run, environ: Mapping[str, str]) -> None:
    """Notes a run; where that is not possible, it is found from its own folder only."""
    _write(run.id, run.name, run.folder, environ, new=True)


def forget(run_id: str, environ: Mapping[str, str]) -> None:
    """Forgets a run."""
    if _ID.fullmatch(run_id):
        remove(f"{folder(environ)}/{run_id}.json")


def knows(run_id: str, place: str, environ: Mapping[str, str]) -> bool:
    """Whether a runner of this user has noted that the run of this id is in this folder."""
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
    return _path_in(_entry(f"{folder(environ)}/{run_id}.json"), "folder")


def folders(environ: Mapping[str, str]) -> list[str]:
    """Folders of the runs noted, those that are gone left out (and forgotten)."""
    return list(places(environ))


def places(environ: Mapping[str, str]) -> dict[str, str]:
    """The same folders, each with the one from which its run was started first, "" where that is not known."""
    found = {}
    for run_id in listed(environ):
        entry = _entry(f"{folder(environ)}/{run_id}.json")
        path = _path_in(entry, "folder")
        if not path:
            continue
        if os.path.isdir(path):
            found[path] = _path_in(entry, "from")
        else:
            forget(run_id, environ)
    return found


def _entry(path: str) -> Any:
    """What an entry says; None if it is missing or damaged."""
    try:
        return json.loads((read_bytes(path, LARGEST) or b"").decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _path_in(entry: Any, field: str) -> str:
    """An absolute path that an entry names, "" if it does not."""
    found = entry.get(field) if isinstance(entry, dict) else None
    return found if isinstance(found, str) and os.path.isabs(found) and "\0" not in found else ""


def _write(run_id: str, name: str, place: str, environ: Mapping[str, str], *, new: bool = False) -> None:
    path = f"{folder(environ)}/{run_id}.json"
    try:
        started = _path_in(_entry(path), "from") or (os.getcwd() if new else "")  # who resumes it elsewhere does not move it
        entry = {"run": name, "folder": place, "from": started}
        write_atomic(path, json.dumps(entry) + "\n")
    except OSError:
        pass
