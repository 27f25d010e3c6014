"""Fingerprints of the channels that `train` cannot look at itself: pipes, and FastFile, which it does not read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainshed.base.files import write_atomic
from trainshed.contract.wire.fingerprints import FILE
from trainshed.machine.fingerprint import LISTED, WHOLE, Fingerprint, of_folder, of_objects, to_plain
from trainshed.machine.mountpoints import is_mounted

from ..job.job import ChannelSpec
from .fetching.items import Item
from .platform_files import to_json
from .run import Run

LONGEST = 10.0  # seconds for each


def hand_over(run: Run, listed: Mapping[str, Sequence[Item]], say: Callable[[str], None] = lambda _: None) -> None:
    """Tells each host's `train` what its pipes will bring; a disk that takes no more costs the file, never the job.

    Args:
        listed: objects of the channels that are streamed from a storage, by the channel's name.
        say: told of what takes long.
    """
    how = run.job.fingerprint
    if how == "off":
        return
    known: dict[str, dict[str, Any]] = {}  # by place: hosts may share it
    for host in run.hosts:
        told = {}
        for channel in run.job.channels_of(host.name):
            if channel.input_mode == "File":
                continue
            place = run.data(host, channel)
            if place not in known:
                if how == WHOLE and channel.name not in listed:
                    say(f"hashing all files of the channel {channel.name}, as `fingerprint: whole` asks for")
                known[place] = to_plain(_fingerprint(channel, place, how, listed.get(channel.name, ())))
            told[channel.name] = known[place]
        if not told:
            continue
        try:
            write_atomic(f"{host.folder}/input/config/{FILE}", to_json(told))
        except OSError:
            return


def _fingerprint(channel: ChannelSpec, place: str, how: str, listed: Sequence[Item]) -> Fingerprint:
    if listed and min(one.size for one in listed) >= 0:
        return of_objects((one.name, one.size, one.etag) for one in listed)
    if is_mounted(os.path.dirname(os.path.realpath(place))):  # what is read of it would be fetched
        found = of_folder(place, LISTED, LONGEST)
        return found.replace(notes=(*found.notes, "streamed: names and sizes alone count"))
    found = of_folder(place, how, None if how == "whole" else LONGEST)
    if channel.augmented:
        found = found.replace(notes=(*found.notes, "the manifest alone counts, not the objects that it names"))
    return found
