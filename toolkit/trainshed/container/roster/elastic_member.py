"""A member of an elastic job: knows who is left, and whether its leader's process has ended or is only silent."""

from __future__ import annotations

from types import MappingProxyType

from .member import Member
from .messages import GONE_AFTER, HANDOVER_AFTER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .link import Link
    from .quorum import View


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
