"""`from_run`: the model of an earlier run becomes the channel `model` of a job."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import replace

from trainshed.base.errors import JobError, Problem, TrainshedError

from ..job.job import PARENTS_CHANNEL, ChannelSpec, Job, Parent
from ..state.stored import Stored, find


def with_parent(job: Job, environ: Mapping[str, str]) -> Job:
    """The job with the channel that its `from_run` asks for; the job itself where it asks for none, or has it already.

    Raises:
        JobError: the job has a channel `model` of its own, too.
        TrainshedError: there is no such run, it is still running, or it has no model.
    """
    if not job.from_run or job.parent is not None:
        return job
    if any(channel.name == PARENTS_CHANNEL for channel in job.channels):
        both = Problem(
            "from_run", f"the job has a channel {PARENTS_CHANNEL!r} as well", value=job.from_run, suggestion="leave out one"
        )
        raise JobError([both])
    run = find(job.from_run, environ)
    if not run.ended and not run.lost:
        raise TrainshedError(f"{run.name} has not ended: there is no model yet to go on from", hint="wait for its end")
    path = f"{run.folder}/output/model.tar.gz"
    try:
        there = stat.S_ISREG(os.lstat(path).st_mode) and os.access(path, os.R_OK)
    except OSError:
        there = False
    if not there:
        hint = "a run has one when its script has written to SM_MODEL_DIR"
        raise TrainshedError(f"{run.name} has no model: {path} is not a file that can be read", hint=hint)
    status = run.said[0]
    notes = () if status == "Completed" else (f"{run.name} has the status {status}; its model is what it had by then",)
    return replace(
        job,
        from_run=run.name,
        channels=tuple(sorted((*job.channels, ChannelSpec(PARENTS_CHANNEL, path)), key=lambda channel: channel.name)),
        parent=Parent(run.name, run.id, run.folder, model_sha256(run)),
        notes=(*job.notes, *notes),
    )


def model_sha256(run: Stored) -> str:
    """Of the archive with the model, as the run's status says; "" where it does not."""
    archives = run.ours.get("Archives")
    for one in archives if isinstance(archives, list) else []:
        if isinstance(one, dict) and os.path.basename(str(one.get("Path"))) == "model.tar.gz":
            return str(one.get("Sha256") or "")[:64]
    return ""
