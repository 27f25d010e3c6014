"""The cache that one user's processes share on a machine: a folder in the temporary one that nobody else can write to."""

from __future__ import annotations

import os


def own_folder(top: str) -> str:
    """The folder below `top`, made if it is not there; "" where there is none, or somebody else may have written to it."""
    folder = f"{top}/{name()}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        info = os.lstat(folder)
    except OSError:
        return ""
    ours = info.st_uid == os.getuid() and (info.st_mode & 0o777) == 0o700 and not os.path.islink(folder)
    return folder if ours and os.access(folder, os.W_OK) else ""


def name() -> str:
    """Its name."""
    return f"trainshed-data-{os.getuid()}"
