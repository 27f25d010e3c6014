"""The attempts of a run: its hosts are started again after spot interruptions and, as often as `retries` says, failures.

Every attempt starts with an empty tree and with the checkpoints of those before. Inside an attempt `train` restarts its
ranks in place (`max_restarts`); a run that is over is started again with `trainshed resume`.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import replace

from trainshed.machine.signals import SignalPipe, stop_raises

from ..acting import Backend
from ..display.screen import Screen
from ..display.usage import Gauge
from ..files import layout
from ..files.ending import Ending, RunEnd
from ..files.fingerprints import hand_over
from ..files.metrics import Metrics
from ..files.mounts import Mounts
from ..files.pipes import Feeders, survey
from ..files.run import Run
from ..state.status import StatusFile
from ..state.verdict import judge
from .watch import Cause, Limits, Watch

SHORTEST_LIMIT = 0.001  # seconds; a limit that was used up by earlier attempts still stops the hosts


class RunAttempts:
    """Starts the hosts of a placed run until an attempt's ending is the run's.

    Args:
        mounts: of its channels.
        number: attempts of earlier runners that have been put aside.
        started: the hosts of the first attempt run already: a stop signal is theirs from the beginning.
    """

    def __init__(
        self,
        run: Run,
        backend: Backend,
        screen: Screen,
        status: StatusFile,
        metrics: Metrics,
        signals: SignalPipe,
        *,
        mounts: Mounts | None,
        number: int,
        started: bool,
    ) -> None:
        self.run = run
        self.backend = backend
        self.screen = screen
        self.status = status
        self.metrics = metrics
        self.signals = signals
        self.mounts = mounts
        self.number = number
        self.started = started
        self.retries = run.job.retries
        self.interruptions = list(run.job.spot.interrupt_after) if run.job.spot else []
        self.used = 0.0  # seconds that hosts have run in earlier attempts
        self.training_since: float | None = None

    def to_the_end(self) -> Ending:
        """Returns the ending of the last attempt. Raises TrainshedError, and Interrupted before an attempt."""
        while True:
            ending = self._one()
            self.used += ending.seconds
            verdict = judge(self.run, ending)
            interrupted = ending.interrupted and not ending.stop_signal
            failed = verdict.status == "Failed" and not ending.trouble
            if ending.lost:  # another attempt would have neither these results nor these checkpoints
                interrupted = failed = False
            self.status.attempt(ending, "Interrupted" if interrupted else verdict.status)
            if not interrupted and not (failed and self.retries > 0):
                return ending
            if not interrupted:
                self._note_retry(verdict)
            self.started = False
            with stop_raises("before the job was started again"):
                self.number += 1
                layout.put_aside(self.run, self.number)
                layout.place(self.run, interface=self.backend.interface, say=self.screen.say)
            self.status.to("Starting", f"Attempt {self.number + 1}, with the checkpoints of those before")
            self.screen.say(f"attempt {self.number + 1}, with the checkpoints of those before")

    def _note_retry(self, verdict: RunEnd) -> None:
        self.retries -= 1
        reason = verdict.reason.splitlines()[0]
        left = f"{self.retries} more {'retry' if self.retries == 1 else 'retries'} after this one"
        self.screen.say(f"failed: {reason}: trying again, {left}")
        self.status.to("Restarting", f"Attempt {self.number + 1} failed: {reason}")

    def _one(self) -> Ending:
        """Starts the hosts, watches them to their end, brings home what they made, removes them."""
        feeders = None
        try:
            with nullcontext() if self.started else stop_raises("before the job was started"):
                files = survey(self.run, self.screen.say)
                hand_over(self.run, self.mounts.shown if self.mounts else {}, self.screen.say)
            feeders = Feeders(self.run, files, os.environ)
            hosts = self.backend.start(self.run)
            self.status.to("Training")
            watch = Watch(
                self.run,
                hosts,
                self.screen,
                self.metrics,
                self.signals,
                limits=self._limits(time.time()),
                stopping=self._note_stop,
                trouble=lambda: self._trouble(feeders),
                gauge=Gauge(self.run, self.backend.roots),
                secrets=self.screen.secrets,
            )
            ending = self._with_mounts(watch.to_the_end())
            lost = self.backend.fetch(self.run)
            for problem in lost:
                self.screen.say(f"warning: {problem}")
            return replace(ending, lost=lost)
        finally:
            self.backend.clear()
            if feeders is not None:
                feeders.close()

    def _trouble(self, feeders: Feeders) -> str:
        """Why the hosts cannot go on, "" while they can; what rules have found is told on the way."""
        self.status.look_at_rules()
        return feeders.trouble() or (self.mounts.trouble() if self.mounts else "")

    def _with_mounts(self, ending: Ending) -> Ending:
        """What is known of the channels' file systems: a script may meet what is wrong with one before we look."""
        if self.mounts is None or not any(end.code for end in ending.hosts):
            return ending
        return replace(ending, trouble=ending.trouble or self.mounts.trouble(), unread=self.mounts.errors())

    def _limits(self, now: float) -> Limits:
        """What is left of the job's limits for an attempt that starts at `now` (seconds since the epoch)."""
        if self.training_since is None:
            self.training_since = now
        job = self.run.job
        runtime = job.max_runtime_seconds - self.used if job.max_runtime_seconds else None
        wait = None
        if job.spot is not None and job.spot.max_wait_seconds:
            wait = job.spot.max_wait_seconds - (now - self.training_since)
        return Limits(
            runtime=None if runtime is None else max(SHORTEST_LIMIT, runtime),
            wait=None if wait is None else max(SHORTEST_LIMIT, wait),
            interrupt=self.interruptions.pop(0) if self.interruptions else None,
        )

    def _note_stop(self, cause: Cause, reason: str) -> None:
        if cause is Cause.SPOT:
            self.status.to("Interrupted", reason)
        else:
            self.status.to("Stopping", f"Stopping: {reason}")
