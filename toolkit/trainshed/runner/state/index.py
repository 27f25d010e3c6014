"""The index of this machine's runs: one small file a run in the user's state folder, read by commands in any folder.

`$XDG_STATE_HOME/trainshed/runs/<id>.json`, else below `~/.local/state`. Losing it loses nothing: runs below `./runs` are
found by looking there, and every command takes a run's folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from trainshed.base.files import remove, write_atomic

from ..files.run import Run

_ID = re.compile(r"[0-9a-f]{32}")
LARGEST = 64 << 10  # bytes of one entry


def folder(environ: Mapping[str, str]) -> str:
    """Where the entries are."""
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return f"{state}/trainshed/runs"


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
        try:
            with open(f"{place}/{name}") as file:
                path = json.loads(file.read(LARGEST))["folder"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if not isinstance(path, str) or not os.path.isabs(path):
            continue
        if os.path.isdir(path):
            found.append(path)
        else:
            remove(f"{place}/{name}")
    return found
