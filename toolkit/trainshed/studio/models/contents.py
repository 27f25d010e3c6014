"""The files of a folder that become a version."""

from __future__ import annotations

import os

from trainshed.base.errors import TrainshedError
from trainshed.machine.folders import FILE, GONE, SPECIAL, walk

from .version import MOST_FILES, wrong_with_name


def files_in(folder: str) -> list[tuple[str, str]]:
    """(name below the folder, path) of every file in it. Links within the folder are followed.

    Raises:
        TrainshedError: there is nothing, or something that is not a file of this folder: a link that leads outside or
            nowhere, a pipe, what cannot be read.
    """
    top = os.path.realpath(folder)
    found = []
    for one in walk(top):
        if one.kind == FILE:
            real = os.path.realpath(one.path)
            if not real.startswith(f"{top.rstrip('/')}/"):
                raise TrainshedError(
                    f"{one.path} is a link that leads outside of {folder}: {real}",
                    hint="a version holds its own files: copy the folder with `cp -rL` and add the copy",
                )
            if why := wrong_with_name(one.name):
                raise TrainshedError(f"the file {one.name!r} {why}", hint="rename it, and add the folder again")
            found.append((one.name, one.path))
        elif one.kind == SPECIAL:
            raise TrainshedError(f"{one.path} is a pipe, a socket or a device, and not a file of a model")
        else:
            why = "is a link that leads nowhere" if one.kind == GONE else f"cannot be read: {one.reason}"
            raise TrainshedError(f"{one.path} {why}")
        if len(found) > MOST_FILES:
            raise TrainshedError(f"{folder} has more than {MOST_FILES:,} files", hint="pack them into an archive")
    if not found:
        raise TrainshedError(f"{folder} has no files")
    return sorted(found)
