"""Channels that name a model of the store get the version that is meant now, so that a run says which one it had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainshed.models.reference import SCHEME, meant_by
from trainshed.models.storage import storage_at
from trainshed.models.store import ModelStore

from ..job.job import Job


def with_pinned_models(job: Job, environ: Mapping[str, str]) -> Job:
    """The job whose channels name versions, where they named stages or the newest version; the job itself else.

    Raises:
        TrainshedError: there is no such version, or the store cannot be read.
    """
    channels, notes = [], list(job.notes)
    for channel in job.channels:
        if channel.path.startswith(SCHEME) and not (meant := meant_by(channel.path)).number:
            version = ModelStore(storage_at("", environ)).find(meant)
            notes.append(f"the channel {channel.name}: {meant} is {version}")
            channel = replace(channel, path=f"{SCHEME}{version}")
        channels.append(channel)
    return job if tuple(channels) == job.channels else replace(job, channels=tuple(channels), notes=tuple(notes))
