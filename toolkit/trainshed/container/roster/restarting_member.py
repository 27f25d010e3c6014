"""The roster of every host but the first, of a job whose ranks may be started again on all hosts: see `rounds`."""

from __future__ import annotations

from .member import Member
from .messages import LOST_AFTER, VERDICT_AFTER
from .restart_barrier import Decision, of_this_round

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from .messages import JobVerdict, Report
    from .restart_barrier import Rest


class RestartingMember(Member):
    """See `Member`.

    round: number of the present round.
    """

    restarts = True
    round = 0
    _decision = Decision()
    _last: Report | None = None  # the last report, which every further round gets

    def resting(self, report: Report, decide: Callable[[Rest], Decision]) -> Generator[float, None, Decision]:
        """See `Roster.rest`: reports, and waits for what host 0 decides.

        It is over where nobody decides: host 0 is lost, or could not start its own ranks, and has the verdict already.
        """
        began, start = self.round, self.clock()
        self._tell(report.message())
        patience = 2 * VERDICT_AFTER + LOST_AFTER
        while self.round == began and self.verdict is None and not self.refused:
            if self.given_up is not None and self.link is None:
                break
            if self.stopping and self.clock() - start > patience + (self.grace if self.stop_signal else 0.0):
                break
            yield 0.5
        return self._decision if self.round > began and self.given_up is None else Decision()

    def leaving(self, report: Report) -> Generator[float, None, JobVerdict]:
        """See `Member.leaving`."""
        self._last = report
        verdict = yield from super().leaving(report)
        return verdict

    def _begin(self, number: int, decision: Decision) -> None:
        self.round = number
        self._decision = decision
        self.left = False
        self.inbox = []
        self.unsaid = [message for message in self.unsaid if "round" not in message]
        if self.given_up is not None:  # host 0 has come back, too late for this host
            self._tell({"type": "failing", "why": self.given_up.summary})
        elif decision.again:
            self.stopping, self.stop_signal = "", 0
        if self._last is not None:
            self._tell(self._last.message())

    def _stamped(self, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "round": self.round}

    def _handle(self, message: dict[str, Any]) -> None:
        if message.get("type") == "round":
            number = message["number"]
            if isinstance(number, int) and number > self.round:
                self._begin(number, Decision.of(message))
        elif of_this_round(message, self.round):
            super()._handle(message)
