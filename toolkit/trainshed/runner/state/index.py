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

from ..files.run import Run, state_folder

_ID = re.compile(r"[0-9a-f]{32}")
LARGEST = 64 << 10  # bytes of one entry


def folder(environ: Mapping[str, str]) -> str:
    """Where the entries are."""
    return f"{state_folder(environ)}/runs"


def note(run: Run, environ: Mapping[str, str]) -> None:
    """Notes a run; where that is not possible, it is found from its own folder only."""
    try:
        write_atomic(f"{folder(environ)}/{run.id}.json", json.dumps({"run": run.name, "folder": run.folder}) + "\n")
    except OSError:
        pass


def forget(run_id: str, environ: Mapping[str, str]) -> None:
    """Forgets a run."""
    if _ID.fullmatch(run_id):
        remove(f"{folder(environ)}/{run_id}.json")


def knows(run_id: str, place: str, environ: Mapping[str, str]) -> bool:
    """Whether a runner of this user has noted that the run of this id is in this folder."""
    return bool(_ID.fullmatch(run_id)) and os.path.realpath(_folder_of(f"{folder(environ)}/{run_id}.json")) == (
        os.path.realpath(place)
    )


def folders(environ: Mapping[str, str]) -> list[str]:
    """Folders of the runs noted, those that are gone left out (and forgotten)."""
    place = folder(environ)
    found = []
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return []
    for name in names:
        if not _ID.fullmatch(name.removesuffix(".json")):
            continue
        path = _folder_of(f"{place}/{name}")
        if not path:
            continue
        if os.path.isdir(path):
            found.append(path)
        else:
            remove(f"{place}/{name}")
    return found


def _folder_of(path: str) -> str:
    """The absolute path that an entry names, "" if it is missing or damaged."""
    try:
        found = json.loads((read_bytes(path, LARGEST) or b"").decode("utf-8"))["folder"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) and os.path.isabs(found) and "\0" not in found else ""
