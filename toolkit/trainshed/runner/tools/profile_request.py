"""Has a rank of a running job record some of its steps: asks through the job's folder, and waits for the answer.

Nothing is sent to the job and no process is entered, so it does not matter where the hosts run, as long as their folder
is here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from trainshed.base.errors import TrainshedError, one_line
from trainshed.contract.framework_profile import framework_profile
from trainshed.observe.place import profiler_folder
from trainshed.observe.steps import read_steps
from trainshed.observe.traces import TraceRequest, TraceResult, answered, ask, trace_path

from ..job.job import Job
from ..state.stored import Stored, load

PAUSE = 0.1  # seconds between two looks for the answer


def look(
    folders: Sequence[str], request: TraceRequest, seconds: float, over: Callable[[], bool] = lambda: False
) -> tuple[TraceResult, str]:
    """The answer to a request and the path of its trace.

    Args:
        folders: the hosts' profiler folders.
        seconds: how long to wait.
        over: whether the job has ended.

    Raises:
        TrainshedError: the job does not measure its steps, has no such rank, ends, or does not answer in time; or the rank
            says why there is no trace.
    """
    until = time.monotonic() + seconds
    told: set[str] = set()
    while True:
        ended = over()  # before the last look
        for folder in folders:
            if folder not in told and os.path.isdir(folder):
                told.add(folder)
                _ask(folder, request)
            if (found := answered(folder, request)) is not None:
                if found.error:
                    raise TrainshedError(f"rank {request.rank} has made no trace: {one_line(found.error)}")
                return found, trace_path(folder, request)
        if ended:
            raise TrainshedError(f"the job has ended before rank {request.rank} made {request.steps} more steps")
        if time.monotonic() > until:
            raise _no_answer(folders, request, seconds)
        time.sleep(PAUSE)


def folders_of(stored: Stored) -> list[str]:
    """The profiler folders of a run's hosts.

    Raises:
        TrainshedError: the run is over, or does not measure its steps.
    """
    if stored.ended or stored.copied or stored.lost:
        raise TrainshedError(f"{stored.name} is not running", hint="`trainshed ps` lists the runs that are")
    run = stored.run()
    if not measures_steps(run.job):
        raise TrainshedError(
            f"{stored.name} does not measure its steps, so nothing in it can record them",
            hint="start it with `profile: auto` in the job file, or --profile auto",
        )
    return [profiler_folder(host.output) for host in run.hosts]


def measures_steps(job: Job) -> bool:
    """Returns whether a job asked for it: by its field, as its hyperparameter, or by asking for a trace of some steps."""
    if job.profile == "auto" or job.hyperparameters.get("trainshed_profile") == "auto":
        return True
    asked = (job.config.get("profilerconfig.json") or {}).get("ProfilingParameters")
    return isinstance(asked, dict) and framework_profile(asked)[0] is not None


def is_over(stored: Stored) -> bool:
    """Returns whether a run has ended since it was read."""
    now = load(stored.folder)
    return now.ended or now.lost


def _ask(folder: str, request: TraceRequest) -> None:
    try:
        ask(folder, request)
    except OSError as error:
        raise TrainshedError(
            f"{folder} cannot be written: {error.strerror}", hint="run this as the user whom the job's files belong to"
        ) from error


def _no_answer(folders: Sequence[str], request: TraceRequest, seconds: float) -> TrainshedError:
    ranks = sorted({one.rank for one in read_steps(*folders)})
    if ranks and request.rank not in ranks:
        known = f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
        return TrainshedError(f"there is no rank {request.rank}: the job's ranks are {known}")
    why = "it has made no step of an optimizer of torch's" if not ranks else "its steps may be long, or it stands still"
    return TrainshedError(
        f"rank {request.rank} has not made {request.steps} steps within {seconds:g} s: {why}",
        hint="wait longer (--timeout SECONDS), or see where it is: docs/hangs.md",
    )
