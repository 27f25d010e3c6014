"""Checks of what a script that has succeeded left in SM_MODEL_DIR, before the platform packs it.

Nobody tells `train` whether that worked, so what a packer may stumble over is said while somebody listens.
"""

from __future__ import annotations

import os

from trainshed.base.errors import some

LITTLE = 1 << 20  # bytes; a disk with less is full
_MOST_NAMED = 3


def remarks(folder: str) -> list[str]:
    """One line for each kind of thing that cannot be packed as it is; [] where all is well. Never raises."""
    if not os.path.isdir(folder):
        what = "is not a folder any more" if os.path.lexists(folder) else "is gone"
        return [f"{folder} {what}: the platform finds no model"]
    special: list[str] = []
    broken: list[str] = []
    closed: list[str] = []
    queue = [folder]
    while queue:
        place = queue.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
                    elif entry.is_symlink():
                        broken += [entry.path] if not os.path.exists(entry.path) else []
                    elif not entry.is_file(follow_symlinks=False):
                        special.append(entry.path)
                    elif not os.access(entry.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
                        closed.append(entry.path)
        except OSError:
            closed.append(place)
    found = (
        ("holds pipes, sockets or devices, on which packing may fail or hang", special),
        ("holds links that lead nowhere", broken),
        ("holds what cannot be read", closed),
    )
    lines = [f"{folder} {what}: {_named(folder, paths)}" for what, paths in found if paths]
    if _is_full(folder):
        lines.append(f"the disk of {folder} is full: check that the model is whole; packing it may need room there, too")
    return lines


def _named(folder: str, paths: list[str]) -> str:
    return some([os.path.relpath(path, folder) for path in sorted(paths)], _MOST_NAMED)


def _is_full(folder: str) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return status.f_blocks > 0 and status.f_bavail * status.f_frsize < LITTLE
