"""Which of many failures is the job's first cause."""

from __future__ import annotations

from trainshed.container.roster.messages import Report
from trainshed.container.roster.verdict import LostHost, Reported, first_cause
from trainshed.contract.outcome import Failure

LOST = LostHost("algo-3", seen=90.0, lost=114.0)


def failed(text: str, at: float = 100.0, age: float = 0.0, secondary: bool = False, state: str = "failed") -> Reported:
    failure = Failure(kind="UserError", summary=text, exit_code=1)
    return Reported(Report(state=state, failure=failure, age=age, secondary=secondary), at)


def summary(failure: Failure | None) -> str:
    assert failure is not None
    return failure.summary


def test_no_failure_is_success() -> None:
    assert first_cause([Reported(Report(state="done"), 1.0), Reported(Report(state="stopped"), 2.0)], [], None, True) is None


def test_the_failure_that_began_first_wins_whenever_its_report_came() -> None:
    assert summary(first_cause([failed("late", 100.0), failed("early", 101.0, age=5.0)], [], None, True)) == "early"


def test_a_failure_that_only_lost_its_peer_comes_after_a_lost_host() -> None:
    reported = [failed("connection reset", 80.0, secondary=True)]

    assert summary(first_cause(reported, [LOST], None, True)) == "algo-3 vanished: no sign of life for 24 s"


def test_a_host_without_which_the_job_goes_on_is_no_cause_beside_a_real_one() -> None:
    assert summary(first_cause([failed("bad data", 100.0)], [LOST], None, True)) == "bad data"
    assert summary(first_cause([failed("bad data", 100.0)], [LOST], None, False)) == LOST.failure().summary
    assert first_cause([Reported(Report(state="done"), 1.0)], [LOST], None, True) is None


def test_a_hang_is_a_cause_at_the_moment_it_was_found() -> None:
    hang = Failure(kind="Hang", summary="rank 1 is late", exit_code=124)

    assert first_cause([failed("killed after it", 100.0)], [], (99.0, hang), True) == hang


def test_without_a_failing_host_one_that_was_interrupted_is_the_cause() -> None:
    reported = [failed("ended by the roster", state="stopped"), failed("stopped by SIGTERM", state="interrupted")]

    assert summary(first_cause(reported, [], None, True)) == "stopped by SIGTERM"
