"""The hosts of an elastic job. The leader starts and goes on without some of them, and tells the others who is left.

The job's first host leads first (term 0). When a leader is lost the next host of the view leads the term of its own number
(`succession`), with the hosts that come to it, if `quorum` lets them.
"""

from __future__ import annotations

import time
from types import MappingProxyType

from trainshed.base.errors import ClusterError, some
from trainshed.contract.outcome import Failure

from .leader import Leader
from .member import Member
from .messages import GONE_AFTER, HANDOVER_AFTER, SETTLE_SECONDS, VERDICT_AFTER, JobVerdict
from .quorum import in_the_right
from .verdict import cut_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from typing import Any

    from .authentication import Claim, JobKey
    from .host import Host
    from .link import Link
    from .messages import Report
    from .quorum import View


class ElasticLeader(Leader):
    """Host numbers are those of the whole job here, and counted from the leader in the base class."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        term: int,
        port: int,
        key: JobKey,
        grace: float,
        say: Callable[[str], None],
        *,
        enough: int,
        addresses: Sequence[str] = ("",),
        view: View | None = None,
        dead: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            hosts: all hosts of the job in the agreed order.
            term: this host's number, which is its term's.
            key: of this term.
            view: the hosts that made up the job when the leader before this one was lost; None for the first leader.
            dead: hosts that were lost before, and certainly have ended.
        """
        super().__init__(hosts[term:], port, key, grace, say, enough=enough, addresses=addresses, clock=clock)
        self.term = term
        self.heir = view is not None  # until the hosts of its own first view have taken it
        self.views: list[View] = [] if view is None else [view]
        self.dead = set(dead)
        self.cut_off: Failure | None = None  # that it may not go on with the hosts that are left
        self._since = clock()
        self._number = 0  # of the newest view
        self._taken: set[int] = set()  # hosts that have taken it
        for host in self.hosts:
            if view is not None and term + host.rank not in view:  # it may come all the same
                self._lose(host, self.clock(), "was lost before")
                self._awaited.discard(host.rank)
                self._unready.discard(host.rank)

    # --- the start of a term ---

    def joining(self, seconds: float) -> Iterator[float]:
        """See `Leader.joining`; an heir waits a few seconds for the others, and starts if it is in the right.

        Raises:
            ClusterError: the port cannot be used, or too few hosts have come.
        """
        if not self.heir:
            yield from super().joining(seconds)
            self._tell_view()
            return
        self.open()
        began = self.clock()
        while self._unready and self.doom is None and not self.stopping:
            now = self.clock()
            for host in self.hosts:
                gone = host.link is None and now - max(self._since, host.seen) > (
                    GONE_AFTER if host.closed else SETTLE_SECONDS
                )
                if host.rank in self._unready and (gone or now - began > self.grace + VERDICT_AFTER):
                    self._lose(host, now, "did not come" if gone else "was not ready")
                    self._awaited.discard(host.rank)
                    self._unready.discard(host.rank)
            yield 0.1
        if self.doom is None and not self.stopping and self._may_go_on():
            self.going = True
            self._broadcast({"type": "go"})
            self._tell_view()
            while self.heir and not self.stopping:
                yield 0.1
        why = self.cut_off or self._too_few()
        if self.heir:
            if self.stop is not None and self.cut_off is None:
                why = self.stop.failure()
            yield from self._spreading(JobVerdict(failure=self.doom or why))
            raise ClusterError((self.doom or why).summary, hint=(self.doom or why).hint)

    def _too_few(self) -> Failure:
        there = some([self.names[0], *(host.name for host in self.hosts if not host.lost_at)], 8)
        if self._there() < self.enough:
            return Failure(
                kind="ClusterError",
                summary=f"the leading host vanished, and {there} alone {'is' if self._there() == 1 else 'are'} fewer than "
                f"trainshed_min_nodes = {self.enough}",
                exit_code=ClusterError.exit_code,
                hint="look at the logs of the hosts that are missing; `retries` starts the job again from its checkpoint",
                host=self.names[0],
            )
        return cut_off(self.names[0], there)

    # --- who is left ---

    def _present(self) -> frozenset[int]:
        return frozenset({self.term, *(self.term + host.rank for host in self.hosts if not host.lost_at)})

    def _may_go_on(self, without: Host | None = None) -> bool:
        there = self._present() - ({self.term + without.rank} if without is not None else set())
        leader = None if self.heir else self.term
        return len(there) >= self.enough and in_the_right(self.views, there, self.dead, leader)

    def _tell_view(self) -> None:
        """Tells all hosts who is left, and where they are, if that is new."""
        view = self._present()
        if not self.going or self.stopping or (self._number and self.views[-1] == view):
            return
        self._number += 1
        self._taken = {self.term}
        self.views.append(view)
        self._broadcast(self._view_message())
        self._settle_view()

    def _view_message(self) -> dict[str, Any]:
        addresses = {str(self.term + host.rank): host.address for host in self.hosts if host.address and not host.lost_at}
        return {"type": "view", "number": self._number, "hosts": sorted(self.views[-1]), "addresses": addresses}

    def _settle_view(self) -> None:
        """Forgets earlier views once all hosts have taken the newest one."""
        if self.views[-1] == self._present() and self._taken >= self.views[-1]:
            self.views = [self.views[-1]]
            self.heir = False

    def exchange(self) -> None:
        """See `Leader.exchange`."""
        # On one machine hosts that still look for the leader before this one find it here, with another term's key.
        self.door.silent = self.term > 0 and self.clock() - self._since < GONE_AFTER + SETTLE_SECONDS
        super().exchange()
        if self.going:
            self._tell_view()

    def _stops_without(self, host: Host) -> bool:
        if super()._stops_without(host):
            return True
        if self._may_go_on(host):
            return False
        there = [self.names[0], *(other.name for other in self.hosts if not other.lost_at and other is not host)]
        self.cut_off = cut_off(self.names[0], some(there, 8))
        self._stop(self.names[0], self.cut_off.summary)
        return True

    def _count_away(self, now: float, away: float) -> None:
        super()._count_away(now, away)
        if self.going and away > HANDOVER_AFTER:  # the others have a new leader, or have ended
            self._stop(self.names[0], f"was suspended for {away:.0f} s, and the other hosts gave it up")

    # --- what hosts say ---

    def _connect(self, host: Host, link: Link, claim: Claim, address: str, now: float) -> None:
        super()._connect(host, link, claim, address, now)
        if self.going and host.link is link and not host.outside and self._number:
            self._send(host, self._view_message())

    def _handle(self, host: Host, message: dict[str, Any], now: float) -> None:
        kind = message.get("type")
        number = self.term + host.rank
        if kind == "taken":
            if message["number"] == self._number:
                self._taken.add(number)
                self._settle_view()
        elif kind == "lost leader":
            if self.heir:
                self.views.append(frozenset(int(one) for one in message["view"]))
                self.dead.update(int(one) for one in message["dead"] if int(one) < self.term)
        elif kind == "ready" and host.lost_at and not self.going:
            self._start_anew(host)
        else:
            super()._handle(host, message, now)

    # --- the end ---

    def leaving(self, report: Report) -> Generator[float, None, JobVerdict]:
        """See `Leader.leaving`."""
        if self.cut_off is not None and report.cause is None:
            report = report.replace(cause=self.cut_off)
        verdict = yield from super().leaving(report)
        return verdict


class ElasticMember(Member):
    """See `Member`. Host numbers are counted from the leader there.

    term: the leader's number in the whole job.
    view: the hosts that make up the job, as the leader has told; empty before that.
    addresses: where the leader has them connect from, by their numbers.
    told_to_stop: whether the leader has stopped the job.
    """

    term = 0
    view: View = frozenset()
    addresses: Mapping[int, str] = MappingProxyType({})
    _closed_by_peer = False  # whether the leader's kernel has closed the last connection
    told_to_stop = False

    def replaced(self) -> bool:
        """Returns whether the leader is lost, and another host may lead the job on."""
        return (
            self.given_up is not None
            and self.verdict is None
            and bool(self.view)
            and not (self.told_to_stop or self.refused)
        )

    def stood_still(self) -> bool:
        """Returns whether it is this host that the others have given up, since its process was suspended."""
        return self._away > HANDOVER_AFTER

    @property
    def fell(self) -> bool:
        """Tells whether the leader's process has certainly ended: its machine says so, which can be reached.

        The kernel there has closed the connection, and refuses another one on the port on which a leader listens as long
        as it lives, also while it is stopped.
        """
        return self._closed_by_peer and self.dialer.refused

    def part(self) -> None:
        """Leaves the leader for good."""
        if self.link is not None:
            self.link.close()
            self.link = None
        self.dialer.close()

    def say_ready(self, view: View, dead: set[int]) -> None:
        """Tells a new leader that the ranks of this host have ended, and what it knows of the hosts."""
        self._tell({"type": "lost leader", "view": sorted(view), "dead": sorted(dead)})
        self._tell({"type": "ready"})

    def _lost(self, now: float) -> bool:
        """The leader gives up silent hosts first, so that it has stopped, or is in the right, when they make another one."""
        return self.going and now - self.since > (GONE_AFTER if self.closed else HANDOVER_AFTER)

    def _read(self, link: Link, now: float) -> None:
        super()._read(link, now)
        self._closed_by_peer = link.by_peer

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "view":
            hosts = frozenset(int(one) for one in message["hosts"])
            self.addresses = {int(one): str(address) for one, address in message["addresses"].items()}
            self.view = hosts
            self._send_taken(message["number"])
        else:
            self.told_to_stop = self.told_to_stop or kind == "stop"
            super()._handle(message)

    def _send_taken(self, number: object) -> None:
        if self.link is not None:
            self.link.send({"type": "taken", "number": number})
