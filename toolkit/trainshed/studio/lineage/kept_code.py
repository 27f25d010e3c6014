"""The code of a run as it was when that started, put together again from what is kept of it.

Kept is the host's own copy, which the script could write to. Each file is taken from wherever it still has the hash that the
run noted: that copy, those of earlier attempts, the folder that the code came from.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from trainshed.base.errors import ProgramError, TrainshedError, one_line, some
from trainshed.machine.fingerprint import DIGITS, WHOLE, digest_of
from trainshed.machine.folders import FILE, FolderEntry
from trainshed.machine.hashing import hashed, hashes_of
from trainshed.runner.files.user_dirs import state_folder
from trainshed.runner.state.provenance import Provenance, code_files
from trainshed.runner.state.stored import Stored

MOST_NAMED = 3


def restore_code(run: Stored, known: Provenance, environ: Mapping[str, str]) -> str:
    """A folder with the very code of a run, kept among the user's state by its digest, so that runs share it.

    Raises:
        ProgramError: the run did not note its code, or files of it are nowhere as they were.
        TrainshedError: the folder cannot be written.
    """
    files = code_files(run)
    if not files:
        note = str(known.code.get("note") or "it was started by a version that did not")
        raise ProgramError(f"{run.name} has not noted its code: {note}", hint="trainshed clone prints its job file")
    digest = digest_of({name: (one["size"], one["sha256"][:DIGITS]) for name, one in files.items()}, WHOLE)
    target = f"{state_folder(environ)}/code/{digest.partition(':')[2]}"
    if os.path.isdir(target) and hashes_of(target).digest == digest:
        return target
    sources = {name: _source_of(run, known, name, one) for name, one in files.items()}
    if lost := sorted(name for name, source in sources.items() if not source):
        raise ProgramError(
            f"the code of {run.name} is not kept as it was: {one_line(some(lost, MOST_NAMED))} "
            f"{'has' if len(lost) == 1 else 'have'} been changed or removed since",
            hint="a script that writes to its own code does this; `trainshed lineage` names the git commit",
        )
    try:
        _fill(target, {name: source for name, source in sources.items() if source}, files)
    except OSError as error:
        raise TrainshedError(f"the code cannot be put together: {error.filename}: {error.strerror}") from error
    if hashes_of(target).digest != digest:
        raise ProgramError(f"the code of {run.name} changed while it was put together", hint="run the command again")
    return target


def _source_of(run: Stored, known: Provenance, name: str, one: dict[str, Any]) -> str:
    """Where a file still is as it was, "" for nowhere."""
    for folder in _folders(run, known):
        path = f"{folder}/{name}"
        try:
            there = hashed(FolderEntry(path, name, FILE))
        except OSError:
            continue
        if (there.size, there.sha256) == (one["size"], one["sha256"]):
            return path
    return ""


def _folders(run: Stored, known: Provenance) -> Iterator[str]:
    yield f"{run.folder}/algo-1/code"
    try:
        attempts = sorted(os.listdir(f"{run.folder}/attempts"))
    except OSError:
        attempts = []
    yield from (f"{run.folder}/attempts/{attempt}/algo-1/code" for attempt in attempts)
    if source := str(known.code.get("source") or ""):
        yield source


def _fill(target: str, sources: Mapping[str, str], files: Mapping[str, dict[str, Any]]) -> None:
    """Makes the folder, which appears as a whole. Raises OSError."""
    above = os.path.dirname(target)
    os.makedirs(above, exist_ok=True)
    aside = tempfile.mkdtemp(prefix=".code-", dir=above)
    try:
        for name, source in sources.items():
            path = os.path.normpath(f"{aside}/{name}")
            if not path.startswith(f"{aside}/"):  # whoever wrote code.json
                raise OSError(0, "leads out of the folder", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copyfile(source, path)
            os.chmod(path, 0o755 if files[name]["executable"] else 0o644)
        os.chmod(aside, 0o755)
        if os.path.isdir(target):  # damaged
            os.rename(target, f"{aside}.old")
            shutil.rmtree(f"{aside}.old", ignore_errors=True)
        os.rename(aside, target)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not os.path.isdir(target):  # another process has not just made it
            raise
