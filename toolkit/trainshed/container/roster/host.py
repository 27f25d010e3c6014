"""Another host as host 0 sees it."""

from __future__ import annotations

from trainshed.base.errors import some
from trainshed.base.record import Record

from .messages import ALIVE_EVERY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .authentication import Claim
    from .link import Link
    from .messages import Report

MOST_NAMED = 8  # hosts in one message
HERE = 3 * ALIVE_EVERY  # seconds since a sign of life for which a connected host counts as there


class Rival(Record):
    """A connection of a process that calls itself by the name of a host that is connected already.

    address: where it comes from.
    since: when it came.
    """

    link: Link
    claim: Claim
    address: str
    since: float


class Host:
    """Moments are on the leader's clock.

    incarnation: of the process that takes part; empty before it has come.
    address: where its connection comes from.
    seen: when it was last heard.
    since: from when on its silence counts: `seen`, plus the time in which this process itself was suspended.
    closed: whether its connection was closed since it was last heard.
    told: whether it has taken the verdict, or does not want it.
    lost_at: when it was given up, 0 while it is there.
    lost_how: how, for the user.
    outbox: all letters to it; sent again on a new connection, where their numbers tell it which ones it has.
    posted: number of the last of them.
    taken: number of its last letter that has come.
    rival: another process of its name, while it is not known which of them is alive.
    outside: whether what is connected now is not the process that took part in the job: it only gets the verdict.
    """

    def __init__(self, rank: int, name: str, now: float) -> None:
        self.rank = rank
        self.name = name
        self.link: Link | None = None
        self.address = ""
        self.incarnation = b""
        self.seen = now
        self.since = now
        self.closed = False
        self.told = False
        self.lost_at = 0.0
        self.lost_how = ""
        self.report: Report | None = None
        self.reported_at = 0.0
        self.outbox: list[dict[str, Any]] = []
        self.posted = 0
        self.taken = 0
        self.rival: Rival | None = None
        self.outside = False

    @property
    def settled(self) -> bool:
        """Tells whether it has reported or is lost."""
        return self.report is not None or bool(self.lost_at)

    def is_there(self, now: float, woke: float) -> bool:
        """Returns whether it is connected, and was heard a moment ago.

        Args:
            woke: when this process was last resumed; what is read then may have been waiting for long.
        """
        return self.link is not None and now - self.seen <= HERE and self.seen > woke + ALIVE_EVERY / 2

    def hear(self, now: float) -> None:
        """Notes a sign of life."""
        self.seen = now
        self.since = now
        self.closed = False

    def connect(self, link: Link, incarnation: bytes, address: str, now: float) -> None:
        """Uses a new connection from now on."""
        if self.link is not None:
            self.link.close()
        self.link = link
        self.incarnation = incarnation
        self.address = address
        self.told = False
        self.hear(now)

    def disconnect(self, now: float) -> None:
        """Its connection is closed."""
        if self.link is not None:
            self.link.close()
        self.link = None
        self.closed = True
        self.since = now

    def start_anew(self) -> None:
        """Forgets what it has sent so far: it was lost, or another process has taken its place."""
        self.lost_at = 0.0
        self.lost_how = ""
        self.report = None
        self.taken = 0
        self.outbox = []
        self.posted = 0


def named(hosts: list[Host]) -> str:
    """The hosts' names, for a message; not all of very many."""
    return some([host.name for host in hosts], MOST_NAMED)
