"""A step as an ordinary run: its job, its start, its end, and what others get from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainshed.base.errors import JobError, Problem, TrainshedError, did_you_mean, some
from trainshed.contract.hyperparameters import decode_value
from trainshed.runner.control.operations import to_resume
from trainshed.runner.control.parent import with_parent
from trainshed.runner.control.resolve_models import with_pinned_models
from trainshed.runner.job import read as job_reader
from trainshed.runner.job.encode import encode
from trainshed.runner.job.job import Job
from trainshed.runner.job.nodes import Node, scalar
from trainshed.runner.state.provenance import provenance_of
from trainshed.runner.state.stored import Stored, load, refuse_masked
from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED
from trainshed.studio.batches.held_runs import start_run
from trainshed.studio.models.model_of_run import metrics_of
from trainshed.studio.tune.tuning import TuningJob

from .inputs import Codes, best_run, key_of, model_changed, require_model
from .links import METRICS, MODEL, OUTPUT, PARAMS, RUN, VERSION, Link, resolved
from .steps_folder import StepsFolder, StepState
from .steps_plan import TUNE, PipelineDefinition, Step


@dataclass(frozen=True)
class Prepared:
    """What a step is going to run.

    key: of its inputs. why: it must not be reused, where key is "". tuning: of a step that tunes.
    """

    job: Job
    key: str
    why: str
    tuning: TuningJob | None = None


class Values:
    """What links lead to, when the steps that they name are over."""

    def __init__(self, pipeline: PipelineDefinition, folder: StepsFolder, states: Mapping[str, StepState]) -> None:
        self.pipeline, self.folder, self.states = pipeline, folder, states

    def node(self, link: Link) -> Node:
        """The value of a link. Raises TrainshedError where there is none."""
        if link.what == PARAMS:
            return self.pipeline.params[link.name]
        if link.what == VERSION:
            return _text(self.states[link.step].version)
        folder = self.run_of(link.step)
        if link.what == MODEL:
            return _text(require_model(folder, link.step))
        if link.what == OUTPUT:
            path = f"{folder}/algo-1/output/data"
            if not os.path.isdir(path):
                raise TrainshedError(f"the step {link.step} has left no output: {path} does not exist")
            return _text(path)
        if link.what == RUN:
            return _text(folder)
        run = load(folder)
        if link.what == METRICS:
            found = {name: repr(value) for name, value in metrics_of(run).items()}
        else:
            given = run.status.get(HYPERPARAMETERS_KEY)
            found = {str(name): str(text) for name, text in given.items()} if isinstance(given, dict) else {}
        if link.name not in found:
            what = "measured" if link.what == METRICS else "hyperparameters"
            near = did_you_mean(link.name, found)
            known = f"it has {some(sorted(found), 8)}" if found else "it has none"
            raise TrainshedError(f"{link}: the step {link.step} has no such {_WORDS[what]}; {near or known}")
        text = found[link.name]
        if link.what == METRICS:
            return Node(scalar(text), "", "", text)
        value = decode_value(text)
        return Node(value, "", "", value if isinstance(value, str) else encode(value))

    def run_of(self, name: str) -> str:
        """The folder of a step's run; of one that tunes, of its best trial's. Raises TrainshedError where it has none."""
        path = self.folder.run(name, self.states[name].number)
        return best_run(path, name) if self.pipeline.step(name).kind == TUNE else path

    def value(self, link: Link) -> float | str | bool:
        """The value of a link for a condition. Raises TrainshedError."""
        found = self.node(link).value
        return found if isinstance(found, (str, bool)) else float(found)


HYPERPARAMETERS_KEY = "HyperParameters"
_WORDS = {"measured": "metric", "hyperparameters": "hyperparameter"}


def _text(text: str) -> Node:
    return Node(text, "", "", text)


def prepare(pipeline: PipelineDefinition, step: Step, values: Values, codes: Codes, environ: Mapping[str, str]) -> Prepared:
    """The job of a step whose needs are over, and the hash of its inputs. Raises TrainshedError, JobError."""
    problems: list[Problem] = []
    nodes = {name: resolved(node, values.node) for name, node in step.values.items()}
    job = job_reader.read(nodes, environ, pipeline.path, step.name, problems)
    job = with_pinned_models(with_parent(replace(job, **step.extra), environ), environ)
    job, digest = codes.of(job)
    key, why = key_of(job, digest, values.folder)
    return Prepared(job, key, why)


def begin(pipeline: PipelineDefinition, state: StepState, job: Job, folder: StepsFolder, environ: Mapping[str, str]) -> None:
    """Starts the run of a step. Raises TrainshedError, JobError where it cannot be started."""
    made = _in_place(pipeline, state, job, folder)
    refuse_masked(made, pipeline.name)
    start_run(made.output, made, environ, folder)


def begin_again(
    pipeline: PipelineDefinition, state: StepState, job: Job, folder: StepsFolder, environ: Mapping[str, str], run: Stored
) -> None:
    """Takes a step's run up again, with its checkpoints; what a dead runner left is ended first. Raises TrainshedError."""
    again = to_resume(run, environ, lambda _: None, lambda _: _in_place(pipeline, state, job, folder), again=True)
    start_run(folder.run(state.name, state.number), again.job, environ, folder, again)


def _in_place(pipeline: PipelineDefinition, state: StepState, job: Job, folder: StepsFolder) -> Job:
    return replace(
        job,
        output=folder.run(state.name, state.number),
        full_name=f"{pipeline.name}-{state.name}-{state.number}",
        tags={"pipeline": pipeline.name, "step": state.name, **job.tags},
        notes=(),
    )


def wrong_with(run: Stored) -> str:
    """Why what a run has made cannot be used again, "" where it can."""
    if run.said[0] != COMPLETED:
        return "its run is gone"
    digest = provenance_of(run).model.get("digest", "")
    if model_changed(run.folder, str(digest)):
        return "its model was changed since"
    return ""


def outcome(run: Stored) -> tuple[str, str]:
    """(state, reason) of a step whose run has ended."""
    status, phase = run.said
    if status == COMPLETED:
        return COMPLETED, ""
    reason = str(run.status.get("FailureReason") or "").partition("\n")[0]
    if status == STOPPED:
        return STOPPED, reason or ("stopped" if phase == STOPPED else "it reached its time limit")
    return FAILED, reason or "it has failed"


def said_of(error: Exception) -> str:
    """An error for a step's reason."""
    if isinstance(error, JobError):
        return "; ".join(problem.line() for problem in error.problems)[:1024]
    return error.message if isinstance(error, TrainshedError) else f"{type(error).__name__}: {error}"
