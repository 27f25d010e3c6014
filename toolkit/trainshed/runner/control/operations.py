"""Operations on runs that were started: list, describe, stop, resume, clone, remove. For commands and Python alike."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import TrainshedError, visible

from ..acting import Queue, acting
from ..files.mounts import ours_below
from ..files.run import CODE, MLFLOW, PROVENANCE, REPORT, RUNNER_LOG, Run
from ..files.user_dirs import RUNS
from ..job.job import Job
from ..job.places import BUILT_IN
from ..job.write import job_file
from ..state import index
from ..state.identity import owner_of, send
from ..state.outputs import as_final_metrics, metrics_in, metrics_of
from ..state.status import iso
from ..state.stored import Stored, load, refuse_masked
from .recover import remove_leftovers, settle, still_running

PAUSE = 0.1  # seconds between two looks at a run that ends
Say = Callable[[str], None]


def state_of(run: Stored, environ: Mapping[str, str]) -> tuple[str, str]:
    """(status, what more there is to say): how a run stands, the truth where its files are behind it."""
    status, phase = run.said
    if run.copied:
        return status, f"{phase}; a copy of {run.copied}"
    if (told := run.standing()) is not None:
        return told
    try:
        left = still_running(run, environ)
    except TrainshedError as error:
        return "Lost", f"runner killed while {phase}; {error.message}"
    return "Lost", f"runner killed while {phase}" + (f"; {', '.join(left)} still run" if left else "")


def public_status(run: Stored, environ: Mapping[str, str]) -> dict[str, Any]:
    """`status.json`, corrected: its metrics are those of now, and a run whose runner was killed is Failed."""
    data = json.loads(json.dumps(run.status))
    measured = metrics_of(run.folder, metrics_in(data))
    if run.status and measured:
        data["FinalMetricDataList"] = as_final_metrics(measured, str(data.get("TrainingEndTime") or iso(time.time())))
    if run.lost:
        _, more = state_of(run, environ)
        data |= {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": more}
        data.setdefault("Trainshed", {})["Lost"] = True
    return dict(data)


def stop(run: Stored, environ: Mapping[str, str], say: Say, *, kill: bool = False) -> Stored:
    """Asks a run to end (SIGTERM, its grace, SIGKILL) and waits until it has; what a dead runner left is ended and kept.

    Args:
        kill: do not wait for the script.

    Raises:
        TrainshedError: it runs on another machine or belongs to another user.
    """
    _refuse_copy(run, f"trainshed stop {shlex.quote(run.copied)}")
    if run.elsewhere:
        raise TrainshedError(f"{run.name} runs on {run.elsewhere}", hint="stop it there")
    if run.ended:
        say(f"{run.name} has ended: {state_of(run, environ)[0]}")
        return run
    while run.submitted and not run.ended and not run.runner:
        run = with_follower(run, environ)
        if not run.ended and not run.runner:
            _wait_for_follower(run, environ, kill=kill)
            run = load(run.folder)
    if run.runner:
        _signal(run, signal.SIGTERM, environ)
        hurried = False
        while run.runner:
            if kill and not hurried and run.status.get("SecondaryStatus") == "Stopping":
                _signal(run, signal.SIGINT, environ)  # after a stop signal: kill
                hurried = True
            time.sleep(PAUSE)
            run = load(run.folder)
        while run.finishing:
            time.sleep(PAUSE)
    run = load(run.folder)
    if run.status and not run.ended:
        say(f"{run.name}: its runner was killed; ending its hosts and collecting their results")
        if run.about:
            settle(run, environ, say, grace=0 if kill else None)
        run = load(run.folder)
    return run


def _wait_for_follower(run: Stored, environ: Mapping[str, str], *, kill: bool) -> None:
    """Somebody else follows the job, but has not said so: stops it beside them where the place lets us."""
    acts = acting(run.place)
    if isinstance(acts, Queue):
        acts.stop(run, environ, kill=kill)
    time.sleep(PAUSE)


def with_follower(run: Stored, environ: Mapping[str, str]) -> Stored:
    """The run; a job elsewhere that nobody follows has a process in the background that does, and writes how it ends.

    Raises:
        TrainshedError: it cannot be followed from here.
    """
    if not run.submitted or run.ended or run.runner:
        return run
    from .detached import follow

    return follow(run, environ) or load(run.folder)


def _signal(run: Stored, number: int, environ: Mapping[str, str]) -> None:
    """Raises TrainshedError where the runner is not the caller's, or was named by a file that another user wrote."""
    runner = run.ours["Runner"]
    problem = TrainshedError(f"{run.name} belongs to another user", hint="stop it as that user, or with sudo")
    try:
        if owner_of(runner) != os.stat(f"{run.folder}/status.json").st_uid and not index.knows(run.id, run.folder, environ):
            raise problem
        send(runner, number)
    except ProcessLookupError:
        pass
    except OSError:
        raise problem from None


def _refuse_copy(run: Stored, hint: str) -> None:
    if run.copied:
        raise TrainshedError(f"{run.folder} is a copy of a run in {run.copied}: nothing runs for it", hint=hint)


def remove(run: Stored, environ: Mapping[str, str], say: Say, *, force: bool = False) -> None:
    """Removes a run that is over with all that it left: folder, index entry, containers, networks, processes.

    Checkpoints and results that the job keeps elsewhere stay.

    Raises:
        TrainshedError: it runs and `force` is not given, the folder is not one that a runner made, or something in it
            cannot be removed.
    """
    _refuse_foreign(run, environ)
    if run.elsewhere:
        raise TrainshedError(f"{run.name} runs on {run.elsewhere}", hint="remove it there")
    if run.runner or (run.submitted and not run.ended):
        if not force:
            raise TrainshedError(f"{run.name} is running", hint=f"trainshed stop {run.name}, or rm --force")
        run = stop(run, environ, say, kill=True)
    while run.finishing:  # the run has ended; its runner prints the summary
        time.sleep(PAUSE)
    remove_leftovers(run, environ)
    own = {RUNNER_LOG, REPORT, PROVENANCE, CODE, MLFLOW, "job.json", "status.json"}
    own |= {place.name for place in (*BUILT_IN.values(), run.place) if place.outlives}
    own |= {"labels.json", ".labels.lock"}  # catalog/labels.py
    own |= {"output", "logs", "model", "checkpoints", "staged", "attempts"}
    job = run.about.get("job") or {}
    hosts = {f"algo-{number}" for number in range(1, 513)}
    try:
        for name in os.listdir(run.folder):
            # Only what a runner makes: a folder that `--output` named may have got other things since.
            if name not in own | hosts and not (name.startswith(".") and name.endswith(".tmp")):
                say(f"{run.folder}/{name} does not belong to the run and stays")
                continue
            path = f"{run.folder}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        if not os.listdir(run.folder):
            os.rmdir(run.folder)
            parent = os.path.dirname(run.folder)
            if os.path.basename(parent) == RUNS and not os.listdir(parent):
                os.rmdir(parent)
    except OSError as error:
        raise TrainshedError(f"{error.filename} cannot be removed: {error.strerror}") from error
    index.forget(run.id, environ)
    if isinstance(job, dict) and job.get("checkpoints"):
        say(f"checkpoints stay in {job['checkpoints']}")


def _refuse_foreign(run: Stored, environ: Mapping[str, str]) -> None:
    """Raises TrainshedError for whatever is not a run's own folder: what is in it is not ours to delete."""
    remedy = f"rm -r {shlex.quote(run.folder)}"
    if os.path.islink(run.folder):
        raise TrainshedError(
            f"{run.folder} is a link to {os.path.realpath(run.folder)}", hint="name the run's folder, or remove the link"
        )
    _refuse_copy(run, f"{remedy} deletes it")
    if not run.made_here(environ):
        raise TrainshedError(
            f"{run.folder} was not made by trainshed here: nothing in it is removed", hint=f"{remedy} deletes it all"
        )
    try:
        device = os.stat(run.folder).st_dev
        ours = ours_below(run.folder)  # end with the run, and are taken away before anything is removed
        for place, folders, _ in os.walk(run.folder):
            folders[:] = [name for name in folders if f"{os.path.realpath(place)}/{name}" not in ours]
            for name in folders:
                if os.lstat(f"{place}/{name}").st_dev != device:
                    raise TrainshedError(
                        f"{place}/{name} is a mount point: nothing is removed", hint=f"umount {place}/{name}"
                    )
    except OSError as error:
        raise TrainshedError(f"{error.filename} cannot be removed: {error.strerror}") from error


def to_resume(
    run: Stored,
    environ: Mapping[str, str],
    say: Say,
    change: Callable[[Job], Job] = lambda job: job,
    *,
    again: bool = False,
) -> Run:
    """The run, ready to be taken up again in its own folder: same job, same checkpoints; what a dead runner left is settled.

    Args:
        change: what is to be different in the job.
        again: also a run that has completed.

    Raises:
        TrainshedError: it runs, has completed, or its code or data are gone.
        JobError: a secret was not kept, and is not given again.
    """
    if run.submitted and not run.ended:
        raise TrainshedError(f"{run.name} is {run.submitted}", hint=f"trainshed attach {run.name} follows it")
    if run.runner or run.elsewhere:
        raise TrainshedError(f"{run.name} is running", hint=f"trainshed attach {run.name} shows it")
    if not run.about:
        raise TrainshedError(f"{run.folder} has no job.json: there is nothing to resume", hint="trainshed rm removes it")
    if not run.place.can.resume:
        raise TrainshedError(
            f"{run.name} cannot be taken up again {run.place.where}", hint="trainshed clone makes its job file"
        )
    if run.said[0] == "Completed" and not again:
        hint = f"trainshed resume {run.name} --again trains on all the same; trainshed rerun {run.name} makes a new run"
        raise TrainshedError(f"{run.name} has completed: there is nothing to resume", hint=hint)
    made = run.run()
    if run.copied:
        from ..job.request import JOB_NAME

        say(f"{run.folder} is a copy of the run in {visible(run.copied)}: it is continued as a run of its own")
        name = os.path.basename(run.folder)
        made = replace(made, id=uuid.uuid4().hex, name=name if JOB_NAME.fullmatch(name) else made.name)
    job = change(made.job)
    refuse_masked(job, f"{run.name}")
    if not run.ended and not run.copied:
        settle(run, environ, say)
    if job.source_dir and "://" not in job.source_dir and not os.path.exists(job.source_dir):
        raise TrainshedError(f"the code is missing: {job.source_dir} does not exist")
    there = (job.places.get(run.place.name) or {}).get(run.place.own_data) or {}
    for channel in job.channels:
        if not channel.staged and channel.name not in there and not os.path.exists(channel.path):
            raise TrainshedError(f"the data of the channel {channel.name} is missing: {channel.path} does not exist")
    spot = replace(job.spot, interrupt_after=()) if job.spot else None
    return replace(made, job=replace(job, spot=spot))


def clone(run: Stored) -> str:
    """A job file that makes the run again. Secrets that were given as plain text are not in it, and it says so."""
    if not run.about:
        raise TrainshedError(f"{run.folder} holds no job.json: there is nothing to clone")
    comment = f"The job of {run.name}, started {run.about.get('started')}."
    return job_file(run.run().job, comment)
