"""A trial as an ordinary run: the job it runs, its part of the machine, its start, its end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from trainshed.base.errors import did_you_mean, some
from trainshed.contract.distributions import CPUS
from trainshed.contract.hyperparameters import SpelledFloat, decode_value
from trainshed.machine.cgroup import cpus
from trainshed.metrics.reading import MetricsReader
from trainshed.places import gpus
from trainshed.runner.control.detached import follow
from trainshed.runner.control.operations import to_resume
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import ALL_GPUS, Job
from trainshed.runner.job.nodes import RawText
from trainshed.runner.job.places import find
from trainshed.runner.state.outputs import outputs_of
from trainshed.runner.state.stored import Stored, refuse_masked
from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED
from trainshed.studio.batches.held_runs import Standing, look_at, start_run, taken

from .population import checkpoints_of, generation_of, inherit
from .space import CATEGORICAL, INTEGER
from .trial import Trial
from .tuning import BEST, EPOCH, POPULATION, STEP, EarlyStopping, Objective, TuningJob
from .tuning_folder import TuningFolder

OBJECTIVE_NAME = "_tuning_objective_metric"  # the platform's own; scripts do not get it


def job_with(tuning: TuningJob, values: Mapping[str, str]) -> Job:
    """The job with a trial's values: what a person would run to have this trial again."""
    own: dict[str, Any] = {}
    for parameter in tuning.space:
        if parameter.name not in values:
            continue
        text = values[parameter.name]
        if tuning.raw:
            own[parameter.name] = RawText(text)
        elif parameter.kind == CATEGORICAL:
            own[parameter.name] = text if dict(parameter.categories).get(text, True) else decode_value(text)
        else:
            own[parameter.name] = int(text) if parameter.kind == INTEGER else SpelledFloat(text)
    searched = {parameter.name for parameter in tuning.space}
    fixed = {name: value for name, value in tuning.job.hyperparameters.items() if name not in searched}
    return replace(tuning.job, hyperparameters={**fixed, **own})


def run_name(tuning: TuningJob, number: int) -> str:
    """The name of a trial's run."""
    return f"{tuning.name}-{number:04d}"


def job_of_trial(tuning: TuningJob, trial: Trial, folder: TuningFolder, environ: Mapping[str, str]) -> Job:
    """What a trial runs: the job with its values, in the trial's folder, with its part of the machine."""
    job = job_with(tuning, trial.values)
    name = run_name(tuning, trial.number)
    objective = tuning.objective.metric
    checkpoints = f"{job.checkpoints}/{name}" if job.checkpoints else ""
    if tuning.strategy.kind == POPULATION:
        checkpoints = checkpoints_of(folder, trial.number)
        length = tuning.strategy.interval * generation_of(tuning.strategy, trial.number)
        own = {tuning.strategy.length: length, "trainshed_checkpoint_options": "given"}
        job = replace(job, hyperparameters={**job.hyperparameters, **own})
    return _with_share(
        tuning,
        replace(
            job,
            hyperparameters={**job.hyperparameters, OBJECTIVE_NAME: RawText(objective) if tuning.raw else objective},
            output=folder.run(trial.number),
            full_name=name,
            checkpoints=checkpoints,
            checkpoint_copy_to=f"{job.checkpoint_copy_to.rstrip('/')}/{name}" if job.checkpoint_copy_to else "",
            tags={"tuning": tuning.name, **job.tags},
            notes=(),
        ),
        environ,
    )


def _with_share(tuning: TuningJob, job: Job, environ: Mapping[str, str]) -> Job:
    """Where trials run beside each other, each takes its part of the cores; what the job or the user says, wins."""
    slots = tuning.limits.max_parallel
    if slots < 2 or not find(tuning.place).here:  # elsewhere each job has its own
        return job
    if job.image:
        whole = job.resources.cpus is None
        return replace(job, resources=replace(job.resources, cpus=cpus() / slots / job.instances)) if whole else job
    each = max(1, cpus() // slots)
    distribution = job.distribution
    if distribution.traits.default_ranks == CPUS and not distribution.processes_per_host and not gpus.present(environ):
        distribution = replace(distribution, processes_per_host=max(1, each // job.instances))
    ranks = max(1, distribution.processes_per_host) * job.instances
    environment = dict(job.environment)
    if "OMP_NUM_THREADS" not in (*environ, *environment, *job.references):
        environment["OMP_NUM_THREADS"] = str(max(1, each // ranks))
    return replace(job, distribution=distribution, environment=environment)


def environ_of(tuning: TuningJob, trial: Trial, environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with the trial's part of the GPUs."""
    devices = gpus.present(environ)
    if not devices or tuning.limits.max_parallel < 2 or not find(tuning.place).here:
        return dict(environ)
    job = tuning.job
    each = [job.resources_of(job.group_of(host)).gpus for host in job.hosts]
    fixed = [one for one in each if one is not None and one != ALL_GPUS]
    wanted = sum(fixed) if len(fixed) == len(each) else None
    parts = gpus.shares(devices, [wanted] * tuning.limits.max_parallel)
    part = parts[trial.slot % tuning.limits.max_parallel]
    return {**environ, "CUDA_VISIBLE_DEVICES": ",".join(part)} if part else dict(environ)


def begin(tuning: TuningJob, trial: Trial, folder: TuningFolder, environ: Mapping[str, str]) -> None:
    """Starts a trial that has no run yet.

    Raises:
        TrainshedError, JobError: it cannot be started.
    """
    inherit(folder, trial)
    job = job_of_trial(tuning, trial, folder, environ)
    refuse_masked(job, tuning.name)
    _start(job, trial, tuning, folder, environ, None)


def begin_anew(tuning: TuningJob, trial: Trial, folder: TuningFolder, environ: Mapping[str, str], run: Stored) -> None:
    """Starts a trial from its beginning, whose run has ended without what it measured; that run is put aside.

    Raises:
        TrainshedError, JobError: it cannot be started.
    """
    put_aside(folder, trial.number)
    begin(tuning, trial, folder, environ)


def put_aside(folder: TuningFolder, number: int) -> None:
    """Gives a trial's run another name, so that the trial has none. Raises TrainshedError."""
    run = folder.run(number)
    aside = next(path for count in range(1, 10_000) if not os.path.lexists(path := f"{run}.aside-{count}"))
    with folder.guarded(), suppress(FileNotFoundError):  # it never began
        os.rename(run, aside)


def begin_again(tuning: TuningJob, trial: Trial, folder: TuningFolder, environ: Mapping[str, str], run: Stored) -> None:
    """Takes a trial's run up again, with its checkpoints; what a dead runner left is ended first.

    Raises:
        TrainshedError, JobError: it cannot be.
    """
    again = to_resume(run, environ, lambda _: None, lambda _: job_of_trial(tuning, trial, folder, environ), again=True)
    _start(again.job, trial, tuning, folder, environ, again)


def follow_again(trial: Trial, folder: TuningFolder, environ: Mapping[str, str], run: Stored) -> None:
    """Follows a trial that somebody else has, and whose runner was killed. Raises TrainshedError."""
    with taken(folder.run(trial.number), folder) as fd:
        follow(run, environ, hold=fd)


def _start(
    job: Job, trial: Trial, tuning: TuningJob, folder: TuningFolder, environ: Mapping[str, str], again: Run | None
) -> None:
    start_run(folder.run(trial.number), job, environ_of(tuning, trial, environ), folder, again, tuning.place)


def look(folder: TuningFolder, number: int) -> Standing:
    """How a trial's run stands now."""
    return look_at(folder.run(number))


class Curves:
    """The objective's curves of the trials, read on while they grow."""

    def __init__(self, folder: TuningFolder, objective: Objective, early: EarlyStopping) -> None:
        self.folder, self.objective, self.early = folder, objective, early
        self._readers: dict[int, MetricsReader] = {}
        self._whole: dict[int, list[tuple[float, float]]] = {}

    def of(self, number: int) -> list[tuple[float, float]]:
        """(resource, value) of each value so far; see `early`."""
        curves = self._read(number).curves()
        curve = curves.get(self.objective.metric)
        if curve is None:
            return []
        places = {STEP: curve.steps, EPOCH: curve.epochs}.get(self.early.resource, curve.numbers)() or curve.numbers()
        return list(zip(places, curve.track.values, strict=True))

    def whole(self, number: int) -> list[tuple[float, float]]:
        """The curve of a trial that is over: read once."""
        if number not in self._whole:
            self._whole[number] = self.of(number)
            self._readers.pop(number, None)
        return self._whole[number]

    def names(self, number: int) -> list[str]:
        """What a trial has measured."""
        return list(self._read(number).curves())

    def drop(self, number: int) -> None:
        """Forgets what was read of a trial: its run starts anew, or is over."""
        self._readers.pop(number, None)

    def values(self, number: int, objectives: Sequence[Objective]) -> tuple[tuple[float, ...], str]:
        """(the objectives of a trial, why there are none). Values that are not finite are none."""
        found = []
        for one in objectives:
            value, missing = self._value(number, one)
            if value is None:
                return (), missing
            found.append(value)
        return tuple(found), ""

    def _value(self, number: int, objective: Objective) -> tuple[float | None, str]:
        curve = self._read(number).curves().get(objective.metric)
        values = list(curve.track.values) if curve is not None else []
        metric = objective.metric
        if not values:
            names = self.names(number)
            known = f"it has measured {some(sorted(names), 8)}" if names else "it has measured nothing"
            near = did_you_mean(metric, names)
            return None, f"no {metric!r} was seen; {known}" + (f" ({near})" if near else "")
        if objective.value == BEST:
            finite = [value for value in values if abs(value) < float("inf")]
            if finite:
                return min(finite, key=objective.loss), ""
        if not abs(values[-1]) < float("inf"):
            return None, f"{metric} is {'NaN' if values[-1] != values[-1] else values[-1]}"
        return values[-1], ""

    def _read(self, number: int) -> MetricsReader:
        reader = self._readers.setdefault(number, MetricsReader())
        reader.read_on(outputs_of(self.folder.run(number)))
        return reader


def ended(trial: Trial, run: Stored, values: tuple[float, ...], missing: str) -> Trial:
    """The trial when its run has ended.

    Args:
        values: its objectives, () for none. missing: why it has none.
    """
    state = {"Completed": COMPLETED, "Stopped": STOPPED}.get(run.said[0], FAILED)
    reason = str(run.status.get("FailureReason") or "").splitlines()
    why = trial.halt or ("; ".join(reason[:1] + _hint(reason)) if state != COMPLETED else "")
    if state == STOPPED and not why:
        why = {"MaxRuntimeExceeded": "it reached its time limit", "MaxWaitTimeExceeded": "it reached its time limit"}.get(
            run.said[1], "stopped"
        )
    if state == FAILED and trial.halt:  # it failed because it was stopped, as far as anybody can know
        state = STOPPED
    if state == COMPLETED and not values:
        state, why = FAILED, missing
    if state == FAILED:
        values = ()
    billed = run.status.get("BillableTimeInSeconds")
    return replace(
        trial,
        state=state,
        ended=max(trial.created, _end(run)),
        value=values[0] if values else None,
        further=values[1:],
        reason=why[:1024],
        seconds=float(billed) * _hosts(run) if isinstance(billed, (int, float)) else 0.0,
    )


def _hint(reason: list[str]) -> list[str]:
    """The line of a failure that says what to do."""
    return [line for line in reason[1:] if line.startswith("hint: ")][:1]


def _hosts(run: Stored) -> int:
    count = (run.status.get("ResourceConfig") or {}).get("InstanceCount")
    return count if isinstance(count, int) and count > 0 else 1


def _end(run: Stored) -> float:
    """When the run ended, as its files say."""
    for name in ("TrainingEndTime", "LastModifiedTime"):
        try:
            return datetime.fromisoformat(str(run.status[name])).timestamp()
        except (KeyError, ValueError, OverflowError):
            continue
    return time.time()
