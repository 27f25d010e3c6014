"""What differs between the code of two runs, as it was kept in their folders: a unified diff."""

from __future__ import annotations

import difflib
import os
from hashlib import sha256
from typing import Any, BinaryIO

from trainshed.base.files import open_plain
from trainshed.base.record import Record
from trainshed.base.secrets import mask_text
from trainshed.base.units import size
from trainshed.runner.state.provenance import code_files, provenance_of
from trainshed.runner.state.stored import Stored

LARGEST = 512 << 10  # bytes of a file whose lines are compared
MOST_LINES = 2000  # of all differences together
MOST_FILES = 100_000
_COMPARED = 20_000  # lines of a file; beyond, comparing takes longer than anybody waits


class CodeChanges(Record):
    """How the code of a second run differs from that of a first.

    files: of each file that differs its SHA-256 in the first and in the second; None where it is not there.
    diff: the lines, in the form of diff -u; it says which files it leaves out, and why.
    unknown: why the code of one of them is not known, "" where it is.
    """

    files: dict[str, tuple[str | None, str | None]]
    diff: str
    unknown: str = ""


def changes_of(first: Stored, second: Stored) -> CodeChanges:
    """Compares the files that the two runs started with.

    By the hashes that were noted at the start; of a run without them, by the files that its folder has kept.
    """
    folders = [_folder(run) for run in (first, second)]
    sides: list[dict[str, str]] = []
    for run, folder in zip((first, second), folders, strict=True):
        noted = {name: str(one["sha256"]) for name, one in code_files(run).items()}
        if not (noted or folder):
            return CodeChanges({}, "", _why_not(run))
        sides.append(noted or _hashed(folder))
    names = sorted(sides[0].keys() | sides[1].keys())
    files = {name: (sides[0].get(name), sides[1].get(name)) for name in names if sides[0].get(name) != sides[1].get(name)}
    return CodeChanges(files, _diff(files, (folders[0], folders[1]), (first.name, second.name)))


def _diff(files: dict[str, tuple[str | None, str | None]], folders: tuple[str, str], names: tuple[str, str]) -> str:
    made: list[str] = []
    for name, sums in files.items():
        what = "added" if sums[0] is None else "removed" if sums[1] is None else "changed"
        before, after = (_text(folder, name, digest) for folder, digest in zip(folders, sums, strict=True))
        if isinstance(before, _NoText) or isinstance(after, _NoText):
            why = before.why if isinstance(before, _NoText) else after.why if isinstance(after, _NoText) else ""
            made.append(f"{what}: {name} ({why})")
            continue
        lines = before.splitlines(), after.splitlines()
        if max(map(len, lines)) > _COMPARED:
            made.append(f"{what}: {name} (more than {_COMPARED:,} lines)")
            continue
        marks = f"{names[0]}/{name}", f"{names[1]}/{name}"
        found = difflib.unified_diff(lines[0], lines[1], marks[0], marks[1], lineterm="")
        made += [mask_text(line) for line in found] or [f"{what}: {name} (in its line ends, or it is empty)"]
        if len(made) > MOST_LINES:
            left = len(made) - MOST_LINES
            return "\n".join([*made[:MOST_LINES], f"and {left:,} lines more, and what differs in later files"]) + "\n"
    return "\n".join(made) + "\n" if made else ""


class _NoText(Record):
    """A file whose lines cannot be shown. why: in words."""

    why: str


def _text(folder: str, name: str, digest: str | None) -> str | _NoText:
    """A file's text; "" where it is not there. digest: of the file that is meant, None for none."""
    if digest is None:
        return ""
    file = _opened(folder, name) if folder else None
    if file is None:
        return _NoText("it is not in the run's folder any more")
    with file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        return _NoText(f"larger than {size(LARGEST)}")
    if sha256(data).hexdigest() != digest:
        return _NoText("its copy in the run's folder was changed since the run started")
    if b"\0" in data:
        return _NoText("binary")
    return data.decode("utf-8", "backslashreplace")


def _opened(folder: str, name: str) -> BinaryIO | None:
    """A regular file, links not followed; None where it is none. A folder may have been sent by anybody."""
    try:
        if os.path.realpath(f"{folder}/{name}") != os.path.normpath(f"{os.path.realpath(folder)}/{name}"):
            return None
        if not os.path.realpath(f"{folder}/{name}").startswith(f"{os.path.realpath(folder)}/"):
            return None
        return open_plain(f"{folder}/{name}", links=False)
    except (OSError, ValueError):
        return None


def _hashed(folder: str) -> dict[str, str]:
    """SHA-256 of each file below a folder."""
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            file = _opened(folder, path := os.path.relpath(f"{place}/{name}", folder))
            if file is None:
                continue
            made = sha256()
            with file:
                while block := file.read(1 << 20):
                    made.update(block)
            found[path] = made.hexdigest()
            if len(found) >= MOST_FILES:
                return found
    return found


def _folder(run: Stored) -> str:
    """Where a run has kept its code, "" where it has not."""
    kept: Any = provenance_of(run).code.get("kept") or "algo-1/code"
    path = f"{run.folder}/{kept}"
    inside = os.path.realpath(path).startswith(os.path.realpath(run.folder) + "/")
    return path if inside and os.path.isdir(path) else ""


def _why_not(run: Stored) -> str:
    note = provenance_of(run).code.get("note")
    return f"{run.name} has not kept its code" + (f": {note}" if note else "")
