"""Which failure came first, from the reports of all hosts: the first cause of the whole job's failure."""

from __future__ import annotations

from trainshed.base.errors import ClusterError
from trainshed.base.record import Record
from trainshed.contract.outcome import Failure

from .messages import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Reported(Record):
    """A host's report. at: when it came, in seconds on host 0's clock."""

    report: Report
    at: float


class LostHost(Record):
    """A host that vanished without a report. seen, lost: when it was last heard, and when host 0 gave it up, in seconds."""

    name: str
    seen: float
    lost: float

    def failure(self) -> Failure:
        """Its loss as the job's failure."""
        return Failure(
            kind="ClusterError",
            summary=f"{self.name} vanished: no sign of life for {self.lost - self.seen:.0f} s",
            exit_code=ClusterError.exit_code,
            hint="the host was stopped or killed (spot capacity, memory, a crash), or the network to it is down; "
            "look at its log",
            host=self.name,
        )


def first_cause(
    reported: Sequence[Reported], lost: Sequence[LostHost], hung: tuple[float, Failure] | None, enough: bool
) -> Failure | None:
    """The failure that came first; None if no host failed.

    A failure that only speaks of a lost peer comes after all others, even after a lost host.

    Args:
        reported: the hosts' reports, host 0's first.
        lost: the hosts that vanished before they reported.
        hung: when the whole job was found to hang, and the failure that says so.
        enough: whether the job can go on without the hosts that are lost. Then their loss is a cause only where all other
            failures come from it.
    """
    causes = [
        (item.report.secondary, item.at - item.report.age, item.report.failure)
        for item in reported
        if item.report.failure is not None and item.report.state == "failed"
    ]
    if hung is not None:
        causes.append((False, *hung))
    if not enough or (causes and all(secondary for secondary, _, _ in causes)):
        causes += [(False, host.seen, host.failure()) for host in lost]
    if causes:
        return min(causes, key=lambda cause: cause[:2])[2]
    # No rank failed by itself: a host that was interrupted, and ended badly because of it, is the only cause left.
    ended = [item.report for item in reported if item.report.failure is not None]
    ended.sort(key=lambda report: report.state != "interrupted")
    return ended[0].failure if ended else None
