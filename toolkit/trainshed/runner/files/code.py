"""Copies the user's code into a host's tree, so that a run is of the code as it was when it started."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainshed.base.errors import ProgramError, some
from trainshed.base.units import size as shown_size
from trainshed.machine.folders import FILE, GONE, SPECIAL, walk

WARN_BYTES = 100 << 20
MOST_BYTES = 2 << 30
MOST_FILES = 100_000
SLOW_SECONDS = 5.0  # of looking through a folder, after which a line says so
BLOCK = 1 << 20  # bytes, read at once
NAMED = 3  # files or folders that a message names
_SKIPPED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache",
     ".ipynb_checkpoints", ".tox", ".DS_Store"}
)  # fmt: skip
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta/history")  # of Python: who has one of these is one
_RUN = ("job.json", "status.json")  # both are in the folder of every run
Say = Callable[[str], None]


@dataclass(frozen=True)
class CodeFiles:
    """The files to copy: (absolute path, path below the code folder) of each file, and their bytes together."""

    folder: str
    files: tuple[tuple[str, str], ...] = ()
    size: int = 0
    notes: tuple[str, ...] = ()


def survey(folder: str, leave_out: Iterable[str] = (), *, home: str = "", say: Say = lambda _: None) -> CodeFiles:
    """Looks through a code folder. Links are followed.

    Version control, caches, virtual environments and runs stay; of the home folder, all that is hidden (keys, caches).

    Args:
        leave_out: absolute paths that are not code although they lie in the folder (data, results).
        home: the user's home folder.
        say: told once when this takes long.

    Raises:
        ProgramError: it holds more than any code does, or cannot be read.
    """
    leave_out = {os.path.realpath(path) for path in leave_out if path}
    is_home = bool(home) and os.path.realpath(folder) == os.path.realpath(home)
    files: list[tuple[str, str]] = []
    notes: list[str] = []
    large: Counter[str] = Counter()
    size, slow_at = 0, time.monotonic() + SLOW_SECONDS

    def prune(entry: os.DirEntry[str], name: str) -> bool:
        top = name == entry.name
        if entry.name in _SKIPPED or (top and (_is_earlier_runs(entry) or (is_home and name.startswith(".")))):
            return True
        return os.path.realpath(entry.path) in leave_out or (_is_dir(entry) and _is_not_code(entry.path))

    for found in walk(folder, prune):
        if found.kind == FILE:
            files.append((found.path, found.name))
            size += found.size
            large[found.name.partition("/")[0]] += found.size
            if size > MOST_BYTES or len(files) > MOST_FILES:
                raise ProgramError(
                    f"{folder} contains more than {MOST_BYTES >> 30} GiB or {MOST_FILES:,} files, too much for code: "
                    f"{_largest(large)}",
                    hint="set source_dir to a folder that contains only code, and pass data as channels",
                )
        elif found.kind == SPECIAL:
            notes.append(f"{found.path} is left out: it is a pipe, a socket or a device")
        elif found.kind == GONE:
            if os.path.islink(found.path):
                notes.append(f"{found.path} is left out: it links to {os.readlink(found.path)}, which does not exist")
        else:
            raise ProgramError(f"{found.path} cannot be read: {found.reason}", hint="its files are needed as code")
        if slow_at and time.monotonic() > slow_at:
            slow_at = 0
            say(f"looking through {folder} for code: {len(files):,} files so far, {_largest(large)}")
    if is_home:
        notes.append(f"{folder} is your home folder: what is hidden in it (.cache, .ssh ...) is left out")
    if size > WARN_BYTES:
        notes.append(
            f"{folder} is copied for each host: {shown_size(size)}, {_largest(large)}; "
            "give data as channels, they are not copied"
        )
    return CodeFiles(folder, tuple(files), size, tuple(notes))


def copy(source: CodeFiles, target: str) -> tuple[str, ...]:
    """Makes `target` a copy of the source; names below the source of the files that were gone by then.

    Raises:
        ProgramError: a file cannot be read or written.
    """
    os.makedirs(target, exist_ok=True)
    gone = []
    for path, name in source.files:
        destination = f"{target}/{name}"
        try:
            os.makedirs(os.path.dirname(destination), exist_ok=True)
            if not _copy_file(path, destination):
                gone.append(name)
        except OSError as error:
            raise ProgramError(f"cannot copy the code: {error.filename or path}: {error.strerror}") from error
    return tuple(gone)


def vanished(folder: str, gone: Iterable[str]) -> str:
    """One line about the files that went away before they were copied."""
    return f"{some(list(dict.fromkeys(gone)), NAMED)} went away from {folder} while the code was copied"


def _copy_file(path: str, destination: str) -> bool:
    """Content, mode and times, of as many bytes as the file has now; False where there is no file any more."""
    try:
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe may have taken its place
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        if os.path.isfile(path):
            raise
        return False  # a socket, for example
    try:
        info = os.fstat(source)
        if not stat.S_ISREG(info.st_mode):
            return False
        written = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            left = info.st_size
            while left > 0 and (block := os.read(source, min(left, BLOCK))):
                left -= len(block)
                view = memoryview(block)
                while view:
                    view = view[os.write(written, view) :]
            os.fchmod(written, stat.S_IMODE(info.st_mode))
            os.utime(written, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(written)
    finally:
        os.close(source)
    return True


def _largest(sizes: Counter[str]) -> str:
    return "mostly " + ", ".join(f"{name} ({shown_size(size)})" for name, size in sizes.most_common(NAMED))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_not_code(folder: str) -> bool:
    """Whether a folder is an environment of Python or the folder of a run."""
    return any(os.path.exists(f"{folder}/{name}") for name in _ENVIRONMENTS) or all(
        os.path.exists(f"{folder}/{name}") for name in _RUN
    )


def _is_earlier_runs(entry: os.DirEntry[str]) -> bool:
    return entry.name == "runs" and _is_dir(entry) and not os.path.exists(f"{entry.path}/__init__.py")
