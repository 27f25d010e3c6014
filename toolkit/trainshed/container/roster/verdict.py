"""Which failure came first, from the reports of all hosts: the first cause of the whole job's failure.

Whenever a host has failed, was lost, or had to stop, there is a cause: that ranks were asked to stop is never one.
"""

from __future__ import annotations

from trainshed.base.errors import EXIT_SIGNAL_BASE, ClusterError
from trainshed.base.record import Record
from trainshed.contract.outcome import Failure

from .messages import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LOST = "the host was stopped or killed (spot capacity, memory, a crash), or the network to it is down; look at its log"


class Reported(Record):
    """A host's report. at: when it came, in seconds on host 0's clock."""

    report: Report
    at: float


STARTED_AGAIN = "was started again while the job ran: what it had computed is gone"


class LostHost(Record):
    """A host that was lost, also if it came back later.

    seen, lost: when it was last heard, and when host 0 gave it up, in seconds.
    how: what has happened to it, "" where all that is known is that it was not heard.
    """

    name: str
    seen: float
    lost: float
    how: str = ""

    def failure(self) -> Failure:
        """Its loss as the job's failure."""
        return Failure(
            kind="ClusterError",
            summary=f"{self.name} {self.how or f'vanished: no sign of life for {self.lost - self.seen:.0f} s'}",
            exit_code=ClusterError.exit_code,
            hint=_LOST,
            host=self.name,
        )


class Stop(Record):
    """Why host 0 had all hosts stop.

    at: when, in seconds on its clock.
    host: where the reason is.
    why: what happened there.
    signal: the stop signal that it was, SIGTERM for a notice; 0 for anything else.
    """

    at: float
    host: str
    why: str
    signal: int = 0

    @property
    def text(self) -> str:
        """Host and reason, for the user."""
        return f"{self.host}: {self.why}"

    def failure(self) -> Failure:
        """The stop as the job's failure, where nothing else says more."""
        return stop_failure(self.text, self.host, self.signal)


def stop_failure(text: str, host: str, number: int = 0) -> Failure:
    """The failure of a job that was stopped, where only the reason for the stop is known; by signal `number`, 0 for none."""
    if number:
        return Failure(kind="Interrupted", summary=text, exit_code=EXIT_SIGNAL_BASE + number, host=host)
    return Failure(
        kind="ClusterError",
        summary=text,
        exit_code=ClusterError.exit_code,
        hint="the host said no more than that; look at its log",
        host=host,
    )


def of_host0(host: str, what: str, role: str = "the first host") -> Failure:
    """Says what has happened to host 0, or to whoever leads, as the job's failure."""
    return Failure(
        kind="ClusterError",
        summary=f"{host} ({role}) {what}",
        exit_code=ClusterError.exit_code,
        hint=_LOST,
        host=host,
    )


def cut_off(host: str, there: str) -> Failure:
    """That a host can reach too few others to go on, as the job's failure. there: the hosts that it can reach."""
    return Failure(
        kind="ClusterError",
        summary=f"{there} cannot reach the other hosts, which may go on by themselves: this part of the job ends",
        exit_code=ClusterError.exit_code,
        hint="of an elastic job the larger part goes on, or the leader's of two halves; look at the network between them",
        host=host,
    )


def suspended(host: str, seconds: float, role: str = "") -> Failure:
    """That a host stood still for so long that the others gave it up, as the job's failure.

    Args:
        role: what else the host is called, in brackets.
    """
    return Failure(
        kind="ClusterError",
        summary=f"{host}{role and f' ({role})'} was suspended for {seconds:.0f} s, and the other hosts gave it up",
        exit_code=ClusterError.exit_code,
        hint="something stopped `train` there (SIGSTOP, a frozen or migrated machine)",
        host=host,
    )


def first_cause(
    reported: Sequence[Reported],
    lost: Sequence[LostHost],
    hung: tuple[float, Failure] | None,
    enough: bool,
    stop: Stop | None = None,
    away: tuple[float, Failure] | None = None,
) -> Failure | None:
    """The failure that came first; None if no host failed.

    A failure that only speaks of a lost peer comes after all others, even after a lost host.

    Args:
        reported: the hosts' reports, host 0's first.
        lost: the hosts that were lost before they reported.
        hung: when the whole job was found to hang, and the failure that says so.
        enough: whether the job can go on without the hosts that are lost. Then their loss is a cause only where all other
            failures come from it.
        stop: why all hosts were stopped, None where they were not.
        away: when host 0 was suspended, and the failure that says so (`suspended`).
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
    # The others gave host 0 up: whatever else is lost since then comes from that.
    given_up = [(item.at, item.report.cause) for item in reported if item.report.cause is not None]
    if away is not None and (lost or given_up):
        causes = [cause for cause in causes if cause[1] < away[0] and not cause[0]]
        causes.append((False, *away))
    if causes:
        return min(causes, key=lambda cause: cause[:2])[2]
    if given_up:
        return min(given_up, key=lambda cause: cause[0])[1]
    # No rank failed by itself: a host that was interrupted, and ended badly because of it, is the only cause left.
    ended = [item.report for item in reported if item.report.failure is not None]
    # Of several, the one where the stop came from: the others' ranks were stopped because of it.
    interrupted = [report.failure for report in ended if report.state == "interrupted" and report.failure is not None]
    if interrupted:
        return min(interrupted, key=lambda failure: stop is not None and failure.host != stop.host)
    if stop is None and not ended:
        return None
    if stop is not None and (ended or not stop.signal):
        return stop.failure()
    return ended[0].failure if ended else None


def stopped_early(reported: Sequence[Reported], stop: Stop | None) -> str:
    """`JobVerdict.stopped` of a job in which no host failed.

    A stop that came when the ranks of all hosts had ended by themselves came too late: that job is a success.
    """
    early = [item.report.early for item in reported if item.report.early]
    return (stop.text if stop is not None and stop.signal else early[0]) if early else ""
