"""The roster of every host but the first: connects to host 0, again whenever the connection breaks."""

from __future__ import annotations

import select
import socket
import time

from trainshed.base.errors import ClusterError
from trainshed.contract.outcome import Failure

from ..cluster.hosts import resolves
from .connected import ConnectedRoster
from .link import Link
from .messages import (
    ALIVE_EVERY,
    AWAY,
    GONE_AFTER,
    LOST_AFTER,
    VERDICT_AFTER,
    FailedElsewhere,
    Report,
    Verdict,
    failure_of_json,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CONNECT_SECONDS = 2.0  # for one attempt; the kernel repeats itself at ever longer intervals, so a new one is sooner through
PATIENCE = 10.0  # seconds beyond the limit for host 0 to say who is missing
RETRY_SECONDS = 0.25  # between two attempts to connect
SAY_EVERY = 5.0  # seconds between two messages that other hosts are awaited


class Member(ConnectedRoster):
    """The roster as a host other than the first sees it."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        rank: int,
        address: tuple[str, int],
        token: str,
        grace: float,
        say: Callable[[str], None],
    ) -> None:
        """
        Args:
            hosts: the job's hosts in the agreed order.
            rank: this host's index among them.
            address: name and port of host 0.
            token: what hosts of this job say to prove it.
            grace: seconds that ranks get after a stop signal.
            say: prints a message for the user.
        """
        super().__init__(hosts, rank, grace, say)
        now = time.monotonic()
        self.address = address
        self.token = token
        self.link: Link | None = None
        self.connecting: socket.socket | None = None
        self.connecting_since = 0.0
        self.next_attempt = 0.0
        self.host0: tuple[int, Any] | None = None  # address family and address of host 0; a name server may fail later
        self.seen = now  # when host 0 was last heard
        self.since = now  # from when on its silence counts: `seen`, plus the time in which this process was suspended
        self.looked = now  # when this process last took its turn
        self.closed = False  # whether host 0 has closed the connection since it was last heard
        self.next_alive = 0.0
        self.going = False  # whether the job has started
        self.refused = ""  # why host 0 does not let this host in
        self.verdict: Verdict | None = None
        self.unsaid: list[dict[str, Any]] = []  # sent again on a new connection
        self.posted = 0  # number of the last letter to host 0's launcher
        self.taken = 0  # number of the last one from there

    # --- joining ---

    def join(self, seconds: float) -> None:
        """Waits until all hosts are there.

        Raises:
            ClusterError: host 0 did not answer in `seconds`, or says that other hosts are missing.
        """
        start = time.monotonic()
        said = start
        while not self.going:
            self.wait(0.2)
            now = time.monotonic()
            if self.refused:
                raise ClusterError(self.refused)
            if self.verdict is not None and self.verdict.failure is not None:
                self.close()
                raise FailedElsewhere(self.verdict.failure)
            # While connected, wait longer: host 0 gives up first, and knows more about why.
            if now - start > seconds + (PATIENCE if self.link is not None else 0.0):
                unknown = "" if self.link or resolves(self.address[0]) else f" (no such host name: {self.address[0]})"
                raise ClusterError(
                    f"{self.names[0]} did not let the job start within {seconds:.0f} s{unknown}",
                    hint=f"{self.names[0]} waits for the other hosts, or is not there: look at its log; port "
                    f"{self.address[1]} must be open between the hosts",
                )
            if now - said >= SAY_EVERY:
                said = now
                state = "waits for the other hosts" if self.link else f"does not answer on port {self.address[1]} yet"
                self.say(f"waiting for {self.names[0]}: it {state} ({now - start:.0f} s of {seconds:.0f} s)")

    def fail_before_start(self, failure: Failure, seconds: float) -> None:
        """Tells host 0, if it can be reached within `seconds`, that this host could not start."""
        self._tell(Report(state="failed", failure=failure).message())
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.verdict is None and not self.refused:
            self.wait(0.2)
        self.close()

    # --- watched by the supervisor ---

    def descriptors(self) -> dict[int, int]:
        """The connection, or the one that is being made."""
        if self.link is not None:
            return dict([self.link.descriptor()])
        return {self.connecting.fileno(): select.POLLOUT} if self.connecting is not None else {}

    def pause(self) -> float:
        """Seconds until the next sign of life or attempt to connect is due."""
        return RETRY_SECONDS if self.link is None else max(0.0, self.next_alive - time.monotonic())

    def exchange(self) -> None:
        """Reads what has come, keeps the connection, sends signs of life, and notes when host 0 is lost."""
        now = time.monotonic()
        away = now - self.looked
        self.looked = now
        if away > AWAY:
            self.since = min(now, self.since + away)
            if self.link is not None:
                self.link.seen = min(now, self.link.seen + away)
        if self.link is not None:
            self._read(self.link, now)  # before the link may be given up: what has come may be the verdict
        self._connect(now)
        if self.link is not None and now >= self.next_alive:
            self.next_alive = now + ALIVE_EVERY
            self.link.send({"type": "alive"})
        if self.verdict is None and self._lost(now):
            failure = self._failure_of_host0(now)
            self.verdict = Verdict(failure=failure)
            self.stopping = self.stopping or failure.summary

    def host_lost(self) -> bool:
        """Whether host 0 has vanished."""
        return self._lost(time.monotonic())

    def failed(self, why: str) -> None:
        """A rank of this host has failed: all hosts are to stop."""
        self._tell({"type": "failing", "why": why})

    def interrupted(self, why: str) -> None:
        """This host was sent a stop signal: all hosts are to stop."""
        self._tell({"type": "interrupted", "why": why})

    # --- letters between the launchers of the hosts ---

    def post(self, to: int, body: dict[str, Any]) -> None:
        """Sends a letter to host 0's launcher."""
        assert to == 0, "hosts other than the first talk to it alone"
        self.posted += 1
        self._tell({"type": "letter", "number": self.posted, "body": body})

    def absent(self) -> set[int]:
        """Host 0's node rank if it is lost or has ended; else an empty set."""
        return {0} if self.verdict is not None else set()

    def send(self, message: dict[str, Any]) -> bool:
        """Sends host 0 a message that is of no use later; False where there is no connection now."""
        if self.link is not None:
            self.link.send(message)
        return self.link is not None

    # --- the end ---

    def leave(self, report: Report) -> Verdict:
        """Reports how this host ended and waits for the verdict on the whole job; at most until host 0 is lost."""
        self.report = report
        self._tell(report.message())
        start = said = time.monotonic()
        while self.verdict is None:
            self.wait(0.5)
            now = time.monotonic()
            if self.stopping and now - start > 2 * VERDICT_AFTER + (self.grace if self.stop_interrupts else 0.0):
                break
            if now - said >= 6 * SAY_EVERY:
                said = now
                self.say("this host has ended; waiting for the other hosts")
        self.close()
        return self.verdict or Verdict(failure=report.failure)

    def close(self) -> None:
        """Closes the connection."""
        if self.link is not None:
            self.link.send({"type": "bye"})
            self.link.close()
        if self.connecting is not None:
            self.connecting.close()
        self.link = None
        self.connecting = None

    # --- the connection ---

    def _tell(self, message: dict[str, Any]) -> None:
        self.unsaid.append(message)
        if self.link is not None:
            self.link.send(message)

    def _failure_of_host0(self, now: float) -> Failure:
        return Failure(
            kind="ClusterError",
            summary=f"{self.names[0]} (the first host) vanished: no sign of life for {now - self.seen:.0f} s",
            exit_code=ClusterError.exit_code,
            hint="the host was stopped or killed, or the network between the hosts is down; look at its log",
            host=self.names[0],
        )

    def _lost(self, now: float) -> bool:
        if not self.going:
            return False
        return now - self.since > (GONE_AFTER if self.closed else LOST_AFTER)

    def _connect(self, now: float) -> None:
        """Keeps the connection, or takes the next step towards a new one."""
        if self.link is not None:
            if now - self.link.seen > 5 * ALIVE_EVERY:  # a new connection may get through sooner
                self.link.close()
                self.link = None
                self.next_attempt = now
            else:
                return
        if self.connecting is None:
            if now < self.next_attempt:
                return
            self.next_attempt = now + RETRY_SECONDS
            self._start_connecting(now)
        elif now - self.connecting_since > CONNECT_SECONDS:
            self.connecting.close()
            self.connecting = None
        if self.connecting is not None:
            self._finish_connecting(now)

    def _start_connecting(self, now: float) -> None:
        try:
            family, address = self.host0 or self._look_up()
            self.connecting = socket.socket(family, socket.SOCK_STREAM)
            self.connecting_since = time.monotonic()  # looking up the name may have taken long
            self.connecting.setblocking(False)
            self.connecting.connect(address)
        except BlockingIOError:
            pass
        except OSError:
            if self.connecting is not None:
                self.connecting.close()
            self.connecting = None

    def _look_up(self) -> tuple[int, Any]:
        """Address family and address of host 0. Raises OSError."""
        family, _, _, _, address = socket.getaddrinfo(*self.address, proto=socket.IPPROTO_TCP)[0]
        return family, address

    def _finish_connecting(self, now: float) -> None:
        assert self.connecting is not None
        poll = select.poll()
        poll.register(self.connecting, select.POLLOUT)
        if not poll.poll(0):
            return
        connection, self.connecting = self.connecting, None
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            connection.close()
            return
        self.host0 = connection.family, connection.getpeername()
        self.link = Link(connection, now)
        self.link.send({"type": "hello", "rank": self.rank, "token": self.token})
        for message in self.unsaid:
            self.link.send(message)

    def _read(self, link: Link, now: float) -> None:
        for message in link.receive(now):
            self.seen = now
            self.since = now
            self.closed = False
            self._handle(message, link)
        if not link.open:
            self.link = None
            self.closed = True
            self.since = now
            self.next_attempt = now

    def _handle(self, message: dict[str, Any], link: Link) -> None:
        kind = message.get("type")
        if kind == "go":
            self.going = True
        elif kind == "refused":
            self.refused = str(message.get("why", "refused by host 0"))
        elif kind == "stop":
            self.stopping = str(message.get("why", "another host failed"))
            self.stop_interrupts = bool(message.get("interrupted"))
        elif kind == "letter":
            number, body = message.get("number"), message.get("body")
            if isinstance(number, int) and isinstance(body, dict) and number > self.taken:
                self.taken = number
                self.inbox.append((0, body))
        elif kind == "verdict":
            try:
                self.verdict = Verdict(failure=failure_of_json(message["failure"]))
            except (KeyError, TypeError, ValueError):
                link.close()
        elif kind == "lost":
            self.say(f"{message.get('host')} vanished: the job goes on without it")
            self.on_lost(str(message.get("host")))
        elif kind != "alive":
            self.on_message(self.names[0], message)
