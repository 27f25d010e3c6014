"""The phases of a run, one transition at a time."""

from __future__ import annotations

import signal

import pytest

from trainshed.container.supervisor.stopping import (
    FAILURE_GRACE,
    FAILURE_SETTLES,
    LEFTOVER_GRACE,
    LOST_GRACE,
    Phase,
    Stopping,
)

pytestmark = pytest.mark.safety

GRACE = 100.0


def asked(at: float = 10.0) -> Stopping:
    state = Stopping(GRACE)
    state.ask(signal.SIGTERM, at, GRACE)
    return state


def test_a_run_without_a_time_limit_has_no_deadline() -> None:
    state = Stopping(GRACE)

    assert state.phase is Phase.RUNNING and not state.due(1e9) and not state.asked


def test_a_time_limit_is_the_deadline_of_running() -> None:
    state = Stopping(GRACE, 50.0)

    assert not state.due(49.9) and state.due(50.0)
    assert state.pause(20.0) == 30.0 and state.pause(60.0) == 0.0


def test_a_failure_settles_before_the_others_are_asked_to_stop() -> None:
    state = Stopping(GRACE, 50.0)
    state.settle(10.0, "rank 3 ended with 1")

    assert state.phase is Phase.SETTLING and state.deadline == 10.0 + FAILURE_SETTLES
    state.ask(signal.SIGTERM, 11.0, state.failure_grace)
    assert state.phase is Phase.STOPPING and state.deadline == 11.0 + FAILURE_GRACE


def test_a_failure_that_did_not_matter_leaves_the_time_limit_as_it_was() -> None:
    state = Stopping(GRACE, 50.0)
    state.settle(10.0, "worker 3 ended with 1")
    state.unsettle()

    assert (state.phase, state.deadline, state.failure) == (Phase.RUNNING, 50.0, "")
    state.ask(signal.SIGTERM, 11.0, GRACE)
    state.unsettle()
    assert state.phase is Phase.STOPPING


def test_only_the_first_request_to_stop_starts_the_clock() -> None:
    state = asked(10.0)
    state.ask(signal.SIGINT, 50.0, GRACE)

    assert (state.deadline, state.signal) == (110.0, signal.SIGINT)


def test_who_is_in_a_hurry_ends_the_grace() -> None:
    state = asked()
    state.hurry(20.0)

    assert state.due(20.0)


def test_what_was_killed_is_not_asked_or_killed_again() -> None:
    state = asked()
    state.kill()
    state.ask(signal.SIGTERM, 200.0, GRACE)
    state.hurry(201.0)

    assert state.phase is Phase.KILLED and not state.due(1e9)


def test_leftovers_of_a_script_that_ended_by_itself_get_a_short_grace() -> None:
    state = Stopping(GRACE)
    state.leave_behind(10.0, died_of_signal=False)

    assert state.phase is Phase.LEFTOVERS and state.deadline == 10.0 + LEFTOVER_GRACE


def test_leftovers_of_a_script_that_died_of_the_stop_signal_keep_the_rest_of_the_grace() -> None:
    state = asked(10.0)
    state.leave_behind(11.0, died_of_signal=True)

    assert state.deadline == 110.0


def test_leftovers_never_get_more_than_the_rest_of_the_grace() -> None:
    state = asked(10.0)
    state.leave_behind(109.0, died_of_signal=False)

    assert state.deadline == 110.0


def test_leftovers_of_a_script_that_was_killed_get_a_grace_unless_the_signal_had_ended_it() -> None:
    killed, died = asked(), asked()
    killed.kill()
    died.kill()
    killed.leave_behind(120.0, died_of_signal=False)
    died.leave_behind(120.0, died_of_signal=True)

    assert killed.deadline == 120.0 + LEFTOVER_GRACE
    assert died.due(120.0)


def test_another_hosts_interruption_gives_the_whole_grace_its_failure_less_and_its_loss_the_least() -> None:
    state = Stopping(GRACE)

    assert state.elsewhere_grace(interrupted=True, lost=False) == GRACE
    assert state.elsewhere_grace(interrupted=False, lost=False) == FAILURE_GRACE
    assert state.elsewhere_grace(interrupted=False, lost=True) == LOST_GRACE
    assert Stopping(1.0).elsewhere_grace(interrupted=False, lost=True) == 1.0
