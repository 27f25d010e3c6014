"""Reads and writes small files; a reader never sees a partly written one."""

from __future__ import annotations

import errno
import os
import stat

from . import quick_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO


_PIECE = 1 << 18  # bytes, read at once


def write_atomic(path: str, data: str | bytes, *, mode: int = 0o644) -> None:
    """Writes `data` aside, fsyncs it and renames it to `path`; creates the folder. Raises OSError."""
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    aside = f"{folder}/.{os.path.basename(path)}.{os.getpid()}.tmp"
    try:
        fd = _made(aside, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if data:  # an empty file has no content to lose
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(aside, path)
    except BaseException:
        remove(aside)
        raise


def _made(path: str, mode: int) -> int:
    """A new file; what lies there is removed, and nothing is written through a link that somebody has put there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def open_unfollowed(path: str, flags: int, mode: int = 0o644) -> int:
    """Opens a file of a folder that a job can write to (`os.open`). Raises OSError, also where it is a link, and says so."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, which is not followed", path) from None
        raise


def sync_folder(folder: str) -> None:
    """Makes a rename in a folder last through a power failure; never raises: some file systems cannot."""
    try:
        fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Removes a file if it exists and can be removed; never raises."""
    try:
        os.unlink(path)
    except OSError:
        pass


def read_bytes(path: str, limit: int, *, cut: bool = False, links: bool = True) -> bytes | None:
    """Returns the file's bytes, None if it does not exist.

    Raises:
        OSError: it cannot be read, or is a link although there must be none (`links`).
        ValueError: it has more than `limit` bytes; with `cut` the rest is left out instead.
    """
    try:
        # Without `open`, whose objects cost more than all of this: some commands read thousands of files.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags) if links else open_unfollowed(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        data = _read(fd, limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit and not cut:
        raise ValueError(f"larger than {limit >> 20} MiB")
    return data[:limit]


def _read(fd: int, most: int) -> bytes:
    """Up to so many bytes of a file; what a FIFO without a writer has is nothing."""
    pieces: list[bytes] = []
    try:
        while most > 0 and (piece := os.read(fd, min(most, _PIECE))):
            pieces.append(piece)
            most -= len(piece)
    except BlockingIOError:
        pass
    return b"".join(pieces)


def open_plain(path: str, *, links: bool = True) -> BinaryIO:
    """Opens a regular file for reading.

    Args:
        links: whether it may be a link. What a job writes must not: it would show any file of whoever looks at the run.

    Raises:
        OSError: it cannot be opened, or is something else: a FIFO or a device may hold its reader up for ever.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.fdopen(fd, "rb")


def open_own(path: str) -> BinaryIO:
    """Opens a regular file that no other user has written or can write; as root, one that not everybody can write.

    Raises:
        OSError: it cannot be opened.
        PermissionError: somebody else could have written it.
    """
    file = open_plain(path)
    found = os.fstat(file.fileno())
    if found.st_mode & stat.S_IWOTH or (os.geteuid() not in (0, found.st_uid) and found.st_uid):
        file.close()
        raise PermissionError(errno.EACCES, "another user could have written it", path)
    return file


def leads_away(top: str, path: str) -> bool:
    """Returns whether anything on the way from a folder down to `path`, which is below it, is a link."""
    while len(path) > len(top):
        if os.path.islink(path):
            return True
        path = os.path.dirname(path)
    return False


def listed(folder: str) -> list[str]:
    """The names in a folder, sorted; none where it cannot be read, or is a link (`open_plain`)."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)


def read_object(path: str, limit: int, *, links: bool = True) -> dict[str, Any]:
    """The JSON object in a file; {} where it is missing, damaged, something else, or has more than `limit` bytes."""
    try:
        value = quick_json.loads(read_bytes(path, limit, links=links) or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def flocks() -> list[tuple[str, str]]:
    """(PID, `major:minor:inode`, the first two hexadecimal) of each flock(2) of this machine; [] where they are not shown.

    Source: proc_locks(5), lines like `1: FLOCK ADVISORY WRITE 4242 08:01:131073 0 EOF`.
    """
    try:
        with open("/proc/locks") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    return [(row[4], row[5]) for row in rows if len(row) > 5 and row[1] == "FLOCK"]
