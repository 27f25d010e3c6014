"""Hosts that start their ranks again together: what may come between the decision and those who wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.roster_network import Network, Node, running
from trainshed.container.roster.restart_barrier import Decision
from trainshed.container.roster.restarting_leader import RestartingLeader
from trainshed.contract.outcome import Failure


@pytest.fixture
def net() -> Iterator[Network]:
    """Three hosts that have begun to run, and may start again twice."""
    with running(3, restarts=2) as made:
        yield made


def fail(node: Node) -> None:
    """A rank of the host fails now."""
    node.fate, node.ends_at = "failed", node.network.clock()


def leader_of(net: Network) -> RestartingLeader:
    roster = net.node(0).roster
    assert isinstance(roster, RestartingLeader)
    return roster


def decide_without(net: Network, rank: int) -> None:
    """Host 0 fails, and all have reported; the line to one of them is cut before it hears the decision, and breaks."""
    hosts = leader_of(net).hosts
    fail(net.node(0))
    net.node(3 - rank).paused_until = net.now() + 1.5  # whose report comes last
    net.until(lambda: hosts[rank - 1].report is not None)
    net.cables[rank].cut = True
    net.until(lambda: net.decided)
    assert net.decided[0].again and net.node(rank).state == "resting"


def mend(net: Network, rank: int) -> None:
    net.cables[rank].reset()
    net.cables[rank].cut = False


def test_a_host_that_has_missed_the_decision_hears_of_it_on_its_next_connection(net: Network) -> None:
    decide_without(net, 1)
    mend(net, 1)
    net.until(lambda: net.node(1).attempt == 1)
    net.to_the_end()

    assert [node.attempt for node in net.nodes] == [1, 1, 1] and all(node.verdict is None for node in net.nodes)


def test_a_host_that_was_stopped_before_it_heard_the_decision_stops_all_and_is_the_cause(net: Network) -> None:
    decide_without(net, 1)
    net.node(1).stop()
    mend(net, 1)
    net.to_the_end()

    assert net.node(1).attempt == 0
    for node in net.nodes:
        assert node.verdict is not None and (node.verdict.kind, node.verdict.host) == ("Interrupted", "algo-2")
        assert not any("no report" in line for line in node.said)
    assert [decision.again for decision in net.decided] == [True, False]


def test_a_host_that_is_stopped_while_it_waits_for_others_prevents_the_restart(net: Network) -> None:
    net.node(2).paused_until = net.now() + 5.0
    fail(net.node(0))
    net.until(lambda: net.node(1).state == "resting")
    net.node(1).stop()
    net.to_the_end()

    assert [decision.line for decision in net.decided] == ["algo-2 was asked to stop"]
    assert [node.attempt for node in net.nodes] == [0, 0, 0]
    assert all(node.verdict is not None and node.verdict.summary == "algo-1: bad batch" for node in net.nodes)


def test_a_host_that_is_killed_while_it_waits_prevents_the_restart(net: Network) -> None:
    net.node(2).paused_until = net.now() + 8.0
    fail(net.node(0))
    net.until(lambda: net.node(1).state == "resting")
    net.node(1).kill()
    net.to_the_end()

    assert [decision.line for decision in net.decided] == ["algo-2 is lost"]
    assert net.node(0).attempt == net.node(2).attempt == 0


@pytest.mark.parametrize("seconds", [1.0, 15.0])
def test_a_host_that_stands_still_for_a_while_starts_again_with_the_others(net: Network, seconds: float) -> None:
    fail(net.node(1))
    net.until(lambda: net.node(0).state == "resting")
    net.node(2).paused_until = net.now() + seconds
    net.to_the_end()

    assert [node.attempt for node in net.nodes] == [1, 1, 1] and not net.early
    assert all(node.verdict is None for node in net.nodes)


def test_letters_of_the_attempt_before_do_not_come(net: Network) -> None:
    leader = leader_of(net)
    net.cables[1].cut = True
    leader.post(1, {"n": "old"})
    net.node(1).roster.post(0, {"n": "old"})
    net.node(2).roster.post(0, {"n": "read by nobody"})
    net.until(lambda: len(leader.inbox) == 1)
    net.cables[1].reset()
    net.cables[1].cut = False
    fail(net.node(0))
    net.until(lambda: all(node.attempt == 1 for node in net.nodes))
    assert leader.letters() == net.node(1).roster.letters() == []

    leader.post(1, {"n": 1})
    net.node(1).roster.post(0, {"n": 2})
    net.until(lambda: leader.inbox and net.node(1).roster.inbox)
    assert net.node(1).roster.letters() == [(0, {"n": 1})] and leader.letters() == [(1, {"n": 2})]
    net.to_the_end()


def test_a_failure_that_was_told_late_does_not_stop_the_next_attempt(net: Network) -> None:
    """Two hosts fail at once; the word of the second is still on its way when all start again."""
    member = net.node(1).roster
    said = member._stamped({"type": "failing", "why": "rank 1 ended with 1"})
    fail(net.node(1))
    net.until(lambda: all(node.attempt == 1 for node in net.nodes))
    assert member.link is not None
    member.link.send(said)
    net.to_the_end()

    assert [node.attempt for node in net.nodes] == [1, 1, 1] and all(node.verdict is None for node in net.nodes)


def test_a_first_host_that_cannot_start_its_ranks_ends_those_that_wait_for_its_word(net: Network) -> None:
    """It comes to the end without a rest, as after `exec` has failed; the others rest."""
    net.node(0).fate = "cannot start"
    net.node(0).ends_at = net.clock()
    net.to_the_end()

    assert all(node.verdict is not None and node.verdict.kind == "LaunchError" for node in net.nodes)
    assert not net.decided and [node.attempt for node in net.nodes] == [0, 0, 0]


@pytest.mark.parametrize(
    "broken",
    [
        {"done": "1", "port": 0},
        {"done": 1, "port": 70_000},
        {"done": 1, "port": -1},
        {"done": 1, "port": 0, "again": True},
        {"done": 1, "port": 0, "again": True, "failure": {"kind": "x"}},
        {"done": 1, "port": 0, "line": ["x"]},
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Decision.of(broken)


def test_a_decision_travels_whole() -> None:
    failure = Failure(kind="UserError", summary="bad batch", exit_code=3, host="algo-2", rank=7)
    decision = Decision(again=True, failure=failure, done=4, port=7793, line="restart 4 of 9")
    assert Decision.of(decision.message(5)) == decision
