"""Copies of files that share their bytes on disk where the file system can do that (btrfs, XFS, bcachefs, ZFS)."""

from __future__ import annotations

import errno
import os
import shutil

_FICLONE = 0x40049409  # _IOW(0x94, 9, int), <linux/fs.h>


def clone(source: str, target: str) -> bool:
    """Makes a new file that shares the bytes of another one until one of them is written to.

    Returns:
        Whether the file system can do that; where not, there is no new file.

    Raises:
        OSError: of the files themselves.
    """
    import fcntl

    with open(source, "rb") as old:
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.ioctl(new, _FICLONE, old.fileno())
            return True
        except OSError as error:
            os.unlink(target)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            return False
        finally:
            os.close(new)


def copy(source: str, target: str) -> None:
    """A copy in a new file, sharing bytes where that is possible. Raises OSError; then there is no new file."""
    if clone(source, target):
        return
    try:
        shutil.copyfile(source, target)
    except OSError:
        if os.path.exists(target):
            os.unlink(target)
        raise
