"""What a host tells the others of its own end."""

from __future__ import annotations

import time

import pytest

from trainshed.container.roster import agree
from trainshed.container.roster.messages import JobVerdict, Report
from trainshed.container.roster.roster import Roster
from trainshed.container.supervisor.launch_plan import Outcome
from trainshed.contract.outcome import Failure
from trainshed.machine.signals import Stops


class Told(Roster):
    """Keeps the report."""

    reports: list[Report]

    def leave(self, report: Report) -> JobVerdict:
        self.reports = [report]
        return JobVerdict(failure=report.failure)


@pytest.mark.parametrize("uploading", [0.0, 100.0])
def test_a_failure_is_as_old_as_its_first_sign_whatever_the_host_did_since(uploading: float) -> None:
    """Hosts compare when they failed, and one of them may have spent minutes on uploads before it tells."""
    roster = Told(("a", "b"), 1)
    outcome = Outcome(results=(), seconds=50.0, over=time.monotonic() - uploading)
    agree(roster, outcome, Failure(kind="UserError", summary="x", exit_code=1, at=30.0), "", "b", Stops())

    assert roster.reports[0].age >= 20.0 + uploading


def test_a_run_that_nobody_timed_counts_as_just_over() -> None:
    roster = Told(("a", "b"), 1)
    agree(
        roster,
        Outcome(results=(), seconds=50.0),
        Failure(kind="UserError", summary="x", exit_code=1, at=30.0),
        "",
        "b",
        Stops(),
    )

    assert roster.reports[0].age == 20.0
