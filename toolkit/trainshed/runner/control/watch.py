"""Watches the hosts of a run from their start to the end of the last one: one loop, one thread.

It sleeps in `poll` on the hosts' pipes and on the signal pipe, and wakes besides only for deadlines and the status line.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from trainshed.base.units import duration
from trainshed.machine.signals import STOP_SIGNALS, SignalPipe

from ..display.screen import Screen
from ..display.stream import HostStream
from ..places.base import RunningHost
from ..run.ending import Ending, HostEnd
from ..run.grace import KILL_SECONDS
from ..run.metrics import Metrics
from ..run.run import Run

FAILURE_GRACE = 30.0  # seconds that the other hosts get once one has failed
HURRY_SECONDS = 5.0  # that `train` gets to kill its script and to report, before it is killed itself
TICK = 1.0  # seconds between two looks at the clock for the status


@dataclass
class Watch:
    """The state of one watch; `to_the_end` runs it.

    stopping: called once, with the reason, when hosts are first asked to stop; interrupting, where spot capacity goes.
    runtime: seconds that the hosts may run, 0 for any time; wait: the same for the whole job.
    interrupt_after: seconds after which spot capacity is taken away.
    trouble: asked now and then; what it says, if anything, ends the job.
    gauge: what the hosts use at present, for the line of status.
    """

    run: Run
    hosts: list[RunningHost]
    screen: Screen
    metrics: Metrics
    signals: SignalPipe
    stopping: Callable[[str], None] = lambda _: None
    interrupting: Callable[[str], None] = lambda _: None
    runtime: float = 0.0
    wait_limit: float = 0.0
    interrupt_after: float | None = None
    trouble: Callable[[], str] = lambda: ""
    gauge: Callable[[], list[str]] = list
    secrets: tuple[str, ...] = ()
    streams: dict[str, list[HostStream]] = field(default_factory=dict)
    ended: list[HostEnd] = field(default_factory=list)
    stop_signal: int = 0
    timed_out: bool = False
    waited: bool = False
    interrupted: bool = False
    killed: bool = False
    asked: bool = False
    troubled: str = ""
    kill_at: float | None = None
    preparing: set[str] = field(default_factory=set)

    def to_the_end(self) -> Ending:
        """Until no host runs and everything they printed has been passed on."""
        self.start = time.monotonic()
        self.preparing = {host.name for host in self.run.hosts}
        with ExitStack() as files:
            for host in self.hosts:
                log = files.enter_context(open(self.run.log(host.name), "ab", buffering=0))
                tag = host.name if len(self.hosts) > 1 else ""
                pipes = (host.process.stdout, host.process.stderr)
                self.streams[host.name] = [
                    HostStream(pipe.fileno(), self.screen, self.metrics, tag, log, error=number == 1, secrets=self.secrets)
                    for number, pipe in enumerate(pipes)
                    if pipe is not None
                ]
            while self.living:
                self.wait()
                self.reap()
                self.check_deadlines()
                if self.living:
                    self.screen.status(self.describe)
        return Ending(
            tuple(self.ended),
            self.stop_signal,
            self.timed_out,
            self.killed,
            time.monotonic() - self.start,
            self.waited,
            self.interrupted,
            self.troubled,
        )

    @property
    def living(self) -> list[RunningHost]:
        """The hosts that still run."""
        over = {end.name for end in self.ended}
        return [host for host in self.hosts if host.name not in over]

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
                if number in STOP_SIGNALS:
                    self.stop_asked(number)
                elif number == signal.SIGUSR2 and self.run.job.spot is not None and not self.asked:
                    self.interrupt()

    def milliseconds(self) -> int:
        """How long to sleep at most."""
        now, limit = time.monotonic(), TICK
        if self.kill_at is not None:
            limit = min(limit, self.kill_at - now)
        if not self.asked:
            deadlines = [seconds for seconds in (self.runtime, self.wait_limit) if seconds]
            if self.interrupt_after is not None:
                deadlines.append(self.interrupt_after)
            limit = min([limit, *(self.start + seconds - now for seconds in deadlines)])
        return max(0, int(limit * 1000)) + 1

    def reap(self) -> None:
        """Notes hosts that have ended; when one has failed, the others are stopped so that all leave together."""
        for host in self.living:
            if host.process.poll() is None:
                continue
            for stream in self.streams[host.name]:
                while stream.read():
                    self.screen.flush()
                stream.close()
            end = host.exit()
            self.ended.append(HostEnd(host.name, end.code, end.note, self.asked))
            others = self.living
            if end.code and others and not self.asked:
                names = ", ".join(other.name for other in others)
                self.screen.say(f"{host.name} exited with {end.code}: stopping {names}")
                self.ask_to_stop(min(FAILURE_GRACE, self.run.job.grace_seconds), f"{host.name} failed")

    def stop_asked(self, number: int) -> None:
        """A stop signal from outside: the first asks, Ctrl-C again kills."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if self.stop_signal:
            if number == signal.SIGINT:
                self.kill("killing the job")
            return
        self.stop_signal = number
        grace = self.run.job.grace_seconds
        self.screen.say(f"{name}: stopping the job; the script has {duration(grace)} to end. Ctrl-C again kills it")
        if self.asked:
            if self.interrupted:
                self.stopping(f"stopped by {name}")
            return
        self.ask_to_stop(grace, f"stopped by {name}")

    def interrupt(self) -> None:
        """Spot capacity goes: its time has come, or somebody sent SIGUSR2."""
        ran, grace = duration(time.monotonic() - self.start), self.run.job.grace_seconds
        self.interrupted = True
        self.screen.say(f"spot interruption after {ran}: the script has {duration(grace)} to end")
        self.ask_to_stop(grace, f"Spot capacity was taken away after {ran} of training")

    def ask_to_stop(self, grace: float, reason: str) -> None:
        """Asks all hosts to end, and starts the clock."""
        self.asked = True
        self.kill_at = time.monotonic() + grace + KILL_SECONDS
        (self.interrupting if self.interrupted else self.stopping)(reason)
        for host in self.living:
            host.stop(grace)

    def kill(self, why: str) -> None:
        """Ends all hosts now: first so that `train` can still report, then, or if asked again, for good."""
        self.screen.say(why)
        for host in self.living:
            if self.killed:
                host.kill()
            else:
                host.hurry()
        self.kill_at = None if self.killed else time.monotonic() + HURRY_SECONDS
        self.killed = True

    def check_deadlines(self) -> None:
        """The job's time, spot's end, and the grace of hosts that were asked to stop."""
        now = time.monotonic()
        ran = now - self.start
        grace = self.run.job.grace_seconds
        if not self.asked and self.living:
            if self.runtime and ran >= self.runtime:
                self.timed_out = True
                self.screen.say(f"the job's {duration(self.run.job.max_runtime_seconds)} are over: stopping it")
                self.ask_to_stop(grace, "its time is over")
            elif self.wait_limit and ran >= self.wait_limit:
                self.timed_out = self.waited = True
                self.screen.say("the job's time, interruptions included, is over: stopping it")
                self.ask_to_stop(grace, "its time, interruptions included, is over")
            elif self.interrupt_after is not None and ran >= self.interrupt_after:
                self.interrupt()
            elif problem := self.trouble():
                self.troubled = problem
                self.screen.say(f"{problem}: stopping the job")
                self.ask_to_stop(min(FAILURE_GRACE, grace), problem)
        if self.kill_at is not None and now >= self.kill_at and self.living:
            self.kill(f"{', '.join(host.name for host in self.living)} did not end in time: killing")

    def describe(self) -> str:
        """The status line: phase, time, step, metrics, use of the machine, last checkpoint."""
        for host in self.run.hosts:
            if host.name in self.preparing and os.path.exists(host.record):
                self.preparing.discard(host.name)
        phase = "interrupted" if self.interrupted else "stopping" if self.asked else "training"
        if self.preparing and not self.asked:
            phase = "preparing"
        parts = [phase, duration(time.monotonic() - self.start)]
        if len(self.living) < len(self.hosts):
            parts.append(f"{len(self.living)} of {len(self.hosts)} hosts")
        return " · ".join([*parts, *self.metrics.now(), *self.gauge()])
