"""The roster of an elastic job: when the host that leads is lost the next one leads, and the ranks start again under it.

Each *term* is a roster of its own: that of host n (term n) has host n as its leader and the hosts after it as members, and
a key that is made from the job's. The job begins with term 0. Hosts that lose their leader stop their ranks, and go to the
next host of the last view that they were told (`quorum`); where that one does not answer, to the one after it. A new
leader starts its term with those that have come, if they are in the right. Whoever was lost before has no part in later
terms, and ends with the words that say so.
"""

from __future__ import annotations

import hmac
import time

from trainshed.base.errors import ClusterError
from trainshed.contract.outcome import Failure

from .connected import ConnectedRoster
from .elastic_hosts import ElasticLeader, ElasticMember
from .messages import SETTLE_SECONDS, JobVerdict
from .roster import LeaderMoved
from .verdict import cut_off, stop_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Any

    from .authentication import JobKey
    from .messages import Report
    from .quorum import View


class _Handover:
    """From the loss of a leader to the start of the next term.

    lost: the loss as a failure.
    view: the last view of the hosts, dead: those of it whose processes have certainly ended.
    since: when the host that is to lead was last there.
    """

    def __init__(self, lost: Failure, view: View, dead: set[int], since: float) -> None:
        self.lost = lost
        self.view = view
        self.dead = dead
        self.since = since
        self.over: Failure | None = None  # why there is no next term, for this host
        self.readied = -1  # the term for which this host has said that it is ready


class Succession(ConnectedRoster):
    """This host's part in the terms of one job."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        rank: int,
        key: JobKey,
        grace: float,
        say: Callable[[str], None],
        *,
        enough: int,
        port: int,
        where: Callable[[int, str], tuple[str, int]],
        listen_on: Callable[[], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            hosts: the job's hosts in the agreed order.
            rank: this host's number among them.
            key: what hosts of this job prove to know.
            grace: seconds that ranks get after a stop signal.
            enough: with how many hosts the job starts and goes on.
            port: the one on which a leader listens.
            where: (number of a host, the address that it has connected from or "") to where it is found as the leader.
            listen_on: the addresses of this host to listen on, should it lead.
        """
        super().__init__(hosts, rank, grace, say, clock)
        self.key = key
        self.enough = enough
        self.port = port
        self.where = where
        self.listen_on = listen_on
        self.handover: _Handover | None = None
        self.found: dict[int, str] = {}  # where hosts have connected from
        self.term = 0
        self.inner = self._roster_of(0)

    def _roster_of(self, term: int) -> ElasticLeader | ElasticMember:
        secret = hmac.digest(self.key.secret, b"term %d" % term, "sha256") if term else self.key.secret
        key = self.key.replace(secret=secret)
        made: ElasticLeader | ElasticMember
        if term == self.rank:
            made = ElasticLeader(
                *(self.names, term, self.port, key, self.grace, self.say),
                enough=self.enough,
                addresses=self.listen_on(),
                view=self.handover.view if self.handover is not None else None,
                dead=frozenset(self.handover.dead) if self.handover is not None else frozenset(),
                clock=self.clock,
            )
        else:
            where = self.where(term, self.found.get(term, ""))
            made = ElasticMember(self.names[term:], self.rank - term, where, key, self.grace, self.say, clock=self.clock)
            made.term = term
            made.role = "the leader" if term else made.role
        for kind, heard in self._listeners.items():
            made.listen(kind, heard)
        made.on_lost = lambda host: self.on_lost(host)
        return made

    # --- what every roster has: the present term's ---

    @property
    def leads(self) -> bool:
        """Tells whether this host leads now."""
        return isinstance(self.inner, ElasticLeader)

    @property
    def leader(self) -> str:
        """The host that leads, or is to."""
        return self.names[self.term]

    @property
    def address(self) -> str:
        """The address of the leader, as seen from here."""
        if isinstance(self.inner, ElasticMember):
            return self.inner.address[0]
        return self.where(self.term, "127.0.0.1")[0]

    @property
    def over(self) -> bool:
        """Tells whether the job has ended for this host."""
        return self.inner.over

    def descriptors(self) -> dict[int, int]:
        """Those of the present term."""
        return self.inner.descriptors()

    def pause(self) -> float:
        """That of the present term."""
        return self.inner.pause()

    def host_lost(self) -> bool:
        """Returns whether a host has vanished."""
        return self.handover is not None or self.inner.host_lost()

    def open(self) -> None:
        """See `ConnectedRoster.open`."""
        self.inner.open()

    def check_start(self) -> None:
        """See `ConnectedRoster.check_start`."""
        self.inner.check_start()

    def close(self) -> None:
        """Closes all connections."""
        self.inner.close()

    def failed(self, why: str) -> None:
        """A rank of this host has failed. While the leader is being replaced that comes from its loss."""
        if self.handover is None:
            self.inner.failed(why)
            self._mirror()

    def interrupted(self, why: str, number: int) -> None:
        """This host was sent a stop signal: all hosts are to stop."""
        if self.handover is not None:
            name = self.names[self.rank]
            self.handover.over = self.handover.over or stop_failure(f"{name}: {why}", name, number)
        self.inner.interrupted(why, number)
        self._mirror()

    def post(self, to: int, body: dict[str, Any]) -> None:
        """See `Roster.post`; numbers are those of the present term."""
        self.inner.post(to, body)

    def letters(self) -> list[tuple[int, dict[str, Any]]]:
        """See `Roster.letters`."""
        return self.inner.letters()

    def absent(self) -> set[int]:
        """See `Roster.absent`."""
        return self.inner.absent()

    def listen(self, kind: str, heard: Callable[[str, dict[str, Any]], None]) -> None:
        """See `Roster.listen`; in all terms."""
        super().listen(kind, heard)
        self.inner.listen(kind, heard)

    def send(self, message: dict[str, Any]) -> bool:
        """See `Roster.send`."""
        return self.inner.send(message)

    def present(self) -> list[str]:
        """See `Roster.present`."""
        return self.inner.present()

    def running(self) -> list[str]:
        """See `Roster.running`."""
        return self.inner.running()

    def hang(self, failure: Failure) -> None:
        """See `Roster.hang`."""
        self.inner.hang(failure)
        self._mirror()

    def joining(self, seconds: float) -> Iterator[float]:
        """See `Roster.join`."""
        for longest in self.inner.joining(seconds):
            self._mirror()
            yield longest
        self._mirror()

    def failing_before_start(self, failure: Failure, seconds: float) -> Iterator[float]:
        """See `Roster.fail_before_start`."""
        yield from self.inner.failing_before_start(failure, seconds)

    def exchange(self) -> None:
        """Takes the present term's turn; goes to the next one when its leader is lost."""
        self.inner.exchange()
        if isinstance(self.inner, ElasticMember):
            self.found.update(self.inner.addresses)
            if self.handover is not None and not self.inner.going:
                self._watch_candidate(self.handover, self.inner)
            elif self.inner.replaced():
                self._hand_over(self.inner)
        self._mirror()

    def _mirror(self) -> None:
        """What the base class reads."""
        self.stopping, self.stop_signal = self.inner.stopping, self.inner.stop_signal
        self.doom = self.inner.doom
        if self.handover is not None and not self.stopping:
            self.stopping = self.handover.lost.summary

    # --- the next term ---

    def _hand_over(self, lost: ElasticMember) -> None:
        """The leader is lost."""
        assert lost.given_up is not None
        lost.part()
        if lost.stood_still():  # the others have given this host up
            return
        dead = {self.term} if lost.fell else set()
        self.handover = _Handover(lost.given_up, lost.view, dead, self.clock())
        self._go_to_next(self.handover)

    def _watch_candidate(self, handover: _Handover, candidate: ElasticMember) -> None:
        """Gives up a host that was to lead, and does not answer."""
        now = self.clock()
        if candidate.verdict is not None or candidate.refused or handover.over is not None:
            return
        if candidate.link is not None:
            handover.since = now
        elif now - handover.since > SETTLE_SECONDS:
            if candidate.fell:
                handover.dead.add(self.term)
            candidate.part()
            self.say(f"{self.leader} does not answer, either")
            self._go_to_next(handover)

    def _go_to_next(self, handover: _Handover) -> None:
        """The next host of the view leads, if it can."""
        following = [number for number in sorted(handover.view) if number > self.term]
        if not following:  # not even this host is in it
            handover.over = cut_off(self.names[self.rank], self.names[self.rank])
            return
        self.term = following[0]
        handover.since = self.clock()
        self.inner = self._roster_of(self.term)
        self.say(f"{handover.lost.summary}: {'this host' if self.leads else self.leader} is to lead the job now")
        try:
            self.inner.open()
        except ClusterError as error:
            handover.over = Failure(
                kind="ClusterError",
                summary=f"{self.leader} cannot lead: {error.message}",
                exit_code=ClusterError.exit_code,
                hint=error.hint,
                host=self.leader,
            )

    # --- the end, or a new beginning ---

    def leaving(self, report: Report) -> Generator[float, None, JobVerdict]:
        """See `Roster.leave`. Raises LeaderMoved: another host leads now, and the ranks are to be started again."""
        if self.handover is None:
            inner = self.inner
            waiting = inner.leaving(report)
            while self.inner is inner and self.handover is None:
                try:
                    longest = next(waiting)
                except StopIteration as end:
                    verdict: JobVerdict = end.value
                    return verdict
                yield longest
        handover = self.handover
        assert handover is not None
        if report.state == "interrupted" and handover.over is None:
            name = self.names[self.rank]
            handover.over = report.failure or stop_failure(report.early or f"{name} was stopped", name)
        failure = yield from self._beginning(handover, report)
        if failure is not None:
            self.inner.close()
            return JobVerdict(failure=failure)
        self.handover = None
        self._mirror()
        raise LeaderMoved(handover.lost)

    def _beginning(self, handover: _Handover, report: Report) -> Generator[float, None, Failure | None]:
        """Waits for the start of the next term; why there is none, or None."""
        while True:
            inner = self.inner
            if handover.over is not None:
                if isinstance(inner, ElasticMember) and inner.link is not None:
                    yield from inner.failing_before_start(handover.over, 1.0)
                return handover.over
            if isinstance(inner, ElasticLeader):
                try:
                    for longest in inner.joining(0.0):
                        if handover.over is not None:
                            yield from inner.failing_before_start(handover.over, 1.0)
                            return handover.over
                        yield longest
                except ClusterError as error:
                    known = getattr(error, "failure", None)
                    return known or Failure(
                        "ClusterError", error.message, error.exit_code, hint=error.hint, host=self.leader
                    )
                return None
            if inner.verdict is not None:
                return inner.verdict.failure or handover.lost
            if inner.refused:
                return stop_failure(inner.refused, self.names[self.rank])
            if inner.going and inner.view:
                return None
            if handover.readied != self.term:
                handover.readied = self.term
                inner.say_ready(handover.view, handover.dead)
            yield 0.2
