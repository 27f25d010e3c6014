"""A job on its way to somebody who has it from then on (Slurm, a cluster of Kubernetes), whoever follows it.

One process at a time follows such a job: it holds a lock in the run's folder. A job outlives its follower; the next one
takes it up again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from trainshed.base.errors import EXIT_SIGNAL_BASE, TrainshedError
from trainshed.base.files import write_atomic
from trainshed.base.locks import hold
from trainshed.base.secrets import mask_text
from trainshed.machine.signals import Interrupted, SignalPipe, stop_raises

from ..display.screen import Screen
from ..display.summary import render
from ..files import layout
from ..files.collect import collect, settled
from ..files.ending import Ending, RunEnd
from ..files.metrics import Metrics
from ..files.run import Run
from ..job.job import Job
from ..job.places import Place, gone_without
from ..job.references import look_up, secrets_of
from ..state import index
from ..state.job_json import described
from ..state.records import phases_of
from ..state.run_goodput import note_goodput
from ..state.status import StatusFile
from ..state.stored import Stored, load
from .base import Acting

Follow = Callable[[Screen, SignalPipe, StatusFile], int]  # follows a job to its end; its exit status


class Submission(ABC):
    """One job until its end. Raises TrainshedError and Interrupted where it was not submitted.

    Args:
        again: a run that is over and is submitted again, in its own folder.
        started: called when the run has its folder; that stays then, also where the job cannot be submitted.
    """

    in_containers = False
    run: Run
    status: StatusFile

    def __init__(
        self,
        place: Place,
        job: Job,
        screen: Screen,
        environ: Mapping[str, str],
        again: Run | None = None,
        started: Callable[[Run], None] | None = None,
    ) -> None:
        self.job, self.screen, self.environ, self.lock = job, screen, environ, place.lock
        self.engine = "" if place.key_file else place.name  # what `job.json` says of it, where there is no other sign
        self.again, self.started = again, started

    @abstractmethod
    def check(self) -> None:
        """Finds out whether the job can be submitted from here. Raises TrainshedError."""

    @abstractmethod
    def fill(self) -> None:
        """Fills the run's folder. Raises TrainshedError."""

    @abstractmethod
    def submit(self, secrets: Mapping[str, str]) -> str:
        """Hands the job over; what `status.json` says then. Raises TrainshedError."""

    @abstractmethod
    def follow(self, signals: SignalPipe) -> int:
        """Follows the job to its end; its exit status."""

    def run_to_the_end(self, *, detach: bool = False) -> int:
        """Submits the job and follows it; its exit status.

        Args:
            detach: return as soon as it is submitted.
        """
        signals = SignalPipe()
        lock = None
        try:
            with stop_raises("before the job was submitted"):
                self.check()
                secrets = look_up(self.job, self.environ)
                self.screen.secrets = secrets_of(self.job, secrets)
                self._claim()
            try:
                with stop_raises("before the job was submitted"):
                    self._place()
                lock = claim(self.run.folder, self.lock)
                said = self.submit(secrets)
            except Interrupted as error:
                self._given_up(RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + error.number, reason=str(error)))
                raise
            except TrainshedError as error:
                reason = f"{error.message}\nhint: {error.hint}" if error.hint else error.message
                self._given_up(RunEnd("Failed", "Failed", error.exit_code, reason=reason))
                raise
            if detach:
                self.status.data["Trainshed"].pop("Runner", None)  # nobody follows it from here on
            self.status.to("Pending", said)
            return 0 if detach else self.follow(signals)
        finally:
            signals.close()
            if lock is not None:
                os.close(lock)

    def _claim(self) -> None:
        """Makes the folder and its index entry: from here on other commands find the run, whatever happens to this one."""
        if self.again is not None:
            self.run = self.again
            before = load(self.run.folder).status
            self.status = StatusFile(self.run, before=before, secrets=self.screen.secrets)
        else:
            self.run = layout.claim(layout.plan(self.job, in_containers=self.in_containers, now=time.time()))
            self.status = StatusFile(self.run, secrets=self.screen.secrets)
        about = described(self.run, self.engine, self.screen.secrets)
        try:
            write_atomic(f"{self.run.folder}/job.json", json.dumps(about, indent=2) + "\n")
        except OSError as error:
            raise layout.unusable(error, self.run.folder) from error
        index.note(self.run, self.environ)
        if self.started is not None:
            self.started(self.run)

    def _place(self) -> None:
        run = self.run
        try:
            if self.again is not None:
                layout.put_aside(run, layout.attempts(run.folder) + 1)
            self.screen.keep(run.words)
            self.fill()
        except BaseException:
            if self.again is None and self.started is None:  # else somebody knows the run, and looks there for the reason
                index.forget(run.id, self.environ)
                shutil.rmtree(run.folder, ignore_errors=True)  # it was made, or empty, before
            raise

    def _given_up(self, verdict: RunEnd) -> None:
        if os.path.isdir(self.run.folder):
            self.status.ended(verdict, None, Metrics.of(()), "")


class Queue(Acting, ABC):
    """A place that has a job from its submission on, whoever follows it.

    submits: a job on its way there.
    kept: fields of `status.json` beside the place's own that stay where a job is taken up again.
    """

    submits: type[Submission]
    kept: tuple[str, ...] = ()

    @abstractmethod
    def preview(self, job: Job, environ: Mapping[str, str]) -> str:
        """Returns what would be submitted, for `--dry-run`. Raises JobError."""

    @abstractmethod
    def reach(self, stored: Stored, run: Run, environ: Mapping[str, str]) -> Follow:
        """Returns what follows a job that nobody follows any more. Raises TrainshedError where the place does not answer."""

    @abstractmethod
    def stop(self, stored: Stored, environ: Mapping[str, str], *, kill: bool = False) -> None:
        """Has a job end that another process follows, maybe on another machine; that one says how it ended.

        Raises:
            TrainshedError: the place does not answer.
        """

    def run(
        self,
        job: Job,
        environ: Mapping[str, str],
        *,
        dry_run: bool = False,
        detach: bool = False,
        again: Run | None = None,
        started: Callable[[Run], None] | None = None,
    ) -> int:
        """Submits the job, follows it to its end; its exit status.

        Args:
            dry_run: print what would be submitted, submit nothing.
            detach: return as soon as it is submitted.
            again: a run that is over and is submitted again, in its own folder, with its checkpoints.
            started: called when the run has its folder; that stays then, also where the job cannot be submitted.

        Raises:
            JobError: the job lacks something, or an option is wrong.
            TrainshedError: the job could not be submitted.
        """
        self.check(job, environ)
        screen = Screen()
        try:
            if dry_run:
                print(mask_text(self.preview(job, environ), secrets_of(job, {})), end="")
                return 0
            for words in gone_without(self.place, job):
                screen.say(f"warning: {words}")
            if job.keep_alive and (obstacle := self.place.obstacle("keep_alive")):
                screen.say(f"warning: keep_alive: nothing is kept for the next run: {obstacle}")
            return self.submits(self.place, job, screen, environ, again, started).run_to_the_end(detach=detach)
        except Interrupted as error:
            screen.say(str(error))
            return EXIT_SIGNAL_BASE + error.number
        finally:
            screen.close()

    def take_up(
        self,
        stored: Stored,
        environ: Mapping[str, str],
        screen: Screen,
        started: Callable[[Run], None] = lambda _: None,
    ) -> int | None:
        """Follows a job that nobody follows any more; its exit status, None where somebody does follow it.

        Args:
            started: called when `status.json` names this process.

        Raises:
            TrainshedError: the run's files are none, or the place does not answer.
        """
        lock = claim(stored.folder, self.place.lock)
        if lock is None:
            return None
        signals = SignalPipe()
        try:
            stored = load(stored.folder)
            if stored.ended:
                return exit_status_of(stored)
            run = stored.run()
            follow = self.reach(stored, run, environ)
            screen.secrets = known_secrets(run.job, environ)
            screen.keep(run.words)
            status = status_of(stored, run, screen.secrets, (self.place.key, *self.kept))
            started(run)
            return follow(screen, signals, status)
        finally:
            signals.close()
            os.close(lock)


def claim(folder: str, lock: str) -> int | None:
    """The lock of a run's follower; None while there is one. Raises TrainshedError where the folder cannot be used."""
    try:
        os.makedirs(os.path.dirname(f"{folder}/{lock}"), exist_ok=True)
        return hold(f"{folder}/{lock}")
    except OSError as error:
        raise TrainshedError(f"cannot follow the job: {error.filename or folder}: {error.strerror}") from error


def finish(run: Run, verdict: RunEnd, ending: Ending, status: StatusFile, metrics: Metrics, screen: Screen) -> int:
    """Collects what a job has left in its folder, writes the last status, shows the summary; the job's exit status."""
    status.to("Uploading")
    archives = collect(run, verdict, screen.status)
    verdict = settled(verdict, archives)
    note_goodput(status, run)
    status.ended(verdict, ending, metrics, archives[0].path, archives)
    seconds = phases_of(run.hosts)
    screen.block(render(run, verdict, seconds, metrics, archives, time.time() - run.started, status.data))
    return verdict.exit_code


def status_of(stored: Stored, run: Run, secrets: tuple[str, ...], kept: tuple[str, ...]) -> StatusFile:
    """The status file of a run that is taken up; it has gone on meanwhile.

    Args:
        kept: what it says of the place, to be kept.
    """
    status = StatusFile(run, before=stored.status, first=stored.said[1], secrets=secrets)
    status.data["Trainshed"] |= {name: stored.ours[name] for name in kept if name in stored.ours}
    status.to(stored.said[1])
    return status


def exit_status_of(stored: Stored) -> int:
    """The exit status of a run that has ended."""
    code = stored.ours.get("ExitCode")
    return code if isinstance(code, int) else 1


def known_secrets(job: Job, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values to be masked; a reference that leads nowhere any more has nothing to hide."""
    try:
        return secrets_of(job, look_up(job, environ))
    except TrainshedError:
        return secrets_of(job, {})
