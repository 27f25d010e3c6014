"""Channels that name a model of the store get the version that is meant now, so that a run says which one it had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainshed.contract.model_reference import SCHEME

from ..files.fetching.sources import pinned
from ..job.job import Job


def with_pinned_models(job: Job, environ: Mapping[str, str]) -> Job:
    """The job whose channels name versions, where they named stages or the newest version; the job itself else.

    Raises:
        TrainshedError: there is no such version, or the store cannot be read.
    """
    channels, notes = [], list(job.notes)
    for channel in job.channels:
        if (one := pinned(channel.path, environ)) != channel.path:
            meant, version = channel.path.removeprefix(SCHEME), one.removeprefix(SCHEME)
            notes.append(f"the channel {channel.name}: {meant} is {version}")
            channel = replace(channel, path=one)
        channels.append(channel)
    return job if tuple(channels) == job.channels else replace(job, channels=tuple(channels), notes=tuple(notes))
