"""One run from start to end: plan, place, start, watch, judge, collect, report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from trainshed.container.interrupted import Interrupted, stop_raises
from trainshed.container.supervisor.loop import SignalPipe
from trainshed.contract.errors import EXIT_INTERNAL, EXIT_SIGNAL_BASE, TrainshedError
from trainshed.contract.files import write_atomic
from trainshed.contract.secrets import mask_mapping

from . import layout
from .backends import Backend, choose
from .card import render, shown
from .collect import Archive, collect
from .job import Job
from .layout import Run
from .metrics import Metrics
from .owner import hand_over
from .records import phases_of
from .screen import Screen
from .status import StatusFile, iso
from .verdict import Verdict, judge
from .watch import Ending, Watch


@dataclass(frozen=True)
class Finished:
    """A run that is over, with everything that is known of it."""

    run: Run
    verdict: Verdict
    metrics: Metrics
    archives: tuple[Archive, Archive] | None = None


def run_job(job: Job, environ: Mapping[str, str], *, dry_run: bool = False) -> int:
    """Runs a job to its end and returns its exit status; everything is reported on standard error and in the run's folder.

    Raises:
        TrainshedError: the job could not be started at all.
    """
    screen = Screen()
    try:
        backend = choose(job, environ, screen.say)
        if dry_run:
            from .describe import describe

            run = layout.plan(job, in_containers=backend.in_containers, now=time.time())
            print(describe(run, backend), end="")
            return 0
        return execute(job, backend, screen, environ).verdict.exit_code
    except Interrupted as error:
        screen.say(str(error))
        return EXIT_SIGNAL_BASE + error.number
    finally:
        screen.close()


def execute(job: Job, backend: Backend, screen: Screen, environ: Mapping[str, str]) -> Finished:
    """Runs a job to its end, whatever that is. Raises TrainshedError and Interrupted where nothing was started."""
    signals = SignalPipe()  # a signal stops the hosts, and nothing is left half done
    try:
        with stop_raises("before the job was started"):
            backend.prepare()
            run = layout.plan(job, in_containers=backend.in_containers, now=time.time())
            notes = layout.place(run, interface=backend.interface)
            write_atomic(f"{run.folder}/job.json", json.dumps(described(run), indent=2) + "\n")
            status = StatusFile(run)
        for note in notes:
            screen.say(f"warning: {note}")
        screen.say(f"{run.name}: {_where(job)}, in {shown(run.folder)}")
        metrics = Metrics.of(job.metric_definitions)
        placed = time.time() - run.started
        try:
            ending = _start_and_watch(Watch(run, [], screen, metrics, signals), backend, status)
            return _finish(Finished(run, judge(run, ending), metrics), status, ending, screen, placed)
        except Exception as error:
            status.ended(_could_not_run(error), None, metrics, "")
            raise
        finally:
            hand_over(run, environ)
    finally:
        signals.close()


def _start_and_watch(watch: Watch, backend: Backend, status: StatusFile) -> Ending:
    try:
        watch.hosts = backend.start(watch.run)
        status.to("Training", TrainingStartTime=iso(time.time()))
        watch.stopping = lambda reason: status.to("Stopping", f"Stopping: {reason}")
        return watch.to_the_end()
    finally:
        backend.clear()


def _finish(finished: Finished, status: StatusFile, ending: Ending, screen: Screen, placed: float) -> Finished:
    """Collects, writes the last status, shows the card."""
    run, verdict, metrics = finished.run, finished.verdict, finished.metrics
    status.to("Uploading")
    screen.status("collecting model and output")
    began = time.monotonic()
    archives = None
    try:
        with stop_raises("while the results were collected"):
            archives = collect(run, verdict)
    except Interrupted as error:
        if verdict.status == "Completed":
            verdict = Verdict("Stopped", "Stopped", EXIT_SIGNAL_BASE + error.number, reason=str(error))
    seconds = {"placing": placed, **phases_of(run.hosts), "collecting": time.monotonic() - began}
    status.ended(verdict, ending, metrics, archives[0].path if archives else "")
    screen.card(render(run, verdict, seconds, metrics, archives, time.time() - run.started))
    return Finished(run, verdict, metrics, archives)


def _could_not_run(error: Exception) -> Verdict:
    if not isinstance(error, TrainshedError):
        return Verdict("Failed", "Failed", EXIT_INTERNAL, reason=f"trainshed itself failed: {type(error).__name__}: {error}")
    reason = "\n".join(part for part in (error.message, error.hint and f"hint: {error.hint}") if part)
    return Verdict("Failed", "Failed", error.exit_code, reason=reason)


def _where(job: Job) -> str:
    if job.image:
        return f"{'1 container' if job.instances == 1 else f'{job.instances} containers'} of {job.image}"
    return f"{'1 process' if job.instances == 1 else f'{job.instances} processes'} of this machine"


def described(run: Run) -> dict[str, object]:
    """`job.json`: the job as it was understood, secrets masked, and where and when it was started."""
    job = asdict(run.job)
    job["hyperparameters"] = mask_mapping(run.job.hyperparameters)
    job["environment"] = mask_mapping(run.job.environment)
    return {"format": 1, "run": run.name, "id": run.id, "started": iso(run.started), "directory": os.getcwd(), "job": job}
