"""Watches the hosts of one attempt from their start to the end of the last one: one loop, one thread.

It sleeps in `poll` on the hosts' pipes and on the signal pipe, and otherwise wakes only for deadlines and the status line.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO

from trainshed.base.units import duration
from trainshed.machine.signals import STOP_SIGNALS, SignalPipe

from ..acting.base import RunningHost
from ..display.screen import Screen
from ..display.stream import HostStream
from ..files.ending import Ending, HostEnd
from ..files.grace import KILL_SECONDS
from ..files.metrics import Metrics
from ..files.run import Run
from ..job.least_hosts import least_hosts

FAILURE_GRACE = 30.0  # seconds that the other hosts get once one has failed
HURRY_SECONDS = 5.0  # for `train` to kill its script and to report, before it is killed itself
TICK = 1.0  # seconds between two looks at the clock for the status


class WatchPhase(Enum):
    """The phases of a watch over hosts. A watch goes through the phases in this order and may leave some out.

    RUNNING:  the hosts run. A `Cause` ends this phase.
    STOPPING: the hosts were asked to end (SIGTERM). Each has its grace and KILL_SECONDS. Ends at that deadline, or at the
              second Ctrl-C.
    HURRIED:  `train` was asked to kill its script and to report (SIGINT after the stop signal). Ends HURRY_SECONDS later, or
              at another Ctrl-C.
    KILLED:   the hosts were killed. There is no deadline: the kernel ends them.

    The watch ends in any phase, as soon as no host runs.
    """

    RUNNING = 0
    STOPPING = 1
    HURRIED = 2
    KILLED = 3


class Cause(Enum):
    """Why hosts were asked to stop. The first cause counts; a stop signal that comes later is noted in `stop_signal`.

    HOST:    another host failed.
    SIGNAL:  a stop signal came from outside.
    RUNTIME: the hosts have run for `max_runtime_seconds`.
    WAIT:    the job, interruptions included, has taken `max_wait_seconds`.
    SPOT:    spot capacity was taken away.
    TROUBLE: something that the hosts need has failed on this side, like a Pipe channel.
    """

    HOST = 0
    SIGNAL = 1
    RUNTIME = 2
    WAIT = 3
    SPOT = 4
    TROUBLE = 5


@dataclass(frozen=True)
class Limits:
    """When the watch itself stops the hosts, in seconds from its start; None for never.

    runtime: the job's time for running. wait: its time with all interruptions. interrupt: spot capacity goes.
    """

    runtime: float | None = None
    wait: float | None = None
    interrupt: float | None = None

    def next(self) -> float | None:
        """The first of them."""
        given = (self.runtime, self.wait, self.interrupt)
        return min((seconds for seconds in given if seconds is not None), default=None)


class Watch:
    """One watch; `to_the_end` runs it.

    Args:
        signals: stop signals and SIGUSR2 (a spot interruption) arrive here.
        stopping: called with (cause, reason) when hosts are asked to stop, and when a stop signal follows an interruption.
        trouble: asked now and then; a text that it returns stops the job.
        gauge: parts of the status line that say what the hosts use.
        secrets: values that are masked in what hosts print.
    """

    def __init__(
        self,
        run: Run,
        hosts: list[RunningHost],
        screen: Screen,
        metrics: Metrics,
        signals: SignalPipe,
        *,
        limits: Limits,
        stopping: Callable[[Cause, str], None],
        trouble: Callable[[], str],
        gauge: Callable[[], list[str]],
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.run = run
        self.hosts = hosts
        self.screen = screen
        self.metrics = metrics
        self.signals = signals
        self.limits = limits
        self.stopping = stopping
        self.trouble = trouble
        self.gauge = gauge
        self.secrets = secrets
        self.phase = WatchPhase.RUNNING
        self.deadline: float | None = None  # of the phase, on the monotonic clock
        self.cause: Cause | None = None
        self.problem = ""  # what `trouble` has said
        self.stop_signal = 0  # the first that came
        self.ended: list[HostEnd] = []
        self.streams: dict[str, list[HostStream]] = {}
        self.outputs = [host.output for host in run.hosts]
        self.preparing = list(run.hosts)  # whose `train` has not started the script
        self.start = time.monotonic()

    def to_the_end(self) -> Ending:
        """Returns when no host runs and everything that they printed has been passed on."""
        with ExitStack() as files:
            for host in self.hosts:
                log = files.enter_context(open(self.run.log(host.name), "ab", buffering=0))
                self.streams[host.name] = self._streams_of(host, log)
            while self.living:
                self.wait()
                self.pass_news_on()
                self.reap()
                self.check_deadlines()
                if self.living:
                    self.screen.status(self.describe)
        for problem in dict.fromkeys(stream.log_problem for pair in self.streams.values() for stream in pair):
            if problem:
                self.screen.say(f"warning: {problem}")
        return Ending(
            hosts=tuple(self.ended),
            stop_signal=self.stop_signal,
            timed_out=self.cause in (Cause.RUNTIME, Cause.WAIT),
            killed=self.phase in (WatchPhase.HURRIED, WatchPhase.KILLED),
            seconds=time.monotonic() - self.start,
            waited=self.cause is Cause.WAIT,
            interrupted=self.cause is Cause.SPOT,
            trouble=self.problem,
        )

    def _streams_of(self, host: RunningHost, log: BinaryIO) -> list[HostStream]:
        tag = host.name if len(self.hosts) > 1 else ""
        pipes = ((host.process.stdout, False), (host.process.stderr, True))
        return [
            HostStream(pipe.fileno(), self.screen, self.metrics, tag, log, error=error, secrets=self.secrets)
            for pipe, error in pipes
            if pipe is not None
        ]

    @property
    def living(self) -> list[RunningHost]:
        """The hosts that still run."""
        over = {end.name for end in self.ended}
        return [host for host in self.hosts if host.name not in over]

    @property
    def ran(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def wait(self) -> None:
        """Sleeps until something happens or a second is over, then passes output on and handles signals."""
        poll = select.poll()
        poll.register(self.signals.fd, select.POLLIN)
        streams = {}
        if not self.screen.full:
            streams = {stream.fd: stream for pair in self.streams.values() for stream in pair if stream.open}
        for fd in streams:
            poll.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
        for fd in self.screen.waiting:
            poll.register(fd, select.POLLOUT)
        ready = dict(poll.poll(self.milliseconds()))
        for fd, stream in streams.items():
            if fd in ready:
                stream.read()
        self.screen.flush({fd: bool(bits & select.POLLOUT) for fd, bits in ready.items()})
        if self.signals.fd in ready:
            for number in self.signals.take():
                self.signalled(number)

    def pass_news_on(self) -> None:
        """Says what the places have to tell of their hosts."""
        for host in self.living:
            for message in host.news():
                self.screen.say(message)

    def milliseconds(self) -> int:
        """How long to sleep at most."""
        limit = TICK
        if self.deadline is not None:
            limit = min(limit, self.deadline - time.monotonic())
        first = self.limits.next()
        if self.phase is WatchPhase.RUNNING and first is not None:
            limit = min(limit, first - self.ran)
        return max(0, int(limit * 1000)) + 1

    def reap(self) -> None:
        """Notes hosts that have ended; when one has failed, the others are stopped, so that all end together."""
        for host in self.living:
            if host.process.poll() is None:
                continue
            for stream in self.streams[host.name]:
                while stream.read():
                    self.screen.flush()
                stream.close()
            for message in host.news():
                self.screen.say(message)
            end = host.exit()
            self.ended.append(HostEnd(host.name, end.code, end.note, asked=self.phase is not WatchPhase.RUNNING))
            others = ", ".join(other.name for other in self.living)
            if not (end.code and others and self.phase is WatchPhase.RUNNING):
                continue
            if 0 < least_hosts(self.run.job) <= len(self.living):  # they agree how the job ends, or go on without it
                self.screen.say(f"{host.name} exited with {end.code}: {others} may go on without it")
            else:
                self.screen.say(f"{host.name} exited with {end.code}: stopping {others}")
                grace = min(FAILURE_GRACE, self.run.job.grace_seconds)
                self.ask_to_stop(Cause.HOST, grace, f"{host.name} failed")

    def signalled(self, number: int) -> None:
        """Handles a signal: the first stop signal asks hosts to end, Ctrl-C after that kills; SIGUSR2 interrupts spot."""
        if number in STOP_SIGNALS:
            self.stop_asked(number)
        elif number == signal.SIGUSR2 and self.run.job.spot is not None and self.phase is WatchPhase.RUNNING:
            self.interrupt()

    def stop_asked(self, number: int) -> None:
        """A stop signal from outside."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if self.stop_signal:
            if number == signal.SIGINT:
                self.kill("killing the job")
            return
        self.stop_signal = number
        grace = self.run.job.grace_seconds
        self.screen.say(f"{name}: stopping the job; the script has {duration(grace)} to end. Ctrl-C again kills it")
        if self.phase is WatchPhase.RUNNING:
            self.ask_to_stop(Cause.SIGNAL, grace, f"stopped by {name}")
        elif self.cause is Cause.SPOT:  # else another attempt would follow
            self.stopping(Cause.SIGNAL, f"stopped by {name}")

    def interrupt(self) -> None:
        """Spot capacity goes: the time for it has come, or SIGUSR2 has."""
        ran = duration(self.ran)
        grace = self.run.job.grace_seconds
        self.screen.say(f"spot interruption after {ran}: the script has {duration(grace)} to end")
        self.ask_to_stop(Cause.SPOT, grace, f"Spot capacity was taken away after {ran} of training")

    def ask_to_stop(self, cause: Cause, grace: float, reason: str) -> None:
        """Asks all hosts to end within `grace` seconds."""
        self.phase = WatchPhase.STOPPING
        self.cause = cause
        self.deadline = time.monotonic() + grace + KILL_SECONDS
        self.stopping(cause, reason)
        for host in self.living:
            host.stop(grace)

    def kill(self, why: str) -> None:
        """Ends all hosts now: at the first call so that `train` can still report, then for good."""
        self.screen.say(why)
        if self.phase in (WatchPhase.HURRIED, WatchPhase.KILLED):
            self.phase = WatchPhase.KILLED
            self.deadline = None
            for host in self.living:
                host.kill()
        else:
            self.phase = WatchPhase.HURRIED
            self.deadline = time.monotonic() + HURRY_SECONDS
            for host in self.living:
                host.hurry()

    def check_deadlines(self) -> None:
        """Stops hosts whose time is over, and kills those whose grace is."""
        if not self.living:
            return
        if self.phase is WatchPhase.RUNNING:
            self._check_limits()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            names = ", ".join(host.name for host in self.living)
            self.kill(f"{names} did not end in time: killing")

    def _check_limits(self) -> None:
        ran = self.ran
        limits = self.limits
        grace = self.run.job.grace_seconds
        if limits.runtime is not None and ran >= limits.runtime:
            self.screen.say(f"the job reached its time limit of {duration(self.run.job.max_runtime_seconds)}: stopping it")
            self.ask_to_stop(Cause.RUNTIME, grace, "time limit reached")
        elif limits.wait is not None and ran >= limits.wait:
            self.screen.say("the job reached its time limit, interruptions included: stopping it")
            self.ask_to_stop(Cause.WAIT, grace, "time limit reached, interruptions included")
        elif limits.interrupt is not None and ran >= limits.interrupt:
            self.interrupt()
        elif problem := self.trouble():
            self.problem = problem
            self.screen.say(f"{problem}: stopping the job")
            self.ask_to_stop(Cause.TROUBLE, min(FAILURE_GRACE, grace), problem)

    def describe(self) -> str:
        """The status line: phase, time, step, metrics, use of the machine, last checkpoint."""
        parts = [self._phase_name(), duration(self.ran)]
        if len(self.living) < len(self.hosts):
            parts.append(f"{len(self.living)} of {len(self.hosts)} hosts")
        return " · ".join([*parts, *self.metrics.now(self.outputs), *self.gauge()])

    def _phase_name(self) -> str:
        if self.phase is not WatchPhase.RUNNING:
            return "interrupted" if self.cause is Cause.SPOT else "stopping"
        self.preparing = [host for host in self.preparing if not os.path.exists(host.record)]
        return "preparing" if self.preparing else "training"
