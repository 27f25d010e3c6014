"""Channels that hosts cannot be shown as they lie: globs, shards, and what must be fetched from S3 first.

Each becomes a folder of the run: `staged/<channel>/all`, or one a host where the channel is sharded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping

from trainshed.base.errors import TrainshedError

from ..job.channels import glob_root
from ..job.job import Channel
from .channel_files import files_of
from .run import Run

Bring = Callable[[str], None]  # writes a file to a path


def stage(run: Run, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Fills the folders of all staged channels.

    Raises:
        TrainshedError: something cannot be fetched or written.
    """
    in_containers = run.hosts[0].base != run.hosts[0].folder
    for channel in run.job.channels:
        if not channel.staged:
            continue
        members = _members(channel, environ, say, in_containers)
        folders = list(dict.fromkeys(run.staged(host, channel) for host in run.hosts))
        for number, folder in enumerate(folders):
            os.makedirs(folder, exist_ok=True)
            for name, bring in members[number :: len(folders)]:
                _write(folder, name, bring, channel)


def _members(
    channel: Channel, environ: Mapping[str, str], say: Callable[[str], None], in_containers: bool
) -> list[tuple[str, Bring]]:
    """(name below the channel's folder, how it gets there), sorted by name."""
    if channel.remote:
        from .s3 import Bucket

        say(f"downloading {channel.path} for the channel {channel.name}")
        bucket = Bucket(channel.path, environ)
        return [(name, bucket.fetching(key)) for name, key in bucket.objects(channel.s3_type)]
    bring = _place_file if in_containers else os.symlink
    if channel.files:
        root = glob_root(channel.path)
        pairs = [(os.path.relpath(path, root), path) for path in channel.files]
    else:
        pairs = files_of(channel, channel.path, say)
    return [(name, _bringing(bring, path)) for name, path in sorted(pairs)]


def _bringing(bring: Callable[[str, str], object], path: str) -> Bring:
    return lambda target: (bring(os.path.realpath(path), target), None)[1]


def _place_file(path: str, target: str) -> None:
    """A container cannot follow links out of what it is shown."""
    try:
        os.link(path, target)
    except OSError:  # another file system, or another's file
        shutil.copyfile(path, target)


def _write(folder: str, name: str, bring: Bring, channel: Channel) -> None:
    target = os.path.normpath(f"{folder}/{name}")
    if not target.startswith(f"{folder}/") or "\0" in name:
        raise TrainshedError(f"the channel {channel.name} contains {name!r}, which points outside its folder: refused")
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        bring(target)
    except OSError as error:
        raise TrainshedError(f"cannot prepare the channel {channel.name}: {target}: {error.strerror}") from error
