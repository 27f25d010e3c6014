"""Which files a channel of this machine has."""

from __future__ import annotations

import os
from collections.abc import Callable

from trainshed.base.errors import TrainshedError, some
from trainshed.machine.folders import FILE, UNREADABLE, walk

from ..job.job import ChannelSpec

NAMED = 3  # things that a message names


def files_of(channel: ChannelSpec, path: str, say: Callable[[str], None]) -> list[tuple[str, str]]:
    """(name below the channel's folder, path) of each file at `path`, sorted.

    Links are followed, circles are not. Pipes, sockets, devices and links to nothing are left out, which is said once.

    Raises:
        TrainshedError: a folder cannot be listed.
    """
    if os.path.isfile(path):
        return [(os.path.basename(path), path)]
    files: list[tuple[str, str]] = []
    other: list[str] = []
    for found in walk(path):
        if found.kind == FILE:
            files.append((found.name, found.path))
        elif found.kind == UNREADABLE:
            raise TrainshedError(f"the channel {channel.name}: {found.path} cannot be read: {found.reason}")
        else:
            other.append(found.name)
    if other:
        say(f"warning: the channel {channel.name}: {some(sorted(other), NAMED)}: left out, not files")
    return sorted(files)
