"""Which of many failures is the job's first cause."""

from __future__ import annotations

import signal

from trainshed.container.roster.messages import Report
from trainshed.container.roster.verdict import LostHost, Reported, Stop, first_cause, suspended
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


def test_of_several_hosts_that_were_interrupted_the_one_where_the_stop_came_from_is_the_cause() -> None:
    failures = [Failure(kind="Interrupted", summary=f"{host} was stopped", exit_code=143, host=host) for host in ("a", "b")]
    reported = [Reported(Report(state="interrupted", failure=failure), 1.0) for failure in failures]

    for host, failure in zip("ab", failures, strict=True):
        assert first_cause(reported, [], None, True, Stop(0.5, host, "was stopped", signal.SIGTERM)) == failure


def test_a_lost_host_stays_the_cause_when_it_comes_back_and_reports_that_it_was_stopped() -> None:
    reported = [failed("rank 0 was killed by SIGTERM", state="stopped"), failed("rank 1 was killed too", state="stopped")]

    assert summary(first_cause(reported, [LOST], None, False)) == LOST.failure().summary


def test_that_ranks_were_asked_to_stop_is_no_cause_where_the_reason_is_known() -> None:
    asked = [failed("rank 0 was killed by SIGTERM (asked to stop)", state="stopped")]
    stop = Stop(90.0, "algo-2", "stopped by SIGTERM", signal.SIGTERM)
    found = first_cause(asked, [], None, True, stop)

    assert found is not None and (found.kind, found.summary) == ("Interrupted", "algo-2: stopped by SIGTERM")
    assert first_cause([Reported(Report(state="stopped"), 1.0)], [], None, True, stop) is None, "all ended well"


def test_a_host_that_gave_host_0_up_says_why_where_nobody_knows_better() -> None:
    cause = Failure(kind="ClusterError", summary="algo-1 (the first host) vanished", exit_code=69)
    reported = [Reported(Report(state="stopped", failure=cause.replace(kind="Stopped"), cause=cause), 90.0)]

    assert first_cause(reported, [], None, True) == cause
    assert summary(first_cause([*reported, failed("bad data")], [], None, True)) == "bad data"


def test_a_first_host_that_was_suspended_is_the_cause_of_all_that_was_lost_since() -> None:
    away = 80.0, suspended("algo-1", 35.0, "the first host")
    text = "algo-1 (the first host) was suspended for 35 s, and the other hosts gave it up"

    assert summary(first_cause([], [LOST], None, False, None, away)) == text
    assert summary(first_cause([failed("before it", 70.0)], [LOST], None, False, None, away)) == "before it"
    assert first_cause([Reported(Report(state="done"), 1.0)], [], None, True, None, away) is None
