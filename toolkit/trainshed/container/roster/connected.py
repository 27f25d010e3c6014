"""The parts that both sides of a roster have in common: turns inside and outside the supervisor's loop, and letters."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from trainshed.base.errors import ClusterError

from ..supervisor.watcher import FOREVER
from .authentication import INCARNATION_BYTES
from .messages import AWAY
from .roster import Preparing, Roster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    from trainshed.contract.outcome import Failure
    from trainshed.machine.signals import Stops

    from ..supervisor.watcher import Supervised
    from .messages import JobVerdict, Report
    from .restart_barrier import Decision, Rest


class ConnectedRoster(Roster):
    """A roster of several hosts.

    What takes time is a generator: it yields for how many seconds it waits at most, and wants `exchange` before it goes on.

    stopping: why all ranks of the job have to stop, "" while they need not.
    doom: why the job cannot start, on host 0 alone, which has to tell the others.
    stop_signal: which stop signal that is (SIGTERM for a notice), so that ranks get the job's whole grace; 0 for neither.
    incarnation: random bytes that tell this process from one that is started in its place.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        rank: int,
        grace: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(names, rank)
        self.grace = grace
        self.say = say
        self.clock = clock
        self.incarnation = os.urandom(INCARNATION_BYTES)
        self.stopping = ""
        self.stop_signal = 0
        self.doom: Failure | None = None
        self.inbox: list[tuple[int, dict[str, Any]]] = []
        self._looked = clock()  # when this process last took its turn

    @property
    def over(self) -> bool:
        """Tells whether the job has ended for this host: its connections are closed for good, or about to be."""
        raise NotImplementedError

    def exchange(self) -> None:
        """Reads what other hosts have sent, and sends what is due."""
        raise NotImplementedError

    def host_lost(self) -> bool:
        """Returns whether a host has vanished."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes all connections."""
        raise NotImplementedError

    def turn(self, run: Supervised) -> None:
        """Exchanges messages; stops this host's ranks when another host fails or is lost."""
        self.exchange()
        if self.stopping:
            run.stop_for_others(self.stopping, bool(self.stop_signal), self.host_lost())

    def wait(self, longest: float) -> None:
        """One turn outside the supervisor's loop: sleeps until something comes, at most `longest` seconds."""
        poll = select.poll()
        for fd, events in self.descriptors().items():
            poll.register(fd, events)
        poll.poll(int(min(longest, self.pause()) * 1000) + 1)
        self.exchange()
        self.on_wait()

    def letters(self) -> list[tuple[int, dict[str, Any]]]:
        """The letters that have come since the last call."""
        inbox, self.inbox = self.inbox, []
        return inbox

    # --- what takes time ---

    def preparing(self) -> Preparing:
        """See `Roster.preparing`."""
        return _Preparing(self)

    def open(self) -> None:
        """Lets other hosts know this one from now on. Called again without harm. Raises ClusterError."""
        self._looked = self.clock()

    def check_start(self) -> None:
        """Raises ClusterError where it is known that the job cannot start, or not with this host."""
        raise NotImplementedError

    def join(self, seconds: float) -> None:
        """See `Roster.join`."""
        for longest in self.joining(seconds):
            self.wait(longest)

    def rest(self, report: Report, decide: Callable[[Rest], Decision], stops: Stops) -> Decision:
        """See `Roster.rest`."""
        waiting, told = self.resting(report, decide), False
        while True:
            if stops.number and not told:
                told = True
                self.interrupted(f"stopped by {signal.Signals(stops.number).name}", stops.number)
            try:
                longest = next(waiting)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            self.wait(longest)

    def leave(self, report: Report) -> JobVerdict:
        """See `Roster.leave`."""
        waiting = self.leaving(report)
        while True:
            try:
                longest = next(waiting)
            except StopIteration as end:
                verdict: JobVerdict = end.value
                return verdict
            self.wait(longest)

    def fail_before_start(self, failure: Failure, seconds: float) -> None:
        """See `Roster.fail_before_start`. Raises ClusterError where the port cannot be used."""
        for longest in self.failing_before_start(failure, seconds):
            self.wait(longest)

    def joining(self, seconds: float) -> Iterator[float]:
        """See `join`."""
        raise NotImplementedError

    def resting(self, report: Report, decide: Callable[[Rest], Decision]) -> Generator[float, None, Decision]:
        """See `rest`; a generator that returns the decision."""
        raise NotImplementedError

    def leaving(self, report: Report) -> Generator[float, None, JobVerdict]:
        """See `leave`; a generator that returns the verdict."""
        raise NotImplementedError

    def failing_before_start(self, failure: Failure, seconds: float) -> Iterator[float]:
        """See `fail_before_start`."""
        raise NotImplementedError

    # --- for subclasses ---

    def _stamped(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message about the ranks that run now, as it is sent: see `rounds`."""
        return message

    def _take_letter(self, sender: int, message: dict[str, Any], taken: int) -> int:
        """Puts a letter into the inbox unless it came before; returns the number of the last one that has come.

        Args:
            taken: that number until now.

        Raises:
            KeyError, ValueError: it is not a letter.
        """
        number, body = message["number"], message["body"]
        if not isinstance(number, int) or not isinstance(body, dict):
            raise ValueError("a letter of no known form")
        if number <= taken:
            return taken
        self.inbox.append((sender, body))
        return number

    def _was_away(self, now: float) -> float:
        """Seconds since the last turn, in which this process was suspended and could hear nobody; 0 for a usual pause."""
        away = now - self._looked
        self._looked = now
        return away if away > AWAY else 0.0


class _Preparing(Preparing):
    """Whoever cannot start is heard while this host installs."""

    def __init__(self, roster: ConnectedRoster) -> None:
        self._roster = roster
        self._opened = False
        self._over = False  # whether a run was abandoned

    def descriptors(self) -> dict[int, int]:
        """Those of the roster."""
        return {} if self._over else self._roster.descriptors()

    def pause(self) -> float:
        """That of the roster."""
        return FOREVER if self._over else self._roster.pause()

    def turn(self, run: Supervised) -> None:
        """Exchanges messages; abandons the run when the job cannot start any more."""
        if self._over:
            return
        try:
            self.look()
        except ClusterError as error:
            self._over = True
            run.abandon(error)

    def look(self) -> None:
        """See `Preparing.look`."""
        if not self._opened:
            self._opened = True
            with suppress(ClusterError):  # it is tried again when the hosts are to meet, and said then
                self._roster.open()
        self._roster.exchange()
        self._roster.check_start()
