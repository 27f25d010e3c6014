"""Host 0's roster of a job whose ranks may be started again on all hosts: see `rounds`."""

from __future__ import annotations

from .leader import Leader
from .restart_barrier import Decision, Rest, of_this_round

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from .host import Host
    from .link import Link
    from .messages import Report


class RestartingLeader(Leader):
    """See `Leader`.

    round: number of the present round.
    """

    restarts = True
    round = 0
    _decision: Decision | None = None  # that has begun it
    _interrupted = ""  # which host was sent a stop signal

    def resting(self, report: Report, decide: Callable[[Rest], Decision]) -> Generator[float, None, Decision]:
        """See `Roster.rest`: waits for all hosts, decides, and tells them."""
        failure = yield from self._gathering(report)
        while failure is not None and not self._lost and self._gone():
            yield 0.2
        decision = decide(Rest(failure, self._reports(), self._obstacle()))
        self._begin(decision)
        return decision

    def interrupted(self, why: str, number: int) -> None:
        """See `Leader.interrupted`."""
        self._interrupted = self._interrupted or self.names[0]
        super().interrupted(why, number)

    def _reports(self) -> dict[str, Report]:
        own = {self.names[0]: self.own} if self.own is not None else {}
        return {**own, **{host.name: host.report for host in self.hosts if host.report is not None}}

    def _obstacle(self) -> str:
        """Why the ranks cannot be started again, whatever the job allows."""
        if self._interrupted:
            return f"{self._interrupted} was asked to stop"
        gone = [host.name for host in self.hosts if host.lost_at]
        if gone:
            return f"{gone[0]} is lost"
        return next(
            (f"{name} cannot start its ranks again" for name, report in self._reports().items() if not report.again), ""
        )

    def _begin(self, decision: Decision) -> None:
        """Begins the next round, also if it is one without ranks, in which the hosts only tell how they have ended."""
        self.round += 1
        self._decision = decision
        self.own = None
        self.inbox = []
        for host in self.hosts:
            host.report = None
            host.outbox = []
        self._settled = set(self._lost)
        if decision.again:
            self.stop = None
            self.stopping, self.stop_signal = "", 0
            self.hung = self._away = None
        self._broadcast(decision.message(self.round))

    def _catch_up(self, host: Host, link: Link) -> None:
        if self._decision is not None and not host.outside:
            link.send(self._decision.message(self.round))

    def _stamped(self, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "round": self.round}

    def _handle(self, host: Host, message: dict[str, Any], now: float) -> None:
        if not of_this_round(message, self.round):
            return
        if message.get("type") == "interrupted" and not host.outside:
            self._interrupted = self._interrupted or host.name
        super()._handle(host, message, now)
