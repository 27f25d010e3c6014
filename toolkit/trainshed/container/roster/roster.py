"""The job's hosts as one host's `train` sees them: the base class of rosters, and the roster of a job on one host."""

from __future__ import annotations

from ..supervisor.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.contract.outcome import Failure
    from trainshed.machine.signals import Stops

    from .messages import JobVerdict, Report
    from .restart_barrier import Decision, Rest


class LeaderMoved(Exception):
    """Another host leads: the ranks are to be started again. lost: the loss of the one before it, as a failure."""

    def __init__(self, lost: Failure) -> None:
        super().__init__(lost.summary)
        self.lost = lost


class Preparing(Watcher):
    """A roster's part in the runs before the hosts meet: they are abandoned when the job cannot start any more."""

    def look(self) -> None:
        """A turn between such runs. Raises ClusterError where it is known that the job cannot start."""


class Roster(Watcher):
    """This host's part in the roster; a watcher of the supervisor's loop.

    names: the job's hosts in the agreed order.
    rank: this host's index among them.
    on_lost: takes the name of a host that has vanished and without which the job goes on.
    restarts: whether its hosts may start their ranks again together (`rest`).
    on_wait: called after each turn that the roster takes outside the supervisor's loop, while it waits for other hosts.
    """

    restarts = False

    def __init__(self, names: tuple[str, ...], rank: int) -> None:
        self.names = names
        self.rank = rank
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        self.on_lost: Callable[[str], None] = lambda host: None
        self.on_wait: Callable[[], None] = lambda: None

    @property
    def leads(self) -> bool:
        """Tells whether this is host 0, which decides for all."""
        return self.rank == 0

    def listen(self, kind: str, heard: Callable[[str, dict[str, Any]], None]) -> None:
        """Has messages of a type that the roster itself does not know come to `heard`, as (host, message)."""
        self._listeners[kind] = heard

    def hear(self, host: str, message: dict[str, Any]) -> None:
        """Hands a message to who listens to its type; one that nobody listens to is of no use."""
        heard = self._listeners.get(str(message.get("type")))
        if heard is not None:
            heard(host, message)

    def send(self, message: dict[str, Any]) -> bool:
        """Sends a message that is of no use later: host 0 to all others, they to host 0.

        Returns:
            False where there is no connection now.
        """
        raise NotImplementedError

    # --- letters between the launchers of the hosts: each arrives once, in order, also over a new connection ---

    def post(self, to: int, body: dict[str, Any]) -> None:
        """Sends a letter to another host's launcher; `to` is its node rank, 0 everywhere but on host 0."""
        raise NotImplementedError

    def letters(self) -> list[tuple[int, dict[str, Any]]]:
        """The letters that have come since the last call, as (node rank of the sender, body)."""
        raise NotImplementedError

    def absent(self) -> set[int]:
        """Node ranks of the hosts that are lost or have ended, as far as this host knows."""
        raise NotImplementedError

    def preparing(self) -> Preparing:
        """The listener that hears the other hosts while this one prepares itself."""
        return Preparing()

    def join(self, seconds: float) -> None:
        """Waits until all hosts are there, and the job may start.

        Raises:
            ClusterError: the hosts cannot meet, or some are missing after `seconds`.
            FailedElsewhere: another host could not start.
        """
        raise NotImplementedError

    def fail_before_start(self, failure: Failure, seconds: float) -> None:
        """Tells the other hosts that this one could not start; those that come within `seconds`."""
        raise NotImplementedError

    def rest(self, report: Report, decide: Callable[[Rest], Decision], stops: Stops) -> Decision:
        """Reports how this host's ranks ended, waits for the other hosts, and returns what all of them do next.

        Only where `restarts`, after every end of the ranks. What it returns is either that all start their ranks again, or
        that it is over; `leave` comes then.

        Args:
            decide: called on host 0, which decides for all.
            stops: one that has come, or comes while this host waits, stops all hosts.
        """
        raise NotImplementedError

    def leave(self, report: Report) -> JobVerdict:
        """Reports how this host ended, waits for the other hosts, and returns the verdict on the whole job."""
        raise NotImplementedError

    # --- host 0 only ---

    def present(self) -> list[str]:
        """The hosts that are not lost, this one first."""
        raise NotImplementedError

    def running(self) -> list[str]:
        """The hosts whose ranks have not ended; empty once the job is stopping."""
        raise NotImplementedError

    def hang(self, failure: Failure) -> None:
        """Stops all hosts because the whole job hangs."""
        raise NotImplementedError


class Alone(Roster):
    """The roster of a job on one host: there is nobody to talk to."""

    def __init__(self, name: str) -> None:
        super().__init__((name,), 0)

    def join(self, seconds: float) -> None:
        """Nobody else is to come."""

    def fail_before_start(self, failure: Failure, seconds: float) -> None:
        """Nobody waits for this host."""

    def send(self, message: dict[str, Any]) -> bool:
        """True: all other hosts have got it."""
        return True

    def letters(self) -> list[tuple[int, dict[str, Any]]]:
        """None ever comes."""
        return []

    def absent(self) -> set[int]:
        """No host is missing."""
        return set()

    def present(self) -> list[str]:
        """This host."""
        return list(self.names)

    def running(self) -> list[str]:
        """This host."""
        return list(self.names)

    def hang(self, failure: Failure) -> None:
        """The run itself is stopped by who found the hang; there is nobody else to stop."""
