"""Channels that hosts cannot be shown as they lie: globs, shards, and what is on S3.

Each becomes a folder of the run: `staged/<channel>/all`, or one a host where the channel is sharded. In FastFile mode
that is a file system which reads from S3 (`mounts.py`), where there can be one; else what is on S3 is fetched.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic
from trainshed.contract.model_reference import SCHEME as MODEL
from trainshed.machine import cloning

from ..job.addresses import HUB
from ..job.channels import glob_root
from ..job.job import S3, ChannelSpec
from .augmented import lines_of
from .channel_files import files_of
from .mounts import Mounts, NotMounted
from .run import Run

Bring = Callable[[str], None]  # writes a file to a path
Member = TypeVar("Member")
ASIDE = ".parts"  # in a channel's folder while it is fetched
WHOLE = ".whole"  # in a channel's folder, beside those of the hosts: all is there


def stage(
    run: Run,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    *,
    status: Callable[[str], None] = lambda _: None,
    mounts: Mounts | None = None,
    blind: str = "",
) -> None:
    """Fills the folders of all staged channels that an earlier start has not filled.

    Args:
        status: told how far fetching is, again and again.
        mounts: gets the file systems of channels in FastFile mode. blind: why the hosts could not see any.

    Raises:
        TrainshedError: something cannot be fetched or written.
    """
    in_containers = run.hosts[0].base != run.hosts[0].folder
    for channel in run.job.channels:
        place = f"{run.folder}/staged/{channel.name}"
        if not channel.staged or os.path.exists(f"{place}/{WHOLE}"):
            continue
        if (mounts or blind) and channel.remote and channel.input_mode == "FastFile":
            try:
                _show(channel, environ, mounts, blind)
                continue
            except NotMounted as error:
                say(f"the channel {channel.name} is fetched first, not streamed: {error}")
        shutil.rmtree(place, ignore_errors=True)  # an earlier runner may have been killed while it was at this
        if channel.augmented:
            _stage_manifest(run, channel, environ, say)
        elif channel.remote:
            _fetch(run, channel, environ, say, status, shared=in_containers or os.geteuid() != 0)
        else:
            _fill(run, channel, _members(channel, say, in_containers))
        write_atomic(f"{place}/{WHOLE}", "")


def _show(channel: ChannelSpec, environ: Mapping[str, str], mounts: Mounts | None, blind: str) -> None:
    """Shows a channel as a file system. Raises NotMounted: it cannot be one. TrainshedError: there is nothing."""
    if blind or mounts is None:
        raise NotMounted(blind)
    if channel.path.startswith(("http://", "https://", HUB, MODEL)):
        raise NotMounted("rclone cannot list it")
    if channel.s3_type != "S3Prefix":
        raise NotMounted("a manifest's objects are of no one folder")
    if channel.distribution != "FullyReplicated":
        raise NotMounted("each host gets a part of it")
    if obstacle := mounts.obstacle():
        raise NotMounted(obstacle)
    if channel.path.startswith(S3):
        from .fetching.rclone import reach_s3
        from .fetching.s3 import Bucket

        bucket = Bucket(channel.path, environ)
        items = bucket.objects(channel.s3_type)
        mounts.show(channel, reach_s3(bucket, items), items, bucket.key.removeprefix(bucket.parent))
        return
    from .fetching.from_rclone import RcloneRemote
    from .fetching.sources import listed

    remote, items = listed(channel, environ)
    if not isinstance(remote, RcloneRemote):
        raise NotMounted("rclone cannot list it")
    mounts.show(channel, remote.reach(), items, remote.beginning)


def _fetch(
    run: Run,
    channel: ChannelSpec,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    status: Callable[[str], None],
    *,
    shared: bool,
) -> None:
    """Each host's folder gets its part of what is elsewhere."""
    from .fetching.download import TransferMethod, bring_all
    from .fetching.file_cache import find_cache
    from .fetching.sources import listed
    from .warm_pool import channels_of

    say(f"downloading {channel.path} for the channel {channel.name}")
    source, items = listed(channel, environ)
    wanted = [(item, _target(folder, item.name, channel)) for folder, item in _dealt(run, channel, items)]
    aside = f"{run.folder}/staged/{channel.name}/{ASIDE}"
    spare = channels_of(run.pool) if run.pool else None
    cache = find_cache(environ)
    way = TransferMethod(cache or spare, shared, aside, say, status, spare if cache is not None else None)
    with _Preparing(channel):
        bring_all(f"the channel {channel.name}", source, wanted, way)


def _fill(run: Run, channel: ChannelSpec, members: list[tuple[str, Bring]]) -> None:
    """Each host's folder gets its part of what is here."""
    for folder, (name, bring) in _dealt(run, channel, members):
        target = _target(folder, name, channel)
        with _Preparing(channel):
            bring(target)


def _dealt(run: Run, channel: ChannelSpec, members: list[Member]) -> Iterator[tuple[str, Member]]:
    """(folder, what belongs there): everything, or each folder's part. The folders are there."""
    folders = list(dict.fromkeys(run.staged(host, channel) for host in run.hosts_with(channel)))
    for number, folder in enumerate(folders):
        with _Preparing(channel):
            os.makedirs(folder, exist_ok=True)
        for member in members[number :: len(folders)]:
            yield folder, member


def _stage_manifest(run: Run, channel: ChannelSpec, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Each host gets the lines that it will be sent."""
    if channel.remote:
        from .fetching.s3 import Bucket

        say(f"downloading {channel.path} for the channel {channel.name}")
        text = Bucket(channel.path, environ).read()
    else:
        try:
            with open(channel.path, "rb") as file:
                text = file.read()
        except OSError as error:
            raise TrainshedError(f"the channel {channel.name}: {channel.path} cannot be read: {error.strerror}") from error
    lines = lines_of(text)
    if not lines:
        raise TrainshedError(f"the channel {channel.name}: the augmented manifest {channel.path} is empty")
    folders = list(dict.fromkeys(run.staged(host, channel) for host in run.hosts_with(channel)))
    for number, folder in enumerate(folders):
        mine = b"".join(line + b"\n" for line in lines[number :: len(folders)])

        def write(target: str, mine: bytes = mine) -> None:
            with open(target, "wb") as file:
                file.write(mine)

        target = _target(folder, "manifest", channel)
        with _Preparing(channel):
            write(target)


def _members(channel: ChannelSpec, say: Callable[[str], None], in_containers: bool) -> list[tuple[str, Bring]]:
    """(name below the channel's folder, how it gets there), sorted by name."""
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
        cloning.copy(path, target)


def _target(folder: str, name: str, channel: ChannelSpec) -> str:
    """Where a file goes; its folder is there. Raises TrainshedError: that is outside of the channel's."""
    target = os.path.normpath(f"{folder}/{name}")
    if not target.startswith(f"{folder}/") or "\0" in name:
        raise TrainshedError(f"the channel {channel.name} contains {name!r}, which points outside its folder: refused")
    with _Preparing(channel):
        os.makedirs(os.path.dirname(target), exist_ok=True)
    return target


class _Preparing:
    """Within the block, errors of files here are told of the channel."""

    def __init__(self, channel: ChannelSpec) -> None:
        self.channel = channel

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise TrainshedError(
                f"cannot prepare the channel {self.channel.name}: {error.filename}: {error.strerror}",
                hint="make room there; `trainshed cache prune` frees what is kept of earlier runs" if full else "",
            ) from error
