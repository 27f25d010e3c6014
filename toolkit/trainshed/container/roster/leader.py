"""Host 0's roster: all hosts connect to it; it starts the job, stops all hosts when one fails, and gives the verdict."""

from __future__ import annotations

import hmac
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
    TELLING_SECONDS,
    VERDICT_AFTER,
    FailedElsewhere,
    Report,
    Verdict,
    failure_to_json,
)
from .verdict import LostHost, Reported, first_cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SAY_EVERY = 5.0  # seconds between two messages that a host is awaited
MOST_NAMED = 8  # hosts in one message
HELLO_SECONDS = 10.0  # that a connection may stay silent before it has said who it is


class Host:
    """Another host as host 0 sees it. Moments are on the monotonic clock.

    seen: when it was last heard.
    since: from when on its silence counts: `seen`, plus the time in which this process itself was suspended.
    closed: whether its connection was closed since it was last heard.
    told: whether it has taken the verdict, or does not want it.
    lost_at: when it was given up, 0 while it is there.
    outbox: all letters to it; sent again on a new connection, where their numbers tell it which ones it has.
    taken: number of its last letter that has come.
    """

    def __init__(self, rank: int, name: str, now: float) -> None:
        self.rank = rank
        self.name = name
        self.link: Link | None = None
        self.joined = False
        self.seen = now
        self.since = now
        self.closed = False
        self.told = False
        self.lost_at = 0.0
        self.report: Report | None = None
        self.reported_at = 0.0
        self.outbox: list[dict[str, Any]] = []
        self.taken = 0

    @property
    def settled(self) -> bool:
        """Whether it has reported or is lost."""
        return self.report is not None or bool(self.lost_at)

    def connect(self, link: Link, now: float) -> None:
        """Uses a new connection from now on."""
        if self.link is not None:
            self.link.close()
        self.link = link
        self.joined = True
        self.seen = now
        self.since = now
        self.closed = False
        self.told = False

    def come_back(self) -> None:
        """Starts anew: what the host sent before it was lost does not count."""
        self.lost_at = 0.0
        self.report = None
        self.taken = 0
        self.outbox = []


class Leader(ConnectedRoster):
    """The roster as host 0 sees it."""

    def __init__(
        self, hosts: tuple[str, ...], port: int, token: str, grace: float, say: Callable[[str], None], enough: int = 0
    ) -> None:
        """
        Args:
            hosts: the job's hosts in the agreed order, this one first.
            port: the TCP port to listen on.
            token: what hosts of this job say to prove it.
            grace: seconds that ranks get after a stop signal.
            say: prints a message for the user.
            enough: with how many hosts, this one included, the job starts and goes on; 0 for all.
        """
        super().__init__(hosts, 0, grace, say)
        now = time.monotonic()
        self.enough = enough or len(hosts)
        self.port = port
        self.token = token
        self.hosts = [Host(rank, name, now) for rank, name in enumerate(hosts) if rank > 0]
        self.strangers: list[Link] = []  # connections that have not said yet which host they are
        self.listener: socket.socket | None = None
        self.going = False  # whether the job has started
        self.stopped_at = 0.0
        self.next_alive = 0.0
        self.looked = now  # when this process last took its turn
        self.verdict: dict[str, Any] | None = None
        self.own: Report | None = None
        self.own_at = 0.0
        self.refusal: Failure | None = None  # why the job cannot start, for hosts that come later
        self.hung: tuple[float, Failure] | None = None  # when the whole job was found to hang, and why

    # --- joining ---

    def join(self, seconds: float) -> None:
        """Waits until all hosts have said hello, then lets them go.

        Raises:
            ClusterError: the port cannot be used, or hosts are missing after `seconds`; names them.
        """
        self._listen()
        start = said = time.monotonic()
        while missing := [host for host in self.hosts if not host.joined]:
            now = time.monotonic()
            failed = next((h.report.failure for h in self.hosts if h.report and h.report.failure), None)
            if failed is not None:
                self._refuse(failed, min(TELLING_SECONDS, seconds))
                raise FailedElsewhere(failed)
            if now - start > seconds:
                self._start_without(missing, seconds)
                break
            if now - said >= SAY_EVERY:
                said = now
                self.say(f"waiting for {_named(missing)} ({now - start:.0f} s of {seconds:.0f} s)")
            self.wait(0.2)
        self.going = True
        self._broadcast({"type": "go"})

    def _start_without(self, missing: list[Host], seconds: float) -> None:
        """Gives up the hosts that have not come. Raises ClusterError where the job cannot start without them."""
        there = len(self.names) - len(missing)
        if there >= self.enough:
            for host in missing:
                host.lost_at = time.monotonic()
            self.say(f"{_named(missing)} did not come within {seconds:.0f} s: starting with {there} hosts")
            return
        unknown = [host.name for host in missing[:MOST_NAMED] if not resolves(host.name)]
        unknown_names = f" (no such host name: {', '.join(unknown)})" if unknown else ""
        failure = Failure(
            kind="ClusterError",
            summary=f"{_named(missing)}{unknown_names} did not come within {seconds:.0f} s "
            f"({there} of {len(self.names)} hosts are there)",
            exit_code=ClusterError.exit_code,
            hint="the host did not start, failed before the others were ready, or cannot reach "
            f"{self.names[0]} on port {self.port}; trainshed_host_timeout_seconds sets how long to wait",
        )
        self._spread(failure)
        raise ClusterError(failure.summary, hint=failure.hint)

    def _listen(self) -> None:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        try:
            self.listener = socket.create_server(
                ("", self.port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=len(self.names) + 8
            )
        except OSError as error:
            raise ClusterError(
                f"port {self.port}, on which the other hosts find this one, cannot be used: {error.strerror}",
                hint="set trainshed_roster_port to a free one",
            ) from error
        self.listener.setblocking(False)

    def fail_before_start(self, failure: Failure, seconds: float) -> None:
        """Tells every host that comes within `seconds` that this one could not start."""
        self._listen()
        self._refuse(failure, seconds)

    def _refuse(self, failure: Failure, seconds: float) -> None:
        self.refusal = failure
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(host.joined for host in self.hosts):
            self.wait(0.2)
        self._spread(failure)

    def _spread(self, failure: Failure | None) -> None:
        """Tells all hosts the verdict, and waits until they have taken it, also those that have to connect again."""
        self.verdict = {"type": "verdict", "failure": failure_to_json(failure)}
        self._broadcast(self.verdict)
        left, now = GONE_AFTER, time.monotonic()
        while any(host.joined and not host.lost_at and not host.told for host in self.hosts) and left > 0:
            self.wait(0.1)
            before, now = now, time.monotonic()
            left -= min(0.5, now - before)  # time in which this process was suspended does not count
        self.close()

    # --- watched by the supervisor ---

    def descriptors(self) -> dict[int, int]:
        """The listener and all connections."""
        links = self.strangers + [host.link for host in self.hosts if host.link is not None]
        wanted = dict(link.descriptor() for link in links)
        if self.listener is not None:
            wanted[self.listener.fileno()] = select.POLLIN
        return wanted

    def pause(self) -> float:
        """Seconds until the next sign of life is due."""
        return max(0.0, self.next_alive - time.monotonic())

    def exchange(self) -> None:
        """Reads what has come, sends signs of life, and stops all hosts when one fails or is lost."""
        now = time.monotonic()
        away = now - self.looked
        self.looked = now
        if away > AWAY:
            for host in self.hosts:
                host.since = min(now, host.since + away)
        self._accept(now)
        for link in list(self.strangers):
            self._hello(link, now)
        for host in self.hosts:
            if host.link is not None:
                self._read(host, host.link, now)
        if now >= self.next_alive:
            self.next_alive = now + ALIVE_EVERY
            self._broadcast({"type": "alive"})
        if self.going:
            self._look_for_lost(now)

    def host_lost(self) -> bool:
        """Whether a host has vanished."""
        return any(host.lost_at for host in self.hosts)

    def failed(self, why: str) -> None:
        """A rank of this host has failed: all hosts are to stop."""
        self._stop(f"{self.names[0]}: {why}", interrupted=False)

    def interrupted(self, why: str) -> None:
        """This host was sent a stop signal: all hosts are to stop."""
        self._stop(f"{self.names[0]}: {why}", interrupted=True)

    # --- letters between the launchers of the hosts ---

    def post(self, to: int, body: dict[str, Any]) -> None:
        """Sends a letter to another host's launcher."""
        host = next(host for host in self.hosts if host.rank == to)
        host.outbox.append({"type": "letter", "number": len(host.outbox) + 1, "body": body})
        if host.link is not None:
            host.link.send(host.outbox[-1])

    def absent(self) -> set[int]:
        """Node ranks of the hosts that are lost or have ended."""
        return {host.rank for host in self.hosts if host.settled}

    def send(self, message: dict[str, Any]) -> bool:
        """Sends a message that is of no use later to all hosts; True."""
        self._broadcast(message)
        return True

    def send_to(self, name: str, message: dict[str, Any]) -> None:
        """Sends a message that is of no use later to one host."""
        for host in self.hosts:
            if host.name == name and host.link is not None:
                host.link.send(message)

    def address_of(self, name: str) -> str:
        """The address that a host has connected from; its name while it is not connected."""
        for host in self.hosts:
            if host.name == name and host.link is not None and host.link.open:
                return str(host.link.socket.getpeername()[0])
        return name

    def present(self) -> list[str]:
        """The hosts that are not lost, this one first."""
        return [self.names[0], *(host.name for host in self.hosts if not host.lost_at)]

    def running(self) -> list[str]:
        """The hosts whose ranks have not ended; empty once the job is stopping."""
        if self.stopping:
            return []
        here = [self.names[0]] if self.own is None else []
        return here + [host.name for host in self.hosts if not host.settled]

    def hang(self, failure: Failure) -> None:
        """The whole job hangs: all hosts are to stop."""
        self.hung = time.monotonic(), failure
        self._stop(f"Hang: {failure.summary}", interrupted=False)

    # --- the end ---

    def leave(self, report: Report) -> Verdict:
        """Waits for the reports of all hosts, tells them the verdict, and returns it."""
        self.own = report
        self.own_at = time.monotonic()
        if report.state == "failed" and not self.stopping:
            self._stop(f"{self.names[0]} failed", interrupted=False)
        said = time.monotonic()
        while not all(host.settled for host in self.hosts):
            now = time.monotonic()
            waiting = [host.name for host in self.hosts if not host.settled]
            patience = VERDICT_AFTER + (self.grace if self.stop_interrupts else 0.0)
            if self.stopping and now - max(self.stopped_at, self.own_at) > patience:
                self.say(f"{', '.join(waiting)}: no report after {patience:.0f} s")
                break
            if now - said >= 6 * SAY_EVERY:
                said = now
                self.say(f"this host has ended; waiting for {', '.join(waiting)}")
            self.wait(0.5)
        verdict = Verdict(failure=self._first_cause())
        self._spread(verdict.failure)
        return verdict

    def close(self) -> None:
        """Closes all connections."""
        for link in self.strangers + [host.link for host in self.hosts if host.link is not None]:
            link.close()
        if self.listener is not None:
            self.listener.close()
        self.listener = None

    def _first_cause(self) -> Failure | None:
        reported = [Reported(self.own, self.own_at)] if self.own is not None else []
        reported += [Reported(host.report, host.reported_at) for host in self.hosts if host.report is not None]
        lost = [LostHost(host.name, host.seen, host.lost_at) for host in self.hosts if host.lost_at and host.report is None]
        return first_cause(reported, lost, self.hung, len(self.present()) >= self.enough)

    # --- the connections ---

    def _broadcast(self, message: dict[str, Any]) -> None:
        for host in self.hosts:
            if host.link is not None:
                host.link.send(message)

    def _stop(self, why: str, *, interrupted: bool) -> None:
        if not self.stopping:
            self.stopping = why
            self.stop_interrupts = interrupted
            self.stopped_at = time.monotonic()
            self._broadcast({"type": "stop", "why": why, "interrupted": interrupted})

    def _accept(self, now: float) -> None:
        while self.listener is not None:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.strangers.append(Link(connection, now))

    def _hello(self, link: Link, now: float) -> None:
        """Takes the first messages of a connection, which have to say which host it is and prove its job."""
        messages = link.receive(now)
        if not messages:
            if not link.open or now - link.seen > HELLO_SECONDS:
                link.close()
                self.strangers.remove(link)
            return
        self.strangers.remove(link)
        hello, *rest = messages
        rank = hello.get("rank")
        host = next((host for host in self.hosts if host.rank == rank), None)
        if hello.get("type") != "hello" or host is None:
            link.close()
        elif not hmac.compare_digest(str(hello.get("token", "")).encode(), self.token.encode()):
            why = (
                f"{host.name} and {self.names[0]} were not started for the same job: "
                "their program, hyperparameters, job name or hosts differ"
            )
            self.say(f"{why}; {host.name} is refused")
            link.send({"type": "refused", "why": why})
            link.close()
        else:
            self._connected(host, link, now)
            self._handle(host, rest, now)

    def _connected(self, host: Host, link: Link, now: float) -> None:
        """Uses a host's connection, and sends on it what the host may have missed."""
        if host.lost_at and self.going and not self.stopping:
            host.come_back()
            self.say(f"{host.name} has come back")
        host.connect(link, now)
        if self.refusal is not None:
            link.send({"type": "verdict", "failure": failure_to_json(self.refusal)})
        elif self.verdict is not None:
            link.send(self.verdict)
        if self.going:
            link.send({"type": "go"})
        if self.stopping:
            link.send({"type": "stop", "why": self.stopping, "interrupted": self.stop_interrupts})
        for letter in host.outbox:
            link.send(letter)

    def _read(self, host: Host, link: Link, now: float) -> None:
        messages = link.receive(now)
        if messages:
            host.seen = now
            host.since = now
        self._handle(host, messages, now)
        if not link.open and host.link is link:
            host.link = None
            host.closed = True
            host.since = now

    def _handle(self, host: Host, messages: list[dict[str, Any]], now: float) -> None:
        for message in messages:
            kind = message.get("type")
            if kind in ("failing", "interrupted"):
                self._stop(f"{host.name}: {message.get('why', 'failed')}", interrupted=kind == "interrupted")
            elif kind == "letter":
                number, body = message.get("number"), message.get("body")
                if isinstance(number, int) and isinstance(body, dict) and number > host.taken:
                    host.taken = number
                    self.inbox.append((host.rank, body))
            elif kind == "bye":
                host.told = True
            elif kind == "ended" and host.report is None:
                try:
                    host.report = Report.of(message)
                    host.reported_at = now
                except (KeyError, TypeError, ValueError) as error:
                    self.say(f"{host.name} sent a report that cannot be read ({error})")
                    continue
                if host.report.state == "failed":
                    self._stop(f"{host.name} failed", interrupted=False)
            else:
                self.on_message(host.name, message)

    def _look_for_lost(self, now: float) -> None:
        for host in self.hosts:
            if host.settled or now - host.since <= (GONE_AFTER if host.closed else LOST_AFTER):
                continue
            host.lost_at = now
            present = len(self.present())
            if present >= self.enough and not self.stopping:
                self.say(
                    f"{host.name} vanished (no sign of life for {now - host.seen:.0f} s): going on with {present} hosts"
                )
                self._broadcast({"type": "lost", "host": host.name})
                self.on_lost(host.name)
                continue
            self._stop(f"{host.name} vanished (no sign of life for {now - host.seen:.0f} s)", interrupted=False)


def _named(hosts: list[Host]) -> str:
    """The hosts' names, for a message; not all of very many."""
    more = f" and {len(hosts) - MOST_NAMED} more" if len(hosts) > MOST_NAMED else ""
    return ", ".join(host.name for host in hosts[:MOST_NAMED]) + more
