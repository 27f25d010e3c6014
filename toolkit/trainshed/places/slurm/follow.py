"""Follows a job on Slurm: one loop over the nodes' logs, the job's state and our own signals."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainshed.base.files import write_atomic
from trainshed.base.units import duration
from trainshed.machine.hostlist import expand
from trainshed.machine.signals import STOP_SIGNALS, SignalPipe
from trainshed.runner.display.screen import Screen
from trainshed.runner.files.grace import KILL_SECONDS
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import Run

from ..tail import Tail
from .client import PENDING, Client, SlurmError, State
from .script import CANCELLED

LOOK_SECONDS = 0.5  # between two looks at the logs
ASK_SECONDS = 2.0  # between two questions to the controller, which serves a whole cluster
LATE_SECONDS = 10.0  # that lines may take to come over a shared file system once the job is over
SILENT_SECONDS = 600.0  # that the controller may be away


@dataclass(frozen=True)
class SlurmJobEnd:
    """How it ended. state: None where Slurm knows nothing of it any more; stop_signal: the first that came to us."""

    state: State | None
    stop_signal: int = 0
    seconds: float = 0.0


@dataclass
class SlurmFollower:
    """The state of the loop; `to_the_end` runs it.

    changed: called with every new state.
    """

    run: Run
    job: int
    client: Client
    screen: Screen
    metrics: Metrics
    signals: SignalPipe
    changed: Callable[[State], None] = lambda _: None
    state: State = field(default_factory=lambda: State(PENDING))
    stop_signal: int = 0
    cancel_at: float | None = None

    def to_the_end(self) -> SlurmJobEnd:
        """Until the job is over and everything it printed has been passed on."""
        start = time.monotonic()
        tails = [Tail(f"{self.run.folder}/logs/slurm.log", error=True)]
        tails += [Tail(f"{self.run.folder}/logs/node-{number}.log") for number in range(len(self.run.hosts))]
        ask_at, answered = 0.0, start
        while True:
            now = time.monotonic()
            if now >= ask_at:
                ask_at = now + ASK_SECONDS
                try:
                    state = self.client.state(self.job)
                    answered = now
                except SlurmError as error:
                    if now - answered > SILENT_SECONDS:
                        raise
                    self.screen.status(error.message)
                    state = self.state
                if state is None:
                    self._pass_on(tails, last=True)
                    return SlurmJobEnd(None, self.stop_signal, now - start)
                self._note(state, tails)
                if state.over:
                    break
            self._pass_on(tails)
            self._wait()
            if self.cancel_at is not None and time.monotonic() >= self.cancel_at:
                self.cancel_at = None
                self.screen.say("the job did not end in time: cancelling it")
                self.client.cancel(self.job)
        self._late_lines(tails)
        self._pass_on(tails, last=True)
        return SlurmJobEnd(self.state, self.stop_signal, time.monotonic() - start)

    def _note(self, state: State, tails: list[Tail]) -> None:
        if state == self.state:
            return
        old, self.state = self.state, state
        if state.nodes != old.nodes and state.nodes and len(tails) > 2:
            for tail, node in zip(tails[1:], expand(state.nodes), strict=False):
                tail.tag = node.encode()
        if state.restarts > old.restarts:
            self.screen.say(f"job {self.job} was queued again (start {state.restarts + 1})")
        if state.state != old.state or (state.state == PENDING and state.reason != old.reason):
            why = f" ({state.reason})" if state.reason and not state.over else ""
            where = f" on {state.nodes}" if state.nodes and not state.over else ""
            self.screen.say(f"job {self.job}: {state.state.lower()}{why}{where}")
        self.changed(state)

    def _pass_on(self, tails: list[Tail], last: bool = False) -> None:
        for tail in tails:
            while not self.screen.full and (lines := tail.read()):
                self.metrics.scan(lines)
                self.screen.lines(lines, error=tail.error)
                self.screen.flush()
            if last and (lines := tail.rest()):
                self.screen.lines(lines, error=tail.error)
        self.screen.status(" · ".join([self.state.state.lower(), *self.metrics.now()]))
        self.screen.flush()

    def _late_lines(self, tails: list[Tail]) -> None:
        """Waits for the batch script's last line, which may come late over a network file system."""
        until = time.monotonic() + LATE_SECONDS
        path = f"{self.run.folder}/logs/slurm.log"
        while self.state.state in ("COMPLETED", "FAILED") and time.monotonic() < until:
            try:
                with open(path, "rb") as file:
                    if b"trainshed: the step ended with" in file.read().rpartition(b"trainshed: start ")[2]:
                        return
            except OSError:
                pass
            time.sleep(0.1)
            self._pass_on(tails)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.signals.fd, select.POLLIN)
        if poll.poll(LOOK_SECONDS * 1000):
            for number in self.signals.take():
                if number in STOP_SIGNALS:
                    self._stop(number)

    def _stop(self, number: int) -> None:
        """A stop signal from outside: the first asks the script to end, Ctrl-C again cancels."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        again, self.stop_signal = bool(self.stop_signal), self.stop_signal or number
        # The batch script must not queue again what is being stopped.
        write_atomic(f"{self.run.folder}/{CANCELLED}", b"")
        if self.state.state == PENDING or again:
            if not again or number == signal.SIGINT:
                self.screen.say(f"{name}: cancelling job {self.job}")
                self.client.cancel(self.job)
            return
        grace = self.run.job.grace_seconds
        self.screen.say(f"{name}: stopping job {self.job}; the script has {duration(grace)} to end. Ctrl-C again cancels it")
        self.cancel_at = time.monotonic() + grace + KILL_SECONDS
        self.client.ask_to_stop(self.job)


def nodes_of(state: State | None, count: int) -> tuple[str, ...]:
    """The names of the nodes that the job ran on last, () where it never did."""
    names = expand(state.nodes) if state is not None and state.nodes else ()
    return names if len(names) == count else ()
