"""Which tunings and pipelines there are: those in the working directory, and those of the runs that are shown."""

from __future__ import annotations

import os
from typing import TypeVar

from trainshed.studio.batches.folder import Folder

from .known import Known

Kind = TypeVar("Kind", bound=Folder)


def batches(kind: type[Kind], known: Known) -> dict[str, Kind]:
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
