"""Host 0: everyone connects to it; it lets the job start, tells all when one fails, and gives the verdict."""

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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SAY_EVERY = 5.0


class Host:
    """Another host as host 0 sees it."""

    def __init__(self, rank: int, name: str, now: float) -> None:
        self.rank, self.name = rank, name
        self.link: Link | None = None
        self.joined = False
        self.seen = now
        self.since = now  # from when on its silence counts: what we slept through ourselves is none
        self.closed = False  # whether its connection was closed since it was last heard
        self.told = False  # whether it has taken the verdict, or wants none
        self.lost_at = 0.0
        self.report: Report | None = None
        self.reported_at = 0.0
        self.outbox: list[dict[str, Any]] = []  # said again on a new connection; the numbers let the host know what it has
        self.taken = 0  # number of its last letter that came

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be expected from it."""
        return self.report is not None or bool(self.lost_at)


class Leader(ConnectedRoster):
    """The roster as host 0 sees it."""

    def __init__(
        self, hosts: tuple[str, ...], port: int, token: str, grace: float, say: Callable[[str], None], enough: int = 0
    ) -> None:
        """
        Args:
            enough: with how many hosts, this one included, the job starts and goes on; 0 for all.
        """
        super().__init__(hosts, 0, grace, say)
        now = time.monotonic()
        self.enough = enough or len(hosts)
        self.port = port
        self.token = token
        self.hosts = [Host(rank, name, now) for rank, name in enumerate(hosts) if rank > 0]
        self.strangers: list[Link] = []  # connected, but has not said hello yet
        self.listener: socket.socket | None = None
        self.going = False
        self.stopped_at = 0.0
        self.next_alive = 0.0
        self.looked = now
        self.verdict: dict[str, Any] | None = None
        self.own: Report | None = None
        self.own_at = 0.0
        self.refusal: Failure | None = None
        self.hung: tuple[float, Failure] | None = None  # when and why the whole job was found to stand still

    # --- joining ---

    def join(self, seconds: float) -> None:
        """Waits until all hosts have said hello, then lets them go.

        Raises:
            ClusterError: the port cannot be used, or hosts are missing after `seconds`; names them.
        """
        self._listen()
        start = said = time.monotonic()
        while missing := [host.name for host in self.hosts if not host.joined]:
            now = time.monotonic()
            failed = next((h.report.failure for h in self.hosts if h.report and h.report.failure), None)
            if failed is not None:
                self._refuse(failed, min(TELLING_SECONDS, seconds))
                raise FailedElsewhere(failed)
            names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            if now - start > seconds and len(self.names) - len(missing) >= self.enough:
                for host in self.hosts:
                    if not host.joined:
                        host.lost_at = now
                self.say(f"{names} did not come within {seconds:.0f} s: starting with {len(self.present())} hosts")
                break
            if now - start > seconds:
                unknown = [name for name in missing[:8] if not resolves(name)]
                names += f" (no such host name: {', '.join(unknown)})" if unknown else ""
                failure = Failure(
                    kind="ClusterError",
                    summary=f"{names} did not come within {seconds:.0f} s ({len(self.names) - len(missing)} of "
                    f"{len(self.names)} hosts are there)",
                    exit_code=ClusterError.exit_code,
                    hint="the host did not start, failed before the others were ready, or cannot reach "
                    f"{self.names[0]} on port {self.port}; trainshed_host_timeout_seconds sets how long to wait",
                )
                self._spread(failure)
                raise ClusterError(failure.summary, hint=failure.hint)
            if now - said >= SAY_EVERY:
                said = now
                self.say(f"waiting for {names} ({now - start:.0f} s of {seconds:.0f} s)")
            self.wait(0.2)
        self.going = True
        self._broadcast({"type": "go"})

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
        """Tells everyone the verdict and waits a moment for it to be taken; who has just lost us may come back for it."""
        self.verdict = {"type": "verdict", "failure": failure_to_json(failure)}
        self._broadcast(self.verdict)
        left, now = GONE_AFTER, time.monotonic()
        while any(host.joined and not host.lost_at and not host.told for host in self.hosts) and left > 0:
            self.wait(0.1)
            before, now = now, time.monotonic()
            left -= min(0.5, now - before)  # what we sleep through ourselves is nobody's time
        self.close()

    # --- watched by the supervisor ---

    def descriptors(self) -> dict[int, int]:
        """What the supervisor's loop is to poll for us."""
        links = self.strangers + [host.link for host in self.hosts if host.link is not None]
        found = dict(link.descriptor() for link in links)
        if self.listener is not None:
            found[self.listener.fileno()] = select.POLLIN
        return found

    def pause(self) -> float:
        """Seconds until we must have a turn."""
        return max(0.0, self.next_alive - time.monotonic())

    def exchange(self) -> None:
        """Takes and gives signs of life; tells all hosts to stop when one fails or is lost."""
        now = time.monotonic()
        away, self.looked = now - self.looked, now
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
        """This host was sent a stop signal: everyone is to stop."""
        self._stop(f"{self.names[0]}: {why}", interrupted=True)

    # --- letters between the launchers of the hosts ---

    def post(self, to: int, body: dict[str, Any]) -> None:
        """Sends a letter to another host's launcher; it arrives once, in order, even over a connection made anew."""
        host = next(host for host in self.hosts if host.rank == to)
        host.outbox.append({"type": "letter", "number": len(host.outbox) + 1, "body": body})
        if host.link is not None:
            host.link.send(host.outbox[-1])

    def absent(self) -> set[int]:
        """Node ranks of the hosts that are lost or have ended."""
        return {host.rank for host in self.hosts if host.settled}

    def send(self, message: dict[str, Any]) -> bool:
        """Tells all hosts something that is of no use later; True."""
        self._broadcast(message)
        return True

    def send_to(self, name: str, message: dict[str, Any]) -> None:
        """Tells one host something that is of no use later."""
        for host in self.hosts:
            if host.name == name and host.link is not None:
                host.link.send(message)

    def address_of(self, name: str) -> str:
        """From where a host has connected; its name where it has not."""
        for host in self.hosts:
            if host.name == name and host.link is not None and host.link.open:
                return str(host.link.socket.getpeername()[0])
        return name

    def present(self) -> list[str]:
        """The hosts that have not been lost, this one first."""
        return [self.names[0], *(host.name for host in self.hosts if not host.lost_at)]

    def running(self) -> list[str]:
        """The hosts whose ranks have not ended; none once the job is stopping."""
        if self.stopping:
            return []
        here = [self.names[0]] if self.own is None else []
        return here + [host.name for host in self.hosts if not host.settled]

    def hang(self, failure: Failure) -> None:
        """The whole job stands still: everyone is to stop."""
        self.hung = time.monotonic(), failure
        self._stop(f"Hang: {failure.summary}", interrupted=False)

    # --- the end ---

    def leave(self, report: Report) -> Verdict:
        """Waits for the reports of all hosts, tells all the verdict, and returns it."""
        self.own, self.own_at = report, time.monotonic()
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
        """The failure that came first; one that only speaks of a lost peer comes after all others, even a lost host."""
        causes: list[tuple[bool, float, Failure]] = []
        reports = [(self.own, self.own_at)] + [(host.report, host.reported_at) for host in self.hosts]
        for report, at in reports:
            if report is not None and report.failure is not None and report.state == "failed":
                causes.append((report.secondary, at - report.age, report.failure))
        if self.hung is not None:
            causes.append((False, *self.hung))
        lost = [host for host in self.hosts if host.lost_at and host.report is None]
        # A host without which the job could go on is a cause only where others failed for want of it.
        if len(self.present()) < self.enough or (causes and all(secondary for secondary, _, _ in causes)):
            causes += [(False, host.seen, self._failure_of_lost(host)) for host in lost]
        if causes:
            return min(causes, key=lambda cause: cause[:2])[2]
        # Nobody failed by itself: a host that was interrupted, and ended badly for it, is all there is to say.
        ended = [report for report, _ in reports if report is not None and report.failure is not None]
        ended.sort(key=lambda report: report.state != "interrupted")
        return ended[0].failure if ended else None

    def _failure_of_lost(self, host: Host) -> Failure:
        return Failure(
            kind="ClusterError",
            summary=f"{host.name} vanished: no sign of life for {host.lost_at - host.seen:.0f} s",
            exit_code=ClusterError.exit_code,
            hint="the host was stopped or killed (spot capacity, memory, a crash), or the network to it is down; "
            "look at its log",
            host=host.name,
        )

    # --- the connections ---

    def _broadcast(self, message: dict[str, Any]) -> None:
        for host in self.hosts:
            if host.link is not None:
                host.link.send(message)

    def _stop(self, why: str, *, interrupted: bool) -> None:
        if not self.stopping:
            self.stopping, self.stop_interrupts, self.stopped_at = why, interrupted, time.monotonic()
            self._broadcast({"type": "stop", "why": why, "interrupted": interrupted})

    def _accept(self, now: float) -> None:
        while self.listener is not None:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.strangers.append(Link(connection, now))

    def _hello(self, link: Link, now: float) -> None:
        messages = link.receive(now)
        if not messages:
            if not link.open or now - link.seen > 10.0:
                link.close()
                self.strangers.remove(link)
            return
        self.strangers.remove(link)
        hello, *rest = messages
        rank = hello.get("rank")
        known = next((host for host in self.hosts if host.rank == rank), None)
        if hello.get("type") != "hello" or known is None:
            link.close()
        elif not hmac.compare_digest(str(hello.get("token", "")).encode(), self.token.encode()):
            why = (
                f"{known.name} and {self.names[0]} were not started for the same job: "
                "their program, hyperparameters, job name or hosts differ"
            )
            self.say(f"{why}; {known.name} is refused")
            link.send({"type": "refused", "why": why})
            link.close()
        else:
            if known.link is not None:
                known.link.close()
            if known.lost_at and self.going and not self.stopping:
                known.lost_at, known.report, known.taken, known.outbox = 0.0, None, 0, []
                self.say(f"{known.name} is there again")
            known.link, known.joined, known.seen, known.since = link, True, now, now
            known.closed = known.told = False
            if self.refusal is not None:
                link.send({"type": "verdict", "failure": failure_to_json(self.refusal)})
            elif self.verdict is not None:
                link.send(self.verdict)
            if self.going:
                link.send({"type": "go"})
            if self.stopping:
                link.send({"type": "stop", "why": self.stopping, "interrupted": self.stop_interrupts})
            for letter in known.outbox:
                link.send(letter)
            self._handle(known, rest, now)

    def _read(self, host: Host, link: Link, now: float) -> None:
        messages = link.receive(now)
        if messages:
            host.seen = host.since = now
        self._handle(host, messages, now)
        if not link.open and host.link is link:
            host.link, host.closed, host.since = None, True, now

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
                    host.report, host.reported_at = Report.of(message), now
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
