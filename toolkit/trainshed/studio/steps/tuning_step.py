"""A step that tunes: a tuning job in the step's folder. Its tuner runs in the background and holds the step's lock.

What others get from the step is of its best trial's run.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace

import trainshed
from trainshed.base.errors import Problem, TrainshedError
from trainshed.base.files import read_object, remove, write_atomic
from trainshed.base.secrets import mask_text
from trainshed.runner.control.parent import with_parent
from trainshed.runner.control.resolve_models import with_pinned_models
from trainshed.runner.job.job import Job
from trainshed.runner.job.nodes import Node
from trainshed.studio.batches.folder import COMPLETED, FAILED, LARGEST, STOPPED
from trainshed.studio.batches.held_runs import taken
from trainshed.studio.tune.board import counted
from trainshed.studio.tune.sessions import standing, tune
from trainshed.studio.tune.tuning_file import Parts, tuning_of_parts
from trainshed.studio.tune.tuning_folder import TuningFolder
from trainshed.studio.tune.tuning_page import write as write_page

from .inputs import Codes, key_of
from .links import resolved
from .step_runs import Prepared, Values, said_of
from .steps_folder import StepsFolder, StepState
from .steps_plan import PipelineDefinition, Step

JOB = "job"
PAGE = "report.html"  # in the folder of the tuning job
LONGEST_NAME = 57  # of a tuning job: with the number of a trial it names a run


def parts_with(parts: Parts, values: Mapping[str, Node]) -> Parts:
    """The parts of a tuning job with other values. values: its fields, those of its job under `job`."""
    job = values[JOB].value if JOB in values else {}
    return replace(parts, values=dict(values), job=dict(job) if isinstance(job, dict) else {})


def prepare(pipeline: PipelineDefinition, step: Step, values: Values, codes: Codes, environ: Mapping[str, str]) -> Prepared:
    """The tuning job of a step whose needs are over, and the hash of its inputs. Raises TrainshedError, JobError."""
    assert step.tuning is not None
    problems: list[Problem] = []
    nodes = {name: resolved(node, values.node) for name, node in step.values.items()}
    tuning = tuning_of_parts(parts_with(step.tuning, nodes), environ, pipeline.path, step.name, problems)
    job, digest = codes.of(with_pinned_models(tuning.job, environ))
    key, why = key_of(with_parent(job, environ), digest, values.folder)
    plain = asdict(replace(tuning, job=Job(""), name="", notes=(), limits=replace(tuning.limits, max_parallel=1)))
    whole = hashlib.sha256(json.dumps([key, plain], sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return Prepared(job, whole.hexdigest() if key else "", why, replace(tuning, job=job))


def begin(
    pipeline: PipelineDefinition, state: StepState, made: Prepared, folder: StepsFolder, environ: Mapping[str, str]
) -> None:
    """Starts the tuner of a step, or another one after it: that goes on with the trials that are there.

    Raises:
        TrainshedError: it cannot be started.
    """
    path = folder.run(state.name, state.number)
    name = f"{pipeline.name}-{state.name}-{state.number}"[-LONGEST_NAME:].lstrip("-")
    assert made.tuning is not None
    job = replace(made.tuning.job, tags={"pipeline": pipeline.name, "step": state.name, **made.tuning.job.tags})
    order = pickle.dumps((replace(made.tuning, name=name, job=job), pipeline.path, path))
    root = os.path.dirname(os.path.dirname(os.path.abspath(trainshed.__file__)))
    with taken(path, folder) as fd:
        # Not `-m`: that would put the working directory before everything else.
        code = f"import sys; sys.path.insert(0, {root!r}); from trainshed.studio.steps.tuning_step import main; main({fd})"
        try:
            remove(_error_file(path))
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what it says is in the tuning job's tuner.log
                pass_fds=(fd,),
                start_new_session=True,  # the terminal's signals are not for it
            )
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(order)
        except OSError as error:
            raise TrainshedError(f"the tuner of {state.name} cannot be started: {error.strerror}") from error
    # A child of this process: without a wait it would stay a zombie until this process ends.
    threading.Thread(target=process.wait, daemon=True, name=f"wait-{process.pid}").start()


def main(fd: int) -> None:
    """The tuner in the background. fd: the step's lock; the tuning job comes on standard input."""
    os.set_inheritable(fd, False)
    tuning, file, path = pickle.load(sys.stdin.buffer)  # from the process that started this one, through a pipe of theirs
    try:
        tune(tuning, file, path, os.environ)
        write_page(TuningFolder(path))
    except Exception as error:
        try:
            write_atomic(_error_file(path), json.dumps({"error": mask_text(said_of(error))}) + "\n")
        except OSError:
            pass  # whoever looks finds neither an end nor a tuner, and starts another one
    os._exit(0)


def _error_file(path: str) -> str:
    return f"{path}.error"


def outcome(path: str) -> tuple[str, str] | None:
    """(state, what is to be said) of a tuning job whose tuner is not there; None where it is not over.

    Args:
        path: its folder.
    """
    folder = TuningFolder(path)
    found = folder.outcome()
    if not found:
        error = read_object(_error_file(path), LARGEST).get("error")
        return (FAILED, error) if isinstance(error, str) else None
    state = {"Completed": COMPLETED, "Stopped": STOPPED}.get(str(found["status"]), FAILED)
    return state, progress(path).partition(" · ")[2] if state == COMPLETED else str(found["reason"])


def progress(path: str) -> str:
    """`12 of 30 trials over, 2 running · best val_loss 0.12 (trial 7)`; "" where nothing is known."""
    try:
        view, _, _ = standing(TuningFolder(path))
    except TrainshedError:
        return ""
    return counted(view).removeprefix(f"{view.tuning.name}: ")


def wrong_with(path: str) -> str:
    """Why what a tuning job has found cannot be used again, "" where it can. path: its folder."""
    found = outcome(path)
    return "" if found is not None and found[0] == COMPLETED else "its tuning job is gone"
