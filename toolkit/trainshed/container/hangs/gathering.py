"""Host 0's half of hang reports: which hosts stand still, whose parts have come, and the report made of them."""

from __future__ import annotations

import time

from .hang_report import HangReport, HostReport, put_together, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..roster.roster import Roster

GATHER_SECONDS = 20.0  # that the other hosts get for their parts


class ReportRequest:
    """A report in the making.

    number: what the hosts name it by.
    hang: what makes host 0 believe that the job hangs, for the user; "" where nothing does.
    asked: who asked for the report, for the user; "" where nobody did.
    late: which collective has timed out, for the user; "" where none has.
    missing: the hosts whose parts are awaited.
    parts: those that have come, by host.
    until: when host 0 goes on without the rest.
    """

    def __init__(self, number: int, hosts: list[str], until: float) -> None:
        self.number = number
        self.hang = ""
        self.asked = ""
        self.late = ""
        self.missing = set(hosts)
        self.parts: dict[str, HostReport] = {}
        self.until = until


class Gatherer:
    """Asks all hosts for their parts, and puts them together. One request at a time."""

    def __init__(self, host: str, folder: str, roster: Roster, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            host: this host's name.
            folder: where reports go.
            clock: seconds.
        """
        self._host = host
        self._folder = folder
        self._roster = roster
        self._clock = clock
        self._still: set[str] = set()
        self._reported = False  # whether the hang that goes on has been reported
        self._count = 0
        self.request: ReportRequest | None = None

    def note(self, host: str, still: bool) -> None:
        """Notes whether a host's ranks stand still."""
        if still:
            self._still.add(host)
        else:
            self._still.discard(host)
            self._reported = False

    def all_stand_still(self) -> bool:
        """Returns whether no rank of any host moves, which has not been reported or asked about yet."""
        if not self._still or self._reported or self.request is not None:
            return False
        running = self._roster.running()
        return bool(running) and self._still.issuperset(running)

    def ask(self, *, hang: str = "", asked: str = "", late: str = "") -> int:
        """Asks the other hosts for their parts, unless a report is in the making; see `ReportRequest` for the reasons.

        Returns:
            The number under which this host has to deliver its part, too; 0 where it has been asked already.
        """
        number = 0
        if self.request is None:
            self._count = number = self._count + 1
            self.request = ReportRequest(number, self._roster.present(), self._clock() + GATHER_SECONDS)
            self._roster.send({"type": "hang", "do": "look", "id": number})
        self.request.hang = self.request.hang or hang
        self.request.asked = self.request.asked or asked
        self.request.late = self.request.late or late
        return number

    def take(self, number: Any, part: HostReport) -> bool:
        """Takes a host's part; False where it does not belong to the report in the making."""
        if self.request is None or self.request.number != number:
            return False
        self.request.parts[part.host] = part
        self.request.missing.discard(part.host)
        return True

    def take_message(self, host: str, message: dict[str, Any]) -> None:
        """Takes another host's part; ignores one that cannot be read, or that names a third host."""
        try:
            part = HostReport.of(message["part"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        if part.host == host:
            self.take(message.get("id"), part)

    def finished(self) -> ReportRequest | None:
        """The request whose parts have all come, or whose time is over; None while there is no such request."""
        request = self.request
        if request is None or (request.missing and self._clock() <= request.until):
            return None
        self.request = None
        return request

    def report(self, request: ReportRequest) -> tuple[HangReport, str, bool] | None:
        """Puts the parts together, writes the report, and tells the other hosts its sentence.

        Returns:
            The report, its path ("" where it could not be written), and whether the job hangs. None where nobody asked
            for it and something has moved meanwhile.
        """
        moved = any(part.moved for part in request.parts.values())
        hang = bool(request.hang) and not moved
        why = request.hang if hang else request.late or request.asked
        if not why:
            return None
        parts = [request.parts[host] for host in self._roster.names if host in request.parts]
        report = put_together(why, parts, sorted(request.missing))
        path = write(self._folder, self._host, report.text())
        self._roster.send({"type": "hang", "do": "told", "sentence": report.verdict.sentence})
        self._reported = self._reported or hang
        return report, path, hang
