"""The folder that checkpoints are written to: whether it takes any, what its disk has left, who else writes there."""

from __future__ import annotations

import errno
import os

from trainshed.base.files import flocks
from trainshed.base.units import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FULL = (errno.ENOSPC, errno.EDQUOT)


def probe_path(folder: str, name: str, token: str, rank: int) -> str:
    """The path at which a rank probes the folder: what a killed one leaves there is swept with that checkpoint."""
    return f"{folder}/.aside-{name}-{token}-{rank}"


def probe(folder: str, name: str, token: str, rank: int) -> None:
    """Does in small what every save does: makes a folder, writes a file, renames the folder, deletes it.

    Args:
        name: the checkpoint that is to be saved there, or anything where all of the folder is swept later.
        token: of this run, hexadecimal.

    Raises:
        OSError: it cannot be done. That the disk is full is no reason yet: old checkpoints are deleted before new ones.
    """
    os.makedirs(folder, exist_ok=True)
    first, second = (probe_path(folder, name, text, rank) for text in (token, f"{token}f"))
    try:
        os.mkdir(first)
        with open(f"{first}/file", "wb") as file:
            file.write(b"x")
        os.rename(first, second)
    except OSError as error:
        if error.errno not in FULL:
            raise
    finally:
        for place in (first, second):
            for act, path in ((os.unlink, f"{place}/file"), (os.rmdir, place)):
                try:
                    act(path)
                except OSError:
                    pass


def unwritable(folder: str, error: OSError) -> str:
    """Why a folder takes no checkpoints, and what to do."""
    if error.errno == errno.EROFS:
        remedy = "mount it writable"
    elif error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"make it writable for uid {os.getuid()}"
    else:
        remedy = "name another folder"
    return f"checkpoints cannot be written to {folder}: {error.strerror}; {remedy}, or save without a folder"


def shortage(folder: str, needed: int, spare: int, files: int = 4) -> str:
    """Why a save of `needed` bytes does not fit; "" if it does. Names what looks free and is not to be had.

    Args:
        spare: bytes that are to stay free beside it.
        files: how many files and folders it makes.

    Raises:
        OSError: the folder cannot be looked at.
    """
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if status.f_files and status.f_favail < files:
        return f"the disk of {folder} is full: it takes no more files (inodes), although {size(free)} are free"
    if free >= needed + spare:
        return ""
    reserved = (status.f_bfree - status.f_bavail) * status.f_frsize
    kept = f", besides {size(reserved)} that the file system keeps for root" if reserved > 0 else ""
    return (
        f"the disk of {folder} is full: {size(needed)} are needed, and {size(spare)} must stay free for the model, logs and "
        f"the report, but {size(free)} are free{kept}; keep fewer checkpoints (keep_last) or give the job a larger volume"
    )


def full(error: OSError, folder: str) -> str:
    """Which limit a write has met: the disk's bytes, its inodes, or a quota."""
    if error.errno == errno.EDQUOT:
        return f"the disk is full for uid {os.getuid()}: the quota is used up"
    try:
        status = os.statvfs(folder)
    except OSError:
        return "the disk is full"
    if status.f_files and not status.f_favail:
        return "the disk is full: it takes no more files (inodes)"
    return "the disk is full"


def claim(folder: str, say: Callable[[str], None]) -> FolderLock:
    """Claims a folder ("" for none) and says who else writes there; for the rank that leads on its storage."""
    made = FolderLock(folder)
    if made.other:
        say(
            f"WARNING: {made.other} writes checkpoints to {folder}, too: two jobs delete and resume each other's; "
            "give each job a folder of its own"
        )
    return made


class FolderLock:
    """A lock on the folder itself (none for ""), held until `release` or the process's end; it leaves no file.

    other: who has it, if it is not to be had: `process 123`, or `another container or machine`; "" where it is held, or
        where the file system has no such locks.
    """

    def __init__(self, folder: str) -> None:
        import fcntl

        self.other = ""
        self._fd = -1
        if not folder:
            return
        try:
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.other = _holder(os.fstat(self._fd))
            self.release()
        except OSError:
            self.release()

    def release(self) -> None:
        """Gives the folder free."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _holder(folder: os.stat_result) -> str:
    """Who has locked a folder; "" for this process, or one that has ended and left its lock to a child."""
    place = f"{os.major(folder.st_dev):02x}:{os.minor(folder.st_dev):02x}:{folder.st_ino}"
    for pid in [pid for pid, locked in flocks() if locked == place]:
        if pid == str(os.getpid()) or (pid not in ("0", "-1") and not os.path.exists(f"/proc/{pid}")):
            return ""
        if pid not in ("0", "-1"):
            return f"process {pid}"
    return "another container or machine"
