"""Runs whose runners hold a lock for as long as they live: whoever has started them can be killed, and finds them again.

Trials of a tuning job and steps of a pipeline are such runs.

    no run                       it is to be started
    lock held                    its runner lives, or is just starting: it is watched
    run ended                    what it has made counts
    run not ended, lock free     its runner was killed: it is started again as the job's `retries` say, or has failed
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from trainshed.base.errors import TrainshedError
from trainshed.base.locks import hold, is_held
from trainshed.runner.control.detached import start
from trainshed.runner.control.operations import stop
from trainshed.runner.control.recover import settle, was_lost
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import HERE
from trainshed.runner.state import identity
from trainshed.runner.state.stored import Stored, load

from .folder import Folder

UNTRAINED_STARTS = 3  # of a run whose runner dies before any host has started
READY_SECONDS = 10.0


@dataclass(frozen=True)
class Standing:
    """How a run stands that was started by a program which may be killed and started again.

    run: its files. runner: whether its runner lives, or is just starting.
    """

    run: Stored
    runner: bool

    @property
    def begun(self) -> bool:
        """Whether it has a run at all."""
        return bool(self.run.about)

    @property
    def trained(self) -> bool:
        """Whether its hosts have ever been started."""
        return "TrainingStartTime" in self.run.status

    @property
    def adrift(self) -> bool:
        """Whether somebody else has its job, and nobody follows that."""
        return bool(self.run.submitted) and not self.run.ended and not self.runner

    @property
    def can_be_stopped(self) -> bool:
        """Whether there is a runner, or somebody else, to ask."""
        return bool(self.runner and self.run.runner) or self.adrift

    @property
    def lost(self) -> bool:
        """Whether its runner was killed, and the run with it; also where what it left has been ended since."""
        gone = not self.run.ended or was_lost(self.run)
        return self.begun and not self.runner and not self.adrift and gone

    @property
    def of_another_boot(self) -> bool:
        """Whether the machine has been started again since its runner was: that is not the run's fault."""
        runner = self.run.ours.get("Runner")
        return isinstance(runner, dict) and runner.get("Boot") != identity.mine()["Boot"]


def look_at(run: str) -> Standing:
    """How a run stands now, by its folder."""
    runner = lives(run)  # looked at first: a runner that ends in between has written its files
    return Standing(load(run), runner)


def lives(run: str) -> bool:
    """Whether the runner of a run lives, or is just starting, by the run's folder."""
    return is_held(f"{run}.lock")


@contextmanager
def taken(run: str, folder: Folder) -> Iterator[int]:
    """Holds the lock of a run whose runner is over, or about to be, until another runner has it: a descriptor.

    Args:
        run: its folder. folder: of its batch.

    Raises:
        TrainshedError: it cannot be made, or the runner does not end.
    """
    deadline = time.monotonic() + READY_SECONDS
    with folder.guarded():
        while (fd := hold(f"{run}.lock")) is None:  # a runner writes its summary after its last word
            if time.monotonic() > deadline:
                raise TrainshedError(f"the runner of an earlier start of {run} does not end")
            time.sleep(0.05)
    try:
        yield fd
    finally:
        os.close(fd)


def start_run(
    run: str, job: Job, environ: Mapping[str, str], folder: Folder, again: Run | None = None, on: str = HERE.name
) -> None:
    """Starts the runner of a run in the background; it holds the run's lock.

    Args:
        run: its folder. again: the run that is taken up again. on: the place.

    Raises:
        TrainshedError, JobError: it cannot be started.
    """
    with taken(run, folder) as fd:
        start(job, environ, again, quiet=True, hold=fd, on=on)


def halt(standing: Standing, environ: Mapping[str, str], *, kill: bool) -> None:
    """Asks a run to end and waits until it has. Raises TrainshedError."""
    if standing.can_be_stopped:
        stop(standing.run, environ, _silent, kill=kill)


def give_up(run: Stored, environ: Mapping[str, str]) -> None:
    """Ends what a dead runner has left, keeps its results, writes how the run ended. Raises TrainshedError."""
    settle(run, environ, _silent)


def _silent(_: str) -> None:
    """The batch itself says what it does."""


def gets_another_start(standing: Standing, starts: int, retries: int) -> bool:
    """Whether a run whose runner was killed is started again, after so many times.

    One that had not trained yet has lost nothing, and gets a few more.
    """
    allowed = retries if standing.trained else max(retries, UNTRAINED_STARTS)
    return standing.of_another_boot or starts < allowed


def counts(standing: Standing, *, paused: bool) -> bool:
    """Whether another start is one of those that `gets_another_start` allows: after a kill that may be the run's fault."""
    return standing.lost and not standing.of_another_boot and not paused
