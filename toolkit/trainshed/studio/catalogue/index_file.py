"""The catalogue's file: an SQLite database that is read and replaced as a whole, and checked before it is believed.

`$XDG_STATE_HOME/trainshed/catalog/runs.sqlite`, else below `~/.local/state`. A command works on a copy in memory; what
it has learned replaces the file at once. So a reader never sees half of it, a kill at any moment leaves the old one, and
two writers cannot damage it: the later one wins, and what it did not know is read from the folders again. The file's
checksum (CRC-32, with zeros in its own place) stands in the header's field for an application's number, bytes 68 to 71
(https://www.sqlite.org/fileformat.html, 1.3).
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing

from trainshed.base.errors import EXIT_UNAVAILABLE, TrainshedError
from trainshed.base.files import remove
from trainshed.runner.files.user_dirs import state_folder

from .tables import SCHEMA, VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from types import ModuleType

NAME = "runs.sqlite"
_HEADER, _FIELD = 100, slice(68, 72)
_STALE = 3600.0  # seconds after which what a killed writer left is removed


class NoSqliteError(TrainshedError):
    """This Python was built without SQLite."""

    exit_code = EXIT_UNAVAILABLE


class _OtherVersionError(Exception):
    """The file is sound, and not for this version."""


def place(environ: Mapping[str, str]) -> str:
    """Where the file is."""
    return f"{state_folder(environ)}/catalog/{NAME}"


def load(path: str, say: Callable[[str], None]) -> sqlite3.Connection:
    """The catalogue in memory; an empty one where there is no file, or none that can be believed.

    Args:
        say: told why a file that is there is not used.

    Raises:
        NoSqliteError: this Python has no SQLite.
    """
    sqlite3 = _sqlite()
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        if _copied(path, connection):
            return connection  # type: ignore[no-any-return]
    except _OtherVersionError:
        say(f"the catalogue {path} was written by another version: it is made again from the runs' folders")
    except OSError as error:
        say(f"the catalogue {path} cannot be read: {error.strerror}; all runs are read again")
    except (sqlite3.Error, ValueError) as error:
        say(f"the catalogue {path} is damaged ({error}): it is made again from the runs' folders")
    connection.close()
    return empty()


def empty() -> sqlite3.Connection:
    """A catalogue without runs, in memory. Raises NoSqliteError."""
    connection: sqlite3.Connection = _sqlite().connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA)
    return connection


def save(path: str, connection: sqlite3.Connection) -> str:
    """Replaces the file by what is in memory; returns why that was not possible, "" where it was."""
    sqlite3 = _sqlite()
    folder = os.path.dirname(path)
    aside = f"{folder}/.{NAME}.{os.getpid()}.tmp"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _remove_stale(folder)
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(aside, isolation_level=None)) as written:
            written.execute("PRAGMA journal_mode = OFF")  # nobody reads it before it is whole
            written.execute("PRAGMA synchronous = OFF")  # and what a lost write leaves has another checksum
            connection.backup(written)
        with open(aside, "r+b") as file:
            made = _checksum(file.read())
            file.seek(_FIELD.start)
            file.write(struct.pack(">I", made))
        os.replace(aside, path)
    except (OSError, sqlite3.Error) as error:
        remove(aside)
        return str(getattr(error, "strerror", None) or error)
    return ""


def _copied(path: str, connection: sqlite3.Connection) -> bool:
    """Copies the file to memory; False where there is none. Raises what `load` catches."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with open(fd, "rb") as file:
        data = file.read() or b""
        if len(data) < _HEADER or not data.startswith(b"SQLite format 3\0"):
            raise ValueError("it is not a database")
        if struct.unpack(">I", data[_FIELD])[0] != _checksum(data):
            raise ValueError("its checksum is wrong")
        source = _sqlite().connect(f"file:/proc/self/fd/{fd}?mode=ro&immutable=1", uri=True)  # the very file just checked
        with closing(source):
            source.backup(connection)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise _OtherVersionError
    return True


def _checksum(data: bytes) -> int:
    """CRC-32 of a database, with zeros where it is kept itself."""
    view = memoryview(data)
    return zlib.crc32(view[_FIELD.stop :], zlib.crc32(bytes(4), zlib.crc32(view[: _FIELD.start])))


def _remove_stale(folder: str) -> None:
    for name in os.listdir(folder):
        if name.startswith(f".{NAME}.") and name.endswith(".tmp"):
            try:
                if time.time() - os.stat(f"{folder}/{name}").st_mtime > _STALE:
                    remove(f"{folder}/{name}")
            except OSError:
                continue


def _sqlite() -> ModuleType:
    """The module. Raises NoSqliteError."""
    try:
        import sqlite3
    except ImportError as error:
        raise NoSqliteError(
            "this Python was built without sqlite3, which the catalogue needs",
            hint="use a Python that has it; `trainshed ps --all` lists the runs without",
        ) from error
    return sqlite3
