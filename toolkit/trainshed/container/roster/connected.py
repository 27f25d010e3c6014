"""What both sides of a roster have in common: turns inside and outside the supervisor's loop, and letters."""

from __future__ import annotations

import select

from .roster import Roster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..supervisor.watcher import Supervised


class ConnectedRoster(Roster):
    """A roster of several hosts.

    stopping: why all ranks of the job have to stop, "" while they need not.
    stop_interrupts: whether that is a stop signal or a notice, so that ranks get the job's whole grace.
    """

    def __init__(self, names: tuple[str, ...], rank: int, grace: float, say: Callable[[str], None]) -> None:
        super().__init__(names, rank)
        self.grace = grace
        self.say = say
        self.stopping = ""
        self.stop_interrupts = False
        self.inbox: list[tuple[int, dict[str, Any]]] = []

    def exchange(self) -> None:
        """Reads what other hosts have sent, and sends what is due."""
        raise NotImplementedError

    def host_lost(self) -> bool:
        """Whether a host has vanished."""
        raise NotImplementedError

    def turn(self, run: Supervised) -> None:
        """Exchanges messages; stops this host's ranks when another host fails or is lost."""
        self.exchange()
        if self.stopping:
            run.stop_for_others(self.stopping, self.stop_interrupts, self.host_lost())

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
