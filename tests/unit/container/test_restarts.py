"""Whether ranks are started again after a failure: on one host, and what the first of several decides for all."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.free_ports import free_ports
from trainshed.container import ports
from trainshed.container.notices import Interruption
from trainshed.container.restarts import Again, Ended, Restarts, counted
from trainshed.container.roster.messages import Report
from trainshed.container.roster.restart_barrier import Decision, Rest
from trainshed.container.roster.roster import Roster
from trainshed.container.shared_restarts import SharedRestarts
from trainshed.container.supervisor.launch_plan import LaunchPlan, MpiPlan, Outcome, ProcessSpec
from trainshed.contract.outcome import Failure
from trainshed.machine.signals import Stops

FAILURE = Failure(kind="UserError", summary="rank 1 exited with 1", exit_code=1, host="b")
OUTCOME = Outcome(results=())
INTERRUPTION = Interruption(reason="spot", source="ec2", exit_code=75)


class Told(Roster):
    """Gives the first host's decision a rest in which this host's report is one of two."""

    restarts = True

    def __init__(self, failure: Failure | None = FAILURE, obstacle: str = "", **other: object) -> None:
        super().__init__(("a", "b"), 0)
        self.failure, self.obstacle, self.other = failure, obstacle, other
        self.report = Report(state="done")

    def rest(self, report: Report, decide: Callable[[Rest], Decision], stops: Stops) -> Decision:
        self.report = report
        other = report.replace(**{"progressed": False, **self.other})
        return decide(Rest(self.failure, {"a": report, "b": other}, self.obstacle))


def of_one_host(folder: Path, allowed: int, said: list[str], free: tuple[int, ...] = ()) -> Restarts:
    return Restarts(allowed, (str(folder),), said.append, lambda: free)


def of_several(
    folder: Path,
    roster: Roster,
    said: list[str],
    allowed: int = 2,
    candidates: tuple[int, ...] = (7777, 7793, 7809),
    free: tuple[int, ...] = (7777, 7793, 7809),
) -> SharedRestarts:
    return SharedRestarts(allowed, (str(folder),), roster, "a", Stops(), said.append, lambda: candidates, lambda: free)


NO_FAILURES = [
    Ended(OUTCOME),
    Ended(OUTCOME.replace(stop_signal=15), FAILURE),
    Ended(OUTCOME.replace(timed_out=True), FAILURE),
    Ended(OUTCOME, FAILURE, INTERRUPTION),
]


@pytest.mark.parametrize("ended", NO_FAILURES)
def test_a_success_a_stop_a_time_limit_and_an_interruption_are_not_followed_by_an_attempt(
    tmp_path: Path, ended: Ended
) -> None:
    said: list[str] = []
    assert of_one_host(tmp_path, 5, said).after(ended) is None
    assert said == []


@pytest.mark.parametrize("ended", NO_FAILURES[1:])
def test_a_host_with_one_of_these_says_that_it_cannot_go_on(tmp_path: Path, ended: Ended) -> None:
    roster = Told(obstacle="a cannot start its ranks again")
    said: list[str] = []
    assert of_several(tmp_path, roster, said).after(ended) is None
    assert roster.report.again is False and said == ["not restarted: a cannot start its ranks again"]


def test_a_restart_in_place_counts_when_it_has_come_about(tmp_path: Path) -> None:
    said: list[str] = []
    restarts = of_one_host(tmp_path, 2, said, free=(7777, 7793))
    for _ in range(3):
        assert restarts.in_place(FAILURE, 7777) == Again(FAILURE, 1, 7793)
    assert said == []
    again = restarts.in_place(FAILURE, 7777)
    assert again is not None
    restarts.replaced(again, "rank 1")
    assert said == ["restart 1 of 2, from the beginning: rank 1 exited with 1; rank 1 replaced in place"]
    assert restarts.after(Ended(OUTCOME, FAILURE)) == Again(FAILURE, 2, 7777)
    assert restarts.in_place(FAILURE, 7777) is None
    assert restarts.after(Ended(OUTCOME, FAILURE)) is None
    assert said[-1] == "not restarted: 3 failures in a row without a newer checkpoint"


def test_a_restart_in_place_needs_another_port_and_a_budget(tmp_path: Path) -> None:
    """Rank 0 may live on, and holds the present one."""
    assert of_one_host(tmp_path, 2, [], free=(7777,)).in_place(FAILURE, 7777) is None
    assert of_one_host(tmp_path, 0, [], free=(7793,)).in_place(FAILURE, 7777) is None


def test_a_host_that_was_stopped_for_another_one_goes_on_with_it(tmp_path: Path) -> None:
    roster = Told()
    said: list[str] = []
    ended = Ended(OUTCOME.replace(stopped_by="b: rank 1 ended with 1"))
    assert of_several(tmp_path, roster, said).after(ended) == Again(FAILURE, 1)
    assert roster.report.again and roster.report.state == "stopped"
    assert said == ["restart 1 of 2, from the beginning: rank 1 exited with 1"]


def test_a_job_that_succeeded_on_all_hosts_is_over_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    assert of_several(tmp_path, Told(failure=None), said).after(Ended(OUTCOME)) is None
    assert said == []


def test_progress_of_any_host_counts_for_all(tmp_path: Path) -> None:
    """The first host has no checkpoint; the other one has a newer one each time."""
    roster = Told(progressed=True, newest=4)
    said: list[str] = []
    restarts = of_several(tmp_path, roster, said, allowed=9)
    assert [restarts.after(Ended(OUTCOME, FAILURE)) is not None for _ in range(5)] == [True] * 5
    roster.other = {"newest": 4}
    assert [restarts.after(Ended(OUTCOME, FAILURE)) is not None for _ in range(3)] == [True, True, False]
    assert said[-1] == "not restarted: 3 failures in a row without a newer checkpoint"


def test_the_first_host_counts_its_own_checkpoints_as_progress(tmp_path: Path) -> None:
    said: list[str] = []
    roster = Told()
    restarts = of_several(tmp_path, roster, said, allowed=9)
    for step in range(4):
        (tmp_path / f"step-{step}").touch()
        assert restarts.after(Ended(OUTCOME, FAILURE)) == Again(FAILURE, step + 1)
        assert (roster.report.newest, roster.report.progressed) == (step, True)
    restarts.after(Ended(OUTCOME, FAILURE))
    assert (roster.report.newest, roster.report.progressed) == (3, False)


def test_a_port_that_is_free_on_all_hosts_is_taken_in_order(tmp_path: Path) -> None:
    said: list[str] = []
    restarts = of_several(tmp_path, Told(ports=(7777, 7809)), said, free=(7793, 7809))
    assert restarts.after(Ended(OUTCOME, FAILURE)) == Again(FAILURE, 1, 7809)
    assert said == [
        "restart 1 of 2, from the beginning: rank 1 exited with 1; port 7777 is taken on a, so port 7809 takes its place"
    ]


def test_the_port_stays_where_none_is_free_everywhere(tmp_path: Path) -> None:
    said: list[str] = []
    restarts = of_several(tmp_path, Told(ports=(7793,)), said, free=(7809,))
    assert restarts.after(Ended(OUTCOME, FAILURE)) == Again(FAILURE, 1, 0)
    assert said[0].endswith("; port 7777 is taken on a, b, and so are others")


def test_on_one_host_a_taken_port_gives_way_to_the_next_one(tmp_path: Path) -> None:
    port = free_ports(40)
    plan = LaunchPlan(processes=(), port=port, listens=(0,))
    restarts = Restarts(3, (str(tmp_path),), lambda _: None, lambda: ports.free(plan))
    assert restarts.after(Ended(OUTCOME, FAILURE)) == Again(FAILURE, 1, port)
    with socket.create_server(("127.0.0.1", port)):
        assert restarts.after(Ended(OUTCOME, FAILURE)) == Again(FAILURE, 2, port + 16)


def test_candidates_lie_apart_by_what_the_job_uses_and_within_the_range_of_ports() -> None:
    plan = LaunchPlan(processes=(), port=60_000, span=1000)
    assert ports.candidates(plan) == tuple(range(60_000, 64_600, 1002))
    assert ports.candidates(plan.replace(port=0)) == ()
    assert ports.candidates(plan.replace(port=65_535, span=1)) == ()


def test_only_ports_of_this_host_are_looked_at() -> None:
    port = free_ports(4)
    plan = LaunchPlan(processes=(), port=port, span=2, listens=(1,))
    with socket.create_server(("", port)):
        assert ports.free(plan)[0] == port
        assert ports.free(plan.replace(listens=(0,)))[0] == port + 16
        assert ports.free(plan.replace(listens=()))[0] == port


def test_every_process_of_the_next_attempt_is_told_its_number() -> None:
    spec = ProcessSpec(argv=("x",), env={"A": "1", "TORCHELASTIC_RESTART_COUNT": "0"}, cwd="/")
    mpi = MpiPlan(rank=spec, daemon=spec, hosts=("a",), node_rank=0, own={}, socket="", start_seconds=1.0)
    plan = counted(LaunchPlan(processes=(spec,), later=(spec,), rank=spec, mpi=mpi), 2, 5)
    assert plan.mpi is not None
    for one in (*plan.processes, *plan.later, plan.rank, plan.mpi.rank, plan.mpi.daemon):
        assert one is not None
        assert one.env == {"A": "1", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "5"}
