"""One run from start to end: claim a folder, place files, run the attempts, collect results, report."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

from trainshed.base.errors import EXIT_INTERNAL, EXIT_SIGNAL_BASE, TrainshedError, visible
from trainshed.base.files import write_atomic
from trainshed.machine.signals import Interrupted, SignalPipe, stop_raises

from ..acting import Backend, Queue, acting
from ..acting.leftovers import remove_scratch
from ..acting.submission import claim
from ..display.screen import Screen
from ..display.summary import render, shown
from ..files import layout
from ..files.collect import Archive, collect, settled
from ..files.ending import Ending, RunEnd
from ..files.expected_data import check_data
from ..files.metrics import Metrics
from ..files.mounts import Mounts, clear_stale
from ..files.owner import hand_over
from ..files.provenance import note_image
from ..files.run import Run
from ..files.staging import stage
from ..job.job import Job
from ..job.places import HERE, find, gone_without
from ..job.references import secrets_of
from ..state import index
from ..state.job_json import described
from ..state.records import fingerprints_of, phases_of
from ..state.run_goodput import note_goodput
from ..state.status import StatusFile
from ..state.stored import Stored, load
from ..state.verdict import judge, went_on_without
from .attempts import RunAttempts
from .live_mlflow import LiveMlflow
from .parent import with_parent
from .resolve_models import with_pinned_models
from .warm import Warm


@dataclass(frozen=True)
class Finished:
    """A run that is over, with everything that is known of it."""

    run: Run
    verdict: RunEnd
    metrics: Metrics
    archives: tuple[Archive, Archive] | None = None


def run_job(
    job: Job,
    environ: Mapping[str, str],
    *,
    dry_run: bool = False,
    detach: bool = False,
    again: Run | None = None,
    started: Callable[[Run], None] | None = None,
    on: str = HERE.name,
) -> int:
    """Runs a job to its end and returns its exit status; everything is reported on standard error and in the run's folder.

    Args:
        detach: return as soon as it is submitted, where the place needs nobody who follows it.
        again: a run that is over and is taken up again, in its own folder, with its checkpoints.
        started: called when the run has its folder; that stays then, also where the job cannot be started.
        on: the place where it runs.

    Raises:
        TrainshedError: the job could not be started at all.
    """
    place = find(on)
    acts = acting(place)
    if isinstance(acts, Queue):
        return acts.run(job, environ, dry_run=dry_run, detach=detach, again=again, started=started)
    screen = Screen()
    try:
        job = with_pinned_models(with_parent(job, environ), environ)
        for note in job.notes:
            screen.say(f"note: {note}")
        if place.here and job.machines:
            screen.say("note: the job has `hosts`, and runs here all the same: --on ssh runs it there")
        for words in gone_without(place, job):
            screen.say(f"warning: {words}")
        job = acts.prepared(job)
        backend = acts.backend(job, environ, screen.say)
        if dry_run:
            from ..display.dry_run import describe

            run = layout.plan(job, in_containers=backend.in_containers, now=time.time())
            where = "" if place.here else backend.where(job)
            print(visible(describe(run, backend.interface, backend.describe(run), where)), end="")
            return 0
        return Execution(job, backend, screen, environ, again, started).run_to_the_end().verdict.exit_code
    except Interrupted as error:
        screen.say(str(error))
        return EXIT_SIGNAL_BASE + error.number
    finally:
        screen.close()


def take_up(
    stored: Stored, environ: Mapping[str, str], screen: Screen, started: Callable[[Run], None] | None = None
) -> int | None:
    """Follows a run that goes on elsewhere and that nobody follows any more, to its end; None where somebody does.

    Logs of hosts are read from their beginning: what the runner had not passed on is not lost, and nothing is there twice.

    Args:
        started: called when `status.json` names this process.

    Raises:
        TrainshedError: the run's files are none, or the place cannot be reached.
    """
    acts = acting(stored.place)
    if isinstance(acts, Queue):
        return acts.take_up(stored, environ, screen, started or (lambda _: None))
    lock = claim(stored.folder, stored.place.lock)
    if lock is None:
        return None
    try:
        if os.stat(f"{stored.folder}/job.json").st_uid != os.geteuid() and not index.knows(
            stored.id, stored.folder, environ
        ):
            raise TrainshedError(f"{stored.name} belongs to another user", hint="follow it as that user")
        dead = stored.ours.get("Runner")
        stored = load(stored.folder)
        if not stored.submitted or stored.runner:
            return None
        run = stored.run()
        if isinstance(dead, dict) and isinstance(dead.get("Pid"), int):
            remove_scratch(dead["Pid"])  # the sockets of its connections
        backend = acts.taken_up(run, environ, screen.say)
        execution = Execution(replace(run.job, retries=0, spot=None), backend, screen, environ, run, started, before=stored)
        return execution.run_to_the_end().verdict.exit_code
    finally:
        os.close(lock)


def execute(job: Job, backend: Backend, screen: Screen, environ: Mapping[str, str]) -> Finished:
    """Runs a job to its end, successful or not. Raises TrainshedError and Interrupted where nothing was started."""
    return Execution(job, backend, screen, environ).run_to_the_end()


class Execution:
    """One job being run. Raises TrainshedError and Interrupted where nothing was started.

    Args:
        before: the run whose hosts run already, on other machines; they are followed.
    """

    def __init__(
        self,
        job: Job,
        backend: Backend,
        screen: Screen,
        environ: Mapping[str, str],
        again: Run | None = None,
        started: Callable[[Run], None] | None = None,
        before: Stored | None = None,
    ) -> None:
        self.before = before
        self.job = job
        self.backend = backend
        self.screen = screen
        self.environ = environ
        self.again = again
        self.started = started
        self.metrics = Metrics.of(job.metric_definitions, str(job.hyperparameters.get("trainshed_metrics") or "auto"))
        self.attempts_before = 0  # by earlier runners
        self.mounts: Mounts | None = None  # channels that are file systems
        self.mlflow: LiveMlflow | None = None
        self.warm = Warm(job, backend, environ, screen.say)

    def run_to_the_end(self) -> Finished:
        """Runs the job with all its attempts to its end and reports it."""
        self.signals = SignalPipe()  # a signal stops the hosts, and nothing is left half done
        try:
            with stop_raises("before the job was started"):
                self.backend.prepare()
                self.screen.secrets = secrets_of(self.job, self.backend.secrets)
                if self.before is None:
                    self._claim()
            if self.before is not None:  # its hosts run: from here on a signal has to stop them, like any later one
                self._claim_again(self.before)
            try:
                with stop_raises("before the job was started") if self.before is None else nullcontext():
                    self._place()
                placed = time.time() - self.placing
                ending = self._attempts().to_the_end()
                return self._finish(ending, placed)
            except Interrupted as error:
                reason = RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + error.number, reason=str(error))
                self.status.ended(reason, None, self.metrics, "")
                raise
            except Exception as error:
                self.status.ended(_could_not_run(error), None, self.metrics, "")
                raise
            finally:
                self._unmount()
                self.warm.leave()
                if self.mlflow is not None:
                    self.mlflow.finish()
                hand_over(self.run, self.environ)
        finally:
            self.signals.close()

    def _claim(self) -> None:
        """Makes the folder and its index entry: from here on other commands find the run, whatever happens to this one."""
        now = time.time()
        if self.again is not None:
            self.run = self.again
            before = load(self.run.folder).status
            self.attempts_before = layout.attempts(self.run.folder)
            self.status = StatusFile(self.run, before=before, secrets=self.screen.secrets)
        else:
            self.run = layout.claim(layout.plan(self.job, in_containers=self.backend.in_containers, now=now))
            self.status = StatusFile(self.run, secrets=self.screen.secrets)
        self.placing = now
        about = described(self.run, self.backend.place, self.screen.secrets)
        try:
            write_atomic(f"{self.run.folder}/job.json", json.dumps(about, indent=2) + "\n")
        except OSError as error:
            if self.again is None:
                self._discard()
            raise layout.unusable(error, self.run.folder) from error
        index.note(self.run, self.environ)
        if self.started is not None:
            self.started(self.run)

    def _claim_again(self, before: Stored) -> None:
        """As `_claim` for hosts that run already: training has gone on meanwhile."""
        assert self.again is not None
        self.run = replace(self.again, job=self.job)
        self.attempts_before = layout.attempts(self.run.folder)
        self.status = StatusFile(self.run, before=before.status, first=before.said[1], secrets=self.screen.secrets)
        self.placing = time.time()
        for host in self.run.hosts:
            with open(self.run.log(host.name), "wb"):  # it comes whole again
                pass
        if self.started is not None:
            self.started(self.run)

    def _place(self) -> None:
        if self.before is not None:
            self.screen.keep(self.run.words)
            self.screen.say(f"{self.run.name}: following it again {self.backend.where(self.job)}")
            return
        try:
            if self.again is not None:
                self.attempts_before += 1
                layout.put_aside(self.run, self.attempts_before)
            self.screen.keep(self.run.words)
            self.run = self.warm.taken(self.run)
            layout.place(self.run, interface=self.backend.interface, say=self.screen.say, environ=self.environ)
            note_image(self.run, self.backend.image, self.screen.say)
            self.screen.say(f"{self.run.name}: {self.backend.where(self.job)}, in {shown(self.run.folder)}")
            if self.job.upload:
                from ..files.fetching.s3 import check_output

                check_output(self.job.upload, self.run.name, self.environ)
            if any(channel.remote for channel in self.job.channels):
                self.status.to("Downloading")
            self._stage()
        except BaseException:
            if self.again is None and self.started is None:  # else somebody knows the run, and looks there for the reason
                self._discard()
            raise
        self.mlflow = LiveMlflow(self.job, self.backend.secrets, self.environ, self.screen.say)
        self.mlflow.start(self.run)
        self.run = self.mlflow.joined(self.run)

    def _stage(self) -> None:
        clear_stale()
        blind = self.backend.mount_obstacle()
        self.mounts = Mounts(self.run, self.environ, others=self.backend.in_containers)
        say, status = self.screen.say, self.screen.status
        stage(self.run, self.environ, say, status=status, mounts=self.mounts, blind=blind)
        check_data(self.run, say)

    def _unmount(self) -> None:
        if self.mounts is not None:
            self.mounts.close()

    def _discard(self) -> None:
        """Removes a run that never started: its folder was empty or absent before."""
        self._unmount()
        self.status.ended = lambda *_: None  # type: ignore[method-assign]
        for name in os.listdir(self.run.folder):
            path = f"{self.run.folder}/{name}"
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        if not self.job.output:
            os.rmdir(self.run.folder)
            parent = os.path.dirname(self.run.folder)
            if not os.listdir(parent):
                os.rmdir(parent)
        index.forget(self.run.id, self.environ)

    def _attempts(self) -> RunAttempts:
        return RunAttempts(
            self.run,
            self.backend,
            self.screen,
            self.status,
            self.metrics,
            self.signals,
            mounts=self.mounts,
            number=self.attempts_before,
            started=self.before is not None,
        )

    def _finish(self, ending: Ending, placed: float) -> Finished:
        """Collects, writes the last status, shows the summary."""
        run, metrics, screen = self.run, self.metrics, self.screen
        verdict = judge(run, ending)
        for end in went_on_without(run, ending):
            screen.say(f"{end.name} was lost ({end.note or f'exited with {end.code}'}): the job has ended without it")
        self.status.to("Uploading")
        screen.status("collecting model and output")
        began = time.monotonic()
        archives = None
        model = ""
        try:
            with stop_raises("while the results were collected"):
                if self.mounts is not None and verdict.status == "Completed":
                    for note in self.mounts.changes():
                        screen.say(f"warning: {note}")
                archives = collect(run, verdict, screen.status)
                verdict = settled(verdict, archives)
                model = archives[0].path
                if self.job.upload:
                    model = self._upload(archives) or model
        except Interrupted as error:
            if verdict.status == "Completed":
                verdict = RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + error.number, reason=str(error))
        except (TrainshedError, OSError) as error:
            if isinstance(error, OSError):
                error = TrainshedError(f"the results cannot be collected: {error.filename or run.folder}: {error.strerror}")
            screen.say(f"warning: {error.message}")
            if verdict.status == "Completed":
                verdict = _could_not_run(error)
        seconds = {"placing": placed, **phases_of(run.hosts), "collecting": time.monotonic() - began}
        metrics.finish()
        if data := fingerprints_of(run.hosts):
            self.status.data["Trainshed"]["Data"] = data
        note_goodput(self.status, run)
        self.status.ended(verdict, ending, metrics, model, archives or ())
        if self.status.problem:
            screen.say(f"warning: {self.status.problem}")
        screen.block(render(run, verdict, seconds, metrics, archives, time.time() - self.placing, self.status.data))
        return Finished(run, verdict, metrics, archives)

    def _upload(self, archives: tuple[Archive, Archive]) -> str:
        from ..files.collect import upload

        self.screen.say(f"uploading to {self.job.upload}")
        there = [archive for archive in archives if archive.path]
        uris = upload(self.job.upload, self.run.name, there, self.environ)
        return dict(zip((archive.path for archive in there), uris, strict=True)).get(archives[0].path, "")


def _could_not_run(error: Exception) -> RunEnd:
    if not isinstance(error, TrainshedError):
        return RunEnd("Failed", "Failed", EXIT_INTERNAL, reason=f"trainshed itself failed: {type(error).__name__}: {error}")
    reason = "\n".join(part for part in (error.message, error.hint and f"hint: {error.hint}") if part)
    return RunEnd("Failed", "Failed", error.exit_code, reason=reason)
