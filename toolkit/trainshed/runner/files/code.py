"""Copies the user's code into a host's tree, so that a run is of the code as it was when it started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainshed.base.errors import ProgramError

WARN_BYTES = 100 << 20
MOST_BYTES = 2 << 30
MOST_FILES = 100_000
_SKIPPED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache",
     ".ipynb_checkpoints", ".tox", ".DS_Store"}
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """What is to be copied: (absolute path, path below the code folder) of each file, and their bytes together."""

    folder: str
    files: tuple[tuple[str, str], ...] = ()
    size: int = 0
    notes: tuple[str, ...] = ()


def survey(folder: str, leave_out: Iterable[str] = ()) -> Source:
    """Looks through a code folder. Links are followed; version control, caches, virtual environments and earlier runs stay.

    Args:
        leave_out: absolute paths that are not code although they lie in the folder (data, results).

    Raises:
        ProgramError: it holds more than any code does, or cannot be read.
    """
    leave_out = {os.path.realpath(path) for path in leave_out if path}
    files: list[tuple[str, str]] = []
    notes: list[str] = []
    size = 0
    for path, name in _walk(folder, leave_out, notes):
        files.append((path, name))
        size += os.path.getsize(path)
        if size > MOST_BYTES or len(files) > MOST_FILES:
            raise ProgramError(
                f"{folder} contains more than {MOST_BYTES >> 30} GiB or {MOST_FILES:,} files: too much for code",
                hint="set source_dir to a folder that contains only code, and pass data as channels",
            )
    if size > WARN_BYTES:
        notes.append(f"{folder} is copied for each host: {size / 1e6:.0f} MB; give data as channels, they are not copied")
    return Source(folder, tuple(files), size, tuple(notes))


def copy(source: Source, target: str) -> None:
    """Makes `target` a copy of the source. Raises ProgramError where a file cannot be read or written."""
    os.makedirs(target, exist_ok=True)
    for path, name in source.files:
        destination = f"{target}/{name}"
        try:
            os.makedirs(os.path.dirname(destination), exist_ok=True)
            shutil.copy2(path, destination)
        except OSError as error:
            raise ProgramError(f"cannot copy the code: {error.filename or path}: {error.strerror}") from error


def _walk(folder: str, leave_out: set[str], notes: list[str]) -> Iterator[tuple[str, str]]:
    queue: list[tuple[str, str, tuple[str, ...]]] = [(folder, "", (os.path.realpath(folder),))]
    while queue:
        place, prefix, above = queue.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            raise ProgramError(f"{place} cannot be read: {error.strerror}", hint="its files are needed as code") from error
        for entry in entries:
            real = os.path.realpath(entry.path)
            if entry.name in _SKIPPED or real in leave_out or (not prefix and _is_earlier_runs(entry)):
                continue
            if entry.is_dir():
                if real not in above and not os.path.exists(f"{entry.path}/pyvenv.cfg"):
                    queue.append((entry.path, f"{prefix}{entry.name}/", (*above, real)))
            elif entry.is_file():
                yield entry.path, f"{prefix}{entry.name}"
            elif entry.is_symlink():
                notes.append(f"{entry.path} is left out: it links to {os.readlink(entry.path)}, which does not exist")


def _is_earlier_runs(entry: os.DirEntry[str]) -> bool:
    return entry.name == "runs" and entry.is_dir() and not os.path.exists(f"{entry.path}/__init__.py")
