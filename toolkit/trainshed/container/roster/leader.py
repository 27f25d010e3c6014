"""Host 0's roster: all hosts connect to it; it starts the job, stops all hosts when one fails, and gives the verdict."""

from __future__ import annotations

import time

from trainshed.base.errors import ClusterError
from trainshed.contract.outcome import Failure

from ..cluster.hosts import resolves
from .acceptor import Door
from .connected import ConnectedRoster
from .host import MOST_NAMED, Host, Rival, named
from .link import encode
from .messages import (
    ALIVE_EVERY,
    GONE_AFTER,
    LOST_AFTER,
    TELLING_SECONDS,
    VERDICT_AFTER,
    FailedElsewhere,
    JobVerdict,
    Report,
    line_of,
    signal_of,
)
from .poller import Poller
from .verdict import STARTED_AGAIN, LostHost, Reported, Stop, first_cause, of_host0, stopped_early, suspended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Any

    from .authentication import Claim, JobKey
    from .link import Link

SAY_EVERY = 5.0  # seconds between two messages that a host is awaited
LOOK_EVERY = 0.5  # seconds between two looks for lost hosts
RIVAL_SECONDS = 5.0  # of silence after which a host is gone in whose name another process has come
RIVAL_RETURNS = 2.0  # the same of one whose connection is closed
RIVAL_SETTLES = 0.5  # seconds in which something may still come that a host has sent before it died


class Leader(ConnectedRoster):
    """The roster as host 0 sees it."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        port: int,
        key: JobKey,
        grace: float,
        say: Callable[[str], None],
        *,
        enough: int = 0,
        addresses: Sequence[str] = ("",),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            hosts: the job's hosts in the agreed order, this one first.
            port: the TCP port to listen on.
            key: what hosts of this job prove to know.
            grace: seconds that ranks get after a stop signal.
            say: prints a message for the user.
            enough: with how many hosts, this one included, the job starts and goes on; 0 for all.
            addresses: of this host, to listen on; "" for all of them.
        """
        super().__init__(hosts, 0, grace, say, clock)
        now = clock()
        self.enough = enough or len(hosts)
        self.port = port
        self.key = key
        self.addresses = addresses
        self.hosts = [Host(rank, name, now) for rank, name in enumerate(hosts) if rank > 0]
        self.poller = Poller()
        self.door = Door(hosts, key, self.incarnation, self.poller, say, self._enter)
        self.going = False  # whether the job has started
        self.stop: Stop | None = None
        self.verdict: dict[str, Any] | None = None
        self.own: Report | None = None
        self.own_at = 0.0
        self.hung: tuple[float, Failure] | None = None  # when the whole job was found to hang, and why
        self._awaited = {host.rank for host in self.hosts}  # that have not come yet
        self._unready = set(self._awaited)  # that have not come, or come and still prepare themselves
        self._settled: set[int] = set()  # that have reported or are lost
        self._lost: set[int] = set()
        self._untold: set[int] = set()  # connected, and without the verdict
        self._away: tuple[float, Failure] | None = None  # when this process was suspended for so long that it counts as lost
        self._woke = 0.0  # when this process was last resumed after it had been suspended
        self._over = False  # whether all connections are closed for good
        self._next_alive = 0.0
        self._next_look = 0.0

    @property
    def over(self) -> bool:
        """Tells whether all connections are closed for good."""
        return self._over

    # --- joining ---

    def open(self) -> None:
        """Listens for the other hosts. Raises ClusterError where the port cannot be used."""
        super().open()
        if not self.door.open:
            self.door.listen(self.addresses, self.port)

    def check_start(self) -> None:
        """Raises FailedElsewhere if the job cannot start."""
        if self.doom is not None:
            raise FailedElsewhere(self.doom)

    def joining(self, seconds: float) -> Iterator[float]:
        """Waits until all hosts have come, then lets them go.

        Raises:
            ClusterError: the port cannot be used, or hosts are missing after `seconds`; names them.
            FailedElsewhere: the job cannot start; all hosts have been told why.
        """
        self.open()
        start = said = self.clock()
        while self._unready and self.doom is None:
            now = self.clock()
            if now - start > seconds:
                yield from self._starting_without(seconds)
                break
            if now - said >= SAY_EVERY:
                said = now
                awaited = self._absent() or self._preparing()
                what = "" if self._absent() else " to be ready"
                self.say(f"waiting for {named(awaited)}{what} ({now - start:.0f} s of {seconds:.0f} s)")
            yield 0.2
        if self.doom is not None:
            yield from self._telling(self.doom, min(TELLING_SECONDS, seconds))
            raise FailedElsewhere(self.doom)
        self.going = True
        self._broadcast({"type": "go"})

    def failing_before_start(self, failure: Failure, seconds: float) -> Iterator[float]:
        """Tells every host that comes within `seconds` that this one could not start."""
        self.open()
        yield from self._telling(failure, seconds)

    def _absent(self) -> list[Host]:
        return [host for host in self.hosts if host.rank in self._awaited]

    def _preparing(self) -> list[Host]:
        return [host for host in self.hosts if host.rank in self._unready - self._awaited]

    def _starting_without(self, seconds: float) -> Iterator[float]:
        """Gives up the hosts that are not ready. Raises ClusterError where the job cannot start without them."""
        absent, preparing = self._absent(), self._preparing()
        ready = len(self.names) - len(self._unready)
        unknown = [host.name for host in absent[:MOST_NAMED] if not resolves(host.name)]
        unknown_names = f" (no such host name: {', '.join(unknown)})" if unknown else ""
        parts = [f"{named(absent)}{unknown_names} did not come"] if absent else []
        parts += [f"{named(preparing)} {'were' if preparing[1:] else 'was'} not ready"] if preparing else []
        what = f"{' and '.join(parts)} within {seconds:.0f} s"
        if ready >= self.enough:
            for host in self.hosts:
                if host.rank in self._unready:
                    self._lose(host, self.clock(), "did not come" if host.rank in self._awaited else "was not ready")
            self.say(f"{what}: starting with {ready} hosts")
            return
        if absent:
            hint = f"the host did not start, or cannot reach {self.names[0]} on port {self.port}; "
        else:
            hint = "what the host installs takes longer than the others wait; "
        failure = Failure(
            kind="ClusterError",
            summary=f"{what} ({len(self.names) - len(absent)} of {len(self.names)} hosts are there)",
            exit_code=ClusterError.exit_code,
            hint=f"{hint}trainshed_host_timeout_seconds sets how long to wait",
        )
        yield from self._spreading(JobVerdict(failure=failure))
        raise ClusterError(failure.summary, hint=failure.hint)

    def _telling(self, failure: Failure, seconds: float) -> Iterator[float]:
        """Tells all hosts that the job cannot start, also those that come within `seconds`."""
        verdict = JobVerdict(failure=failure)
        self.verdict = verdict.message()
        self._broadcast(self.verdict)
        end = self.clock() + seconds
        while self.clock() < end and self._awaited:
            yield 0.2
        yield from self._spreading(verdict)

    def _spreading(self, verdict: JobVerdict) -> Iterator[float]:
        """Tells all hosts the verdict, and waits until they have taken it, also those that have to connect again."""
        self.verdict = verdict.message()
        self._broadcast(self.verdict)
        look = 0.0
        while True:
            now = self.clock()
            if now >= look or not self._untold:
                look = now + 0.1
                if not any(self._may_take_verdict(host) for host in self.hosts):
                    break
            yield 0.1
        self.close()

    def _may_take_verdict(self, host: Host) -> bool:
        """Whether a host is there, or may come back, to which the verdict has not come."""
        if host.told or host.rank in self._awaited or (host.lost_at and host.link is None):
            return False
        return self.clock() - host.since <= (GONE_AFTER if host.closed else LOST_AFTER)

    # --- watched by the supervisor ---

    def descriptors(self) -> dict[int, int]:
        """One for all connections."""
        return self.poller.descriptor()

    def pause(self) -> float:
        """Seconds until the next sign of life or look for lost hosts is due."""
        return max(0.0, min(self._next_alive, self._next_look) - self.clock())

    def exchange(self) -> None:
        """Reads what has come, sends signs of life, and stops all hosts when one fails or is lost."""
        now = self.clock()
        away = self._was_away(now)
        if away:
            self._count_away(now, away)
        for handle in self.poller.ready():
            handle(now)
        if now >= self._next_alive:
            self._next_alive = now + ALIVE_EVERY
            self._broadcast({"type": "alive"})
        if now >= self._next_look or away:
            self._next_look = now + LOOK_EVERY
            self.door.expire(now, away)
            for host in self.hosts:
                if host.rival is not None:
                    self._judge_rival(host, host.rival, now)
                if self.going:
                    self._look_for_loss(host, now)

    def _count_away(self, now: float, away: float) -> None:
        """This process was suspended, and could not hear any host."""
        self._woke = now
        for host in self.hosts:
            host.since = min(now, host.since + away)
        if away > LOST_AFTER and self.going and self._away is None:
            self._away = now - away, suspended(self.names[0], away, "the first host")

    def host_lost(self) -> bool:
        """Returns whether a host has vanished."""
        return bool(self._lost)

    def failed(self, why: str) -> None:
        """A rank of this host has failed: all hosts are to stop."""
        self._stop(self.names[0], why)

    def interrupted(self, why: str, number: int) -> None:
        """This host was sent a stop signal: all hosts are to stop."""
        self._stop(self.names[0], why, number)

    # --- letters between the launchers of the hosts ---

    def post(self, to: int, body: dict[str, Any]) -> None:
        """Sends a letter to another host's launcher."""
        host = self.hosts[to - 1]
        host.posted += 1
        host.outbox.append(self._stamped({"type": "letter", "number": host.posted, "body": body}))
        self._send(host, host.outbox[-1])

    def absent(self) -> set[int]:
        """Node ranks of the hosts that are lost or have ended."""
        return self._settled

    def send(self, message: dict[str, Any]) -> bool:
        """Sends a message that is of no use later to all hosts; True."""
        self._broadcast(self._stamped(message))
        return True

    def send_to(self, name: str, message: dict[str, Any]) -> None:
        """Sends a message that is of no use later to one host."""
        for host in self.hosts:
            if host.name == name:
                self._send(host, self._stamped(message))

    def address_of(self, name: str) -> str:
        """The address that a host has connected from; its name while it is not connected."""
        return next((host.address for host in self.hosts if host.name == name and host.link is not None), name)

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
        self.hung = self.clock(), failure
        self._stop("Hang", failure.summary)

    # --- the end ---

    def leaving(self, report: Report) -> Generator[float, None, JobVerdict]:
        """Waits for the reports of all hosts, tells them the verdict, and returns it."""
        failure = yield from self._gathering(report)
        verdict = JobVerdict(
            failure=failure, stopped="" if failure is not None else stopped_early(self._reported(), self.stop)
        )
        yield from self._spreading(verdict)
        return verdict

    def _gathering(self, report: Report) -> Generator[float, None, Failure | None]:
        """Waits for the reports of all hosts, and returns the first cause of their failure, None where no host failed."""
        self.own = report
        self.own_at = said = self.clock()
        self._broadcast({"type": "left"})
        self._stop_for(self.names[0], report)
        while len(self._settled) < len(self.hosts):
            now = self.clock()
            patience = VERDICT_AFTER + (self.grace if self.stop_signal else 0.0)
            if self.stop is not None and now - max(self.stop.at, self.own_at) > patience:
                for host in self._unsettled():
                    self.say(f"{host.name}: no report after {patience:.0f} s")
                    self._lose(host, now, f"did not say how it ended within {patience:.0f} s of the stop")
                break
            if now - said >= 6 * SAY_EVERY:
                said = now
                self.say(f"this host has ended; waiting for {named(self._unsettled())}")
            yield 0.5
        failure = self._first_cause()
        while failure is None and self._gone():
            yield 0.2
            failure = self._first_cause()
        return failure

    def close(self) -> None:
        """Closes all connections."""
        self._over = True
        self.door.close()
        for host in self.hosts:
            if host.link is not None:
                host.link.close()
            if host.rival is not None:
                host.rival.link.close()
        self.poller.close()

    def _gone(self) -> list[Host]:
        """The hosts that have reported and are not there now; gives up those that stay away.

        One that has given this host up, or was killed, ends without success: then the job must not succeed here, either.
        """
        now = self.clock()
        gone = [host for host in self.hosts if not host.lost_at and (host.outside or not host.is_there(now, self._woke))]
        for host in gone:
            if host.outside:
                self._lose(host, now, STARTED_AGAIN)
            elif now - host.since > (GONE_AFTER if host.closed else LOST_AFTER):
                self._lose(host, now, "")
        return gone

    def _unsettled(self) -> list[Host]:
        return [host for host in self.hosts if not host.settled]

    def _reported(self) -> list[Reported]:
        own = [Reported(self.own, self.own_at)] if self.own is not None else []
        return own + [Reported(host.report, host.reported_at) for host in self.hosts if host.report is not None]

    def _first_cause(self) -> Failure | None:
        lost = [LostHost(host.name, host.seen, host.lost_at, host.lost_how) for host in self.hosts if host.lost_at]
        return first_cause(self._reported(), lost, self.hung, self._there() >= self.enough, self.stop, self._away)

    def _stop_for(self, host: str, report: Report) -> None:
        """Stops all hosts for the report of one whose ranks did not end well, if that is new."""
        if report.state == "done":
            return
        why = report.failure.summary if report.failure is not None else report.state
        if report.cause is not None:
            why = report.cause.summary
        number = report.stop_signal if report.state == "interrupted" else 0
        self._stop(host, "failed" if report.state == "failed" else why, number)

    # --- who comes in ---

    def _enter(self, link: Link, claim: Claim, address: str, now: float) -> None:
        """Takes a connection whose other side has proven the job's key."""
        if not 0 < claim.rank < len(self.names):
            self._refuse(link, f"{self.names[0]} knows of {len(self.names)} hosts, and of no host with number {claim.rank}")
            return
        host = self.hosts[claim.rank - 1]
        differing = claim.differs_in(self.key)
        if differing:
            self._refuse_other_job(link, host, differing)
        elif claim.leader.strip(b"\0") and claim.leader != self.incarnation:
            self._meet_earlier_job(link, claim, host, address, now)
        elif host.incarnation in (b"", claim.incarnation):
            self._connect(host, link, claim, address, now)
        else:
            if host.rival is not None:
                host.rival.link.close()
            host.rival = Rival(link, claim, address, now)

    def _refuse(self, link: Link, why: str) -> None:
        self.say(f"a host is refused: {why}")
        link.send({"type": "refused", "why": why})
        link.close()

    def _refuse_other_job(self, link: Link, host: Host, differing: list[str]) -> None:
        """Refuses a host that knows the job's token, but was started with another job."""
        why = f"{host.name} and {self.names[0]} were not started for the same job: their {' and '.join(differing)} differ"
        if not self.going and self.doom is None and not {"job name", "hosts"} & set(differing):
            self.doom = Failure(
                kind="ClusterError",
                summary=why,
                exit_code=ClusterError.exit_code,
                hint="start all hosts with the same program and hyperparameters",
                host=host.name,
            )
        self._refuse(link, why)

    def _meet_earlier_job(self, link: Link, claim: Claim, host: Host, address: str, now: float) -> None:
        """A host whose job was started by an earlier process of this host: neither that job nor a new one can go on."""
        failure = of_host0(self.names[0], STARTED_AGAIN)
        if self.going:
            self._refuse(link, failure.summary)
            return
        self.doom = self.doom or failure
        host.outside = True
        self._connect(host, link, claim, address, now)

    def _judge_rival(self, host: Host, rival: Rival, now: float) -> None:
        """Decides which of two processes with one name is alive: the first is where anything has come from it since."""
        if not rival.link.peer_is_there():
            host.rival = None
            rival.link.close()
        elif now - host.since > (RIVAL_RETURNS if host.link is None else RIVAL_SECONDS):
            host.rival = None
            self._replace(host, rival.link, rival.claim, rival.address, now)
        elif host.seen > rival.since + RIVAL_SETTLES:
            host.rival = None
            why = f"two hosts call themselves {host.name}: one at {host.address}, one at {rival.address}"
            if not self.going and self.doom is None:
                self.doom = Failure(
                    kind="ClusterError",
                    summary=why,
                    exit_code=ClusterError.exit_code,
                    hint="give each host a name of its own (`current_host` of resourceconfig.json, SM_CURRENT_HOST, "
                    "the scheduler's variable for its number)",
                    host=host.name,
                )
            self._refuse(rival.link, why)

    def _replace(self, host: Host, link: Link, claim: Claim, address: str, now: float) -> None:
        """Takes a process that was started in the place of one that is gone."""
        self._unready.add(host.rank)
        if not self.going:
            self._start_anew(host)
            host.outside = False
        elif not self._stops_without(host):
            if not host.lost_at:
                self._lose(host, now, "was started again")
                self._go_on_without(host)
        else:
            if not host.settled:
                self._lose(host, now, STARTED_AGAIN)
                self._stop(host.name, STARTED_AGAIN)
            host.outside = True
        self._connect(host, link, claim, address, now)

    def _connect(self, host: Host, link: Link, claim: Claim, address: str, now: float) -> None:
        """Uses a host's connection, and sends on it what the host may have missed."""
        ready = host.rank not in self._unready
        if ready:
            self._take_back(host)
        host.connect(link, claim.incarnation, address, now)
        self._awaited.discard(host.rank)
        self._untold.add(host.rank)
        self._catch_up(host, link)
        if self.stopping:
            link.send(self._stop_message())
        if self.verdict is not None:
            link.send(self.verdict)
        if not host.outside:
            if self.going and ready:
                link.send({"type": "go"})
            if self.own is not None:
                link.send({"type": "left"})
            for letter in host.outbox:
                link.send(letter)
        self.poller.watch_link(link, lambda now: self._read(host, link, now))
        self._read(host, link, now)

    def _catch_up(self, host: Host, link: Link) -> None:
        """Sends on a new connection what has to come before everything else that the host may have missed."""

    def _take_back(self, host: Host) -> None:
        """Counts on a lost host again that is there, and ready, while the job runs."""
        if host.lost_at and self.going and not self.stopping:
            self._start_anew(host)
            self.say(f"{host.name} has come back")

    # --- what they say ---

    def _read(self, host: Host, link: Link, now: float) -> None:
        messages = link.receive(now)
        if messages:
            host.hear(now)
        for message in messages:
            try:
                self._handle(host, message, now)
            except Exception as error:  # whatever a message does to those who read it, it does not end the job
                self.say(
                    f"{host.name} sent a message that cannot be read ({type(error).__name__}); its connection is closed"
                )
                link.close()
                break
        self.poller.note_output(link)
        if not link.open and host.link is link:
            host.disconnect(now)

    def _handle(self, host: Host, message: dict[str, Any], now: float) -> None:
        kind = message.get("type")
        if kind == "alive":
            return
        if kind == "bye":
            host.told = True
            self._untold.discard(host.rank)
        elif host.outside:
            return
        elif kind == "ready":
            if host.rank in self._unready:
                self._unready.discard(host.rank)
                if self.going:
                    self._take_back(host)
                    self._send(host, {"type": "go"})
        elif kind in ("failing", "interrupted"):
            if self.going:
                self._stop(host.name, line_of(message, "why"), signal_of(message) if kind == "interrupted" else 0)
        elif kind == "letter":
            host.taken = self._take_letter(host.rank, message, host.taken)
        elif kind == "ended":
            self._take_report(host, Report.of(message), now)
        else:
            self.hear(host.name, message)

    def _take_report(self, host: Host, report: Report, now: float) -> None:
        if host.report is not None:
            return
        host.report = report
        host.reported_at = now
        self._settled.add(host.rank)
        if self.going:
            self._stop_for(host.name, report)
        elif report.failure is not None and self.doom is None:
            self.doom = report.failure

    # --- what is sent ---

    def _send(self, host: Host, message: dict[str, Any]) -> None:
        if host.link is not None and not host.outside:
            host.link.send(message)
            self.poller.note_output(host.link)

    def _broadcast(self, message: dict[str, Any]) -> None:
        body, alive = encode(message), message["type"] == "alive"
        for host in self.hosts:
            if host.link is None or (host.outside and not alive and message["type"] != "verdict"):
                continue
            if not (alive and host.link.waiting):  # on a slow line it would keep what matters waiting
                host.link.send_encoded(body)
                self.poller.note_output(host.link)

    def _stop(self, host: str, why: str, number: int = 0) -> None:
        """Stops all hosts. number: the stop signal that was the reason, 0 where none was."""
        if self.stop is None:
            self.stop = Stop(self.clock(), host, why, number)
            self.stopping = self.stop.text
            self.stop_signal = number
            self._broadcast(self._stop_message())

    def _stop_message(self) -> dict[str, Any]:
        return {"type": "stop", "why": self.stopping, "signal": self.stop_signal}

    # --- who is lost ---

    def _look_for_loss(self, host: Host, now: float) -> None:
        if host.settled or now - host.since <= (GONE_AFTER if host.closed else LOST_AFTER):
            return
        self._lose(host, now, "")
        if host.link is not None:  # it has to come back by a new one
            host.disconnect(now)
        if not self._stops_without(host):
            self._go_on_without(host)
        else:
            self._stop(host.name, f"vanished (no sign of life for {now - host.seen:.0f} s)")

    def _lose(self, host: Host, now: float, how: str) -> None:
        host.lost_at = now
        host.lost_how = how
        self._settled.add(host.rank)
        self._lost.add(host.rank)

    def _start_anew(self, host: Host) -> None:
        host.start_anew()
        self._settled.discard(host.rank)
        self._lost.discard(host.rank)

    def _there(self) -> int:
        """How many hosts are not lost, this one included."""
        return len(self.names) - len(self._lost)

    def _stops_without(self, host: Host) -> bool:
        """Whether the job cannot go on without a host, or is stopping anyway."""
        others = self._there() - (host.rank not in self._lost)
        return others < self.enough or bool(self.stopping)

    def _go_on_without(self, host: Host) -> None:
        self.say(f"{host.name} {host.lost_how or 'vanished'}: going on with {self._there()} hosts")
        self._broadcast({"type": "lost", "host": host.name})
        self.on_lost(host.name)
