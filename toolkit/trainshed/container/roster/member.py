"""The roster of every host but the first: connects to host 0, again whenever the connection breaks."""

from __future__ import annotations

import time

from trainshed.base.errors import ClusterError
from trainshed.contract.outcome import Failure

from ..cluster.hosts import resolves
from .connected import ConnectedRoster
from .connector import RETRY_SECONDS, Dialer
from .messages import (
    ALIVE_EVERY,
    GONE_AFTER,
    LOST_AFTER,
    VERDICT_AFTER,
    FailedElsewhere,
    JobVerdict,
    Report,
    failure_of_json,
    line_of,
    signal_of,
)
from .verdict import STARTED_AGAIN, of_host0, stop_failure, suspended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    from .authentication import JobKey
    from .link import Link

PATIENCE = 10.0  # seconds beyond the limit for host 0 to say who is missing
REFUSED_SECONDS = 5.0  # that every attempt to prove this host has to fail before it is believed: nobody has proven that
SAY_EVERY = 5.0  # seconds between two messages that other hosts are awaited
RECONNECT_AFTER = 5 * ALIVE_EVERY  # of silence: a new connection may get through sooner


class Member(ConnectedRoster):
    """The roster as a host other than the first sees it. role: what host 0 is called beside its name."""

    role = "the first host"

    def __init__(
        self,
        hosts: tuple[str, ...],
        rank: int,
        address: tuple[str, int],
        key: JobKey,
        grace: float,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            hosts: the job's hosts in the agreed order.
            rank: this host's index among them.
            address: name and port of host 0.
            key: what hosts of this job prove to know.
            grace: seconds that ranks get after a stop signal.
            say: prints a message for the user.
        """
        super().__init__(hosts, rank, grace, say, clock)
        now = clock()
        self.address = address
        self.dialer = Dialer(address, hosts[0], rank, key, self.incarnation)
        self.link: Link | None = None
        self.leader = b""  # host 0's incarnation
        self.seen = now  # when host 0 was last heard
        self.since = now  # from when on its silence counts: `seen`, plus the time in which this process was suspended
        self.closed = False  # whether host 0 has closed the connection since it was last heard
        self.going = False  # whether the job has started
        self.refused = ""  # why host 0 does not let this host in
        self.verdict: JobVerdict | None = None
        self.given_up: Failure | None = None  # that host 0 was lost; its verdict counts more, if it comes back
        self.left = False  # whether host 0's own ranks have ended
        self.unsaid: list[dict[str, Any]] = []  # sent again on a new connection
        self.posted = 0  # number of the last letter to host 0's launcher
        self.taken = 0  # number of the last one from there
        self._next_alive = 0.0
        self._away = 0.0  # the longest time in which this process was suspended

    @property
    def over(self) -> bool:
        """Tells whether host 0 has given the verdict, or does not want this host."""
        return self.verdict is not None or bool(self.refused)

    # --- joining ---

    def joining(self, seconds: float) -> Iterator[float]:
        """Waits until all hosts are there.

        Raises:
            ClusterError: host 0 did not answer in `seconds`, or says that other hosts are missing.
            FailedElsewhere: the job cannot start, or goes on without this host.
        """
        self.open()
        self._tell({"type": "ready"})
        start = said = self.clock()
        while not self.going:
            yield 0.2
            now = self.clock()
            self.check_start()
            # While connected, wait longer: host 0 gives up first, and knows more about why.
            if now - start > seconds + (PATIENCE if self.link is not None else 0.0):
                raise ClusterError(
                    f"{self.names[0]} did not let the job start within {seconds:.0f} s{self._unknown()}",
                    hint=f"{self.names[0]} waits for other hosts, installs something, or is not there: look at its log; "
                    f"port {self.address[1]} must be open between the hosts",
                )
            if now - said >= SAY_EVERY:
                said = now
                state = "has not started the job yet" if self.link else f"does not answer on port {self.address[1]} yet"
                self.say(f"waiting for {self.names[0]}: it {state} ({now - start:.0f} s of {seconds:.0f} s)")

    def check_start(self) -> None:
        """Raises what ends the wait for the start of the job: ClusterError, FailedElsewhere."""
        now = self.clock()
        if self.refused:
            raise ClusterError(self.refused)
        if self.verdict is not None:
            failure = self.verdict.failure
            self.close()
            if failure is not None:
                raise FailedElsewhere(failure)
            raise ClusterError("the other hosts have ended the job without this one")
        if self.stopping and self.closed and now - self.since > GONE_AFTER:  # nobody is left to give the verdict
            raise FailedElsewhere(stop_failure(self.stopping, self.names[0], self.stop_signal))
        if self.link is None and self.dialer.failing and now - self.dialer.failing_since > REFUSED_SECONDS:
            raise ClusterError(self.dialer.failing)

    def _unknown(self) -> str:
        known = self.link is not None or resolves(self.address[0])
        return "" if known else f" (no such host name: {self.address[0]})"

    def failing_before_start(self, failure: Failure, seconds: float) -> Iterator[float]:
        """Tells host 0, if it can be reached within `seconds`, that this host could not start."""
        self.open()
        state = "interrupted" if failure.kind == "Interrupted" else "failed"
        self._tell(Report(state=state, failure=failure).message())
        end = self.clock() + seconds
        while self.clock() < end and not self.over:
            yield 0.2
        self.close()

    # --- watched by the supervisor ---

    def descriptors(self) -> dict[int, int]:
        """The connection, or the one that is being made."""
        return dict([self.link.descriptor()]) if self.link is not None else self.dialer.descriptors()

    def pause(self) -> float:
        """Seconds until the next sign of life or attempt to connect is due."""
        return RETRY_SECONDS if self.link is None else max(0.0, self._next_alive - self.clock())

    def exchange(self) -> None:
        """Reads what has come, keeps the connection, sends signs of life, and notes when host 0 is lost."""
        now = self.clock()
        away = self._was_away(now)
        if away:
            self._away = max(self._away, away)
            self.since = min(now, self.since + away)
            if self.link is not None:
                self.link.seen = min(now, self.link.seen + away)
        if self.link is not None:
            self._read(self.link, now)  # before the link may be given up: what has come may be the verdict
        if self.link is not None and now - self.link.seen > RECONNECT_AFTER:
            self.link.close()
            self.link = None
            self.dialer.hurry()
        if self.link is None:
            self._connect(now)
        if self.link is not None and now >= self._next_alive:
            self._next_alive = now + ALIVE_EVERY
            if not self.link.waiting:  # on a slow line it would keep what matters waiting
                self.link.send({"type": "alive"})
        if self.verdict is None and self.given_up is None and self._lost(now):
            self._give_up_host0(self._vanished(now))

    def host_lost(self) -> bool:
        """Returns whether host 0 has vanished."""
        return self.given_up is not None or self._lost(self.clock())

    def failed(self, why: str) -> None:
        """A rank of this host has failed: all hosts are to stop."""
        self._tell({"type": "failing", "why": why})

    def interrupted(self, why: str, number: int) -> None:
        """This host was sent a stop signal: all hosts are to stop."""
        self._tell({"type": "interrupted", "why": why, "signal": number})

    # --- letters between the launchers of the hosts ---

    def post(self, to: int, body: dict[str, Any]) -> None:
        """Sends a letter to host 0's launcher."""
        assert to == 0, "hosts other than the first talk to it alone"
        self.posted += 1
        self._tell({"type": "letter", "number": self.posted, "body": body})

    def absent(self) -> set[int]:
        """Host 0's node rank if it is lost or has ended; else an empty set."""
        return {0} if self.left or self.verdict is not None or self.given_up is not None else set()

    def send(self, message: dict[str, Any]) -> bool:
        """Sends host 0 a message that is of no use later; False where there is no connection now."""
        if self.link is not None:
            self.link.send(self._stamped(message))
        return self.link is not None

    # --- the end ---

    def leaving(self, report: Report) -> Generator[float, None, JobVerdict]:
        """Reports how this host ended and waits for the verdict on the whole job; at most until host 0 is lost."""
        report = report if report.cause is not None else report.replace(cause=self.given_up)
        self._tell(report.message())
        start = said = self.clock()
        while self.verdict is None:
            if self.given_up is not None and self.link is None:
                break
            now = self.clock()
            if self.stopping and now - start > 2 * VERDICT_AFTER + (self.grace if self.stop_signal else 0.0):
                break
            if now - said >= 6 * SAY_EVERY:
                said = now
                self.say("this host has ended; waiting for the other hosts")
            yield 0.5
        self.close()
        return self.verdict or JobVerdict(failure=self._failure_without_verdict(report))

    def _failure_without_verdict(self, report: Report) -> Failure:
        """Why the job has failed, as far as this host knows."""
        if self.given_up is not None:
            return self.given_up
        if report.state == "failed" and report.failure is not None:
            return report.failure
        why = self.stopping or f"{self.names[0]} (the first host) did not say how the job ended"
        return stop_failure(why, self.names[0], self.stop_signal)

    def close(self) -> None:
        """Closes the connection."""
        if self.link is not None:
            self.link.send({"type": "bye"})
            self.link.close()
        self.dialer.close()
        self.link = None

    # --- host 0 is lost ---

    def _lost(self, now: float) -> bool:
        if not self.going:
            return False
        return now - self.since > (GONE_AFTER if self.closed else LOST_AFTER)

    def _vanished(self, now: float) -> Failure:
        if self._away > LOST_AFTER:  # whatever else there was: for the others this host is lost
            return suspended(self.names[self.rank], self._away)
        if self.stopping:  # it has said why; the verdict itself is lost
            return stop_failure(self.stopping, self.stopping.partition(":")[0], self.stop_signal)
        return of_host0(self.names[0], f"vanished: no sign of life for {now - self.seen:.0f} s", self.role)

    def _give_up_host0(self, failure: Failure) -> None:
        self.given_up = failure
        self.stopping = self.stopping or failure.summary
        self._tell({"type": "failing", "why": failure.summary})  # for one that comes back

    # --- the connection ---

    def _tell(self, message: dict[str, Any]) -> None:
        message = message if message["type"] in ("ready", "interrupted") else self._stamped(message)
        self.unsaid.append(message)
        if self.link is not None:
            self.link.send(message)

    def _connect(self, now: float) -> None:
        """Takes the next step towards a connection; on a new one, says again what host 0 may have missed."""
        made = self.dialer.turn(now)
        if made is None:
            return
        self.link, incarnation = made
        if self.leader not in (b"", incarnation) and self.going:
            if self.given_up is None:
                self._give_up_host0(of_host0(self.names[0], STARTED_AGAIN, self.role))
            self.unsaid = []  # it belongs to a job that the new process knows nothing of
        self.leader = incarnation
        for message in self.unsaid:
            self.link.send(message)
        self._read(self.link, now)

    def _read(self, link: Link, now: float) -> None:
        for message in link.receive(now):
            self.seen = now
            self.since = now
            self.closed = False
            try:
                self._handle(message)
            except Exception as error:  # whatever a message does to those who read it, it does not end the job
                self.say(f"{self.names[0]} sent a message that cannot be read ({type(error).__name__})")
                link.close()
                break
        if not link.open and self.link is link:
            self.link = None
            self.closed = True
            self.since = now
            self.dialer.hurry()

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "alive":
            return
        if kind == "go":
            self.going = True
            self.dialer.leader = self.leader
        elif kind == "left":
            self.left = True
        elif kind == "refused":
            self.refused = line_of(message, "why") or f"refused by {self.names[0]}"
            if self.going and self.given_up is None:
                self._give_up_host0(stop_failure(self.refused, self.names[self.rank]))
        elif kind == "stop":
            number, why = signal_of(message), line_of(message, "why")
            self.stopping = self.stopping or why or "another host failed"
            self.stop_signal = number
        elif kind == "letter":
            self.taken = self._take_letter(0, message, self.taken)
        elif kind == "verdict":
            failure = failure_of_json(message["failure"])
            self.verdict = JobVerdict(failure=failure, stopped=line_of(message, "stopped"))
            # Where ranks still run here, host 0 has given this one up.
            self.stopping = self.stopping or (failure.summary if failure is not None else "the other hosts have ended")
        elif kind == "lost":
            host = line_of(message, "host")
            self.say(f"{host} vanished: the job goes on without it")
            self.on_lost(host)
        else:
            self.hear(self.names[0], message)
