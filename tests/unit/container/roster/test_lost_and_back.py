"""Hosts that were given up and come back: there is a cause, and it is the same on all hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.roster_network import Network


@pytest.fixture
def net() -> Iterator[Network]:
    """Three hosts with much to do."""
    made = Network(3, ends_at=200.0)
    yield made
    made.close()


def verdicts(net: Network) -> list[tuple[str, str]]:
    assert all(node.verdict for node in net.nodes)
    return [(node.verdict.kind, node.verdict.host) for node in net.nodes if node.verdict]


@pytest.mark.parametrize("seconds", [24.5, 25.5, 27.0, 35.0, 60.0])
def test_a_first_host_that_stood_still_is_the_cause_on_itself_too(net: Network, seconds: float) -> None:
    net.at(5, lambda: setattr(net.node(0), "paused_until", 5 + seconds))
    net.to_the_end()

    assert verdicts(net) == [("ClusterError", "algo-1")] * 3


@pytest.mark.parametrize("seconds", [25.5, 35.0, 60.0])
def test_another_host_that_stood_still_is_the_cause_on_all(net: Network, seconds: float) -> None:
    net.at(5, lambda: setattr(net.node(1), "paused_until", 5 + seconds))
    net.to_the_end()

    assert verdicts(net) == [("ClusterError", "algo-2")] * 3


@pytest.mark.parametrize("seconds", [24.2, 25.0, 26.0, 28.0])
def test_a_network_that_is_back_too_late_leaves_no_host_without_a_cause(net: Network, seconds: float) -> None:
    net.at(5, lambda: setattr(net.cables[1], "cut", True))
    net.at(5 + seconds, lambda: setattr(net.cables[1], "cut", False))
    net.to_the_end()

    if net.node(0).verdict is None:  # it was back in time after all
        assert seconds < 25 and all(node.verdict is None for node in net.nodes)
        return
    assert verdicts(net)[0] == verdicts(net)[2] == ("ClusterError", "algo-2")
    assert verdicts(net)[1][0] == "ClusterError"  # the lost one may have lost the first host, too


def test_a_lossy_network_ends_with_a_cause(net: Network) -> None:
    for second in range(5, 195):  # now and then a moment in which something passes
        net.at(second + 0.1, lambda: setattr(net.cables[1], "cut", net.random.random() < 0.93))
    net.to_the_end()

    assert all(node.verdict is None or node.verdict.kind == "ClusterError" for node in net.nodes)
    assert net.node(0).verdict is None or net.node(0).verdict.kind == net.node(2).verdict.kind  # type: ignore[union-attr]


@pytest.mark.parametrize("seconds", [24.5, 26.0, 35.0, 60.0])
def test_a_first_host_that_stood_still_when_the_others_had_ended_says_so_as_they_do(net: Network, seconds: float) -> None:
    for rank in (1, 2):
        net.node(rank).ends_at = net.began + 3
    net.node(0).ends_at = net.began + 4
    net.at(3.9, lambda: setattr(net.node(0), "paused_until", 3.9 + seconds))
    net.to_the_end()

    found = [(node.verdict.kind, node.verdict.host) if node.verdict else None for node in net.nodes]
    assert found in ([("ClusterError", "algo-1")] * 3, [None] * 3)
    assert seconds < 26 or found[0] is not None


@pytest.mark.parametrize("seconds", [2.0, 10.0, 20.0])
def test_a_first_host_that_stood_still_for_less_time_does_not_end_the_job(net: Network, seconds: float) -> None:
    for node in net.nodes:
        node.ends_at = net.began + 4
    net.at(3.9, lambda: setattr(net.node(0), "paused_until", 3.9 + seconds))
    net.to_the_end()

    assert [node.verdict for node in net.nodes] == [None] * 3


@pytest.mark.parametrize("silently", [False, True])
def test_a_job_does_not_succeed_without_a_host_that_was_killed_while_it_waited_for_the_others(
    net: Network, silently: bool
) -> None:
    net.node(1).ends_at = net.began + 3
    net.at(6, lambda: net.node(1).kill(silently=silently))
    net.to_the_end(limit=400)

    found = [(node.verdict.kind, node.verdict.host) for node in net.nodes if node.verdict]
    assert found == [("ClusterError", "algo-2")] * 2


def test_a_host_that_lost_the_network_after_its_end_and_the_others_all_fail(net: Network) -> None:
    for rank in (0, 1):
        net.node(rank).ends_at = net.began + 3 + 37 * (rank == 0)
    net.node(2).ends_at = net.began + 40
    net.at(5, lambda: setattr(net.cables[1], "cut", True))
    net.to_the_end()

    assert [kind for kind, _ in verdicts(net)] == ["ClusterError"] * 3


def test_a_host_that_stood_still_while_the_others_were_stopped_is_the_cause_on_itself_too(net: Network) -> None:
    net.node(0).fate, net.node(0).ends_at = "interrupted", net.began + 5.3
    net.node(0).roster.grace = 8.0  # so that the host is lost before its report is missed
    net.at(5, lambda: setattr(net.node(1), "paused_until", 5 + 60))
    net.to_the_end()

    assert verdicts(net) == [("ClusterError", "algo-2")] * 3


@pytest.mark.parametrize("again", [0.5, 8.0])
def test_a_job_does_not_succeed_with_a_host_that_was_started_again_after_its_end(net: Network, again: float) -> None:
    for node in net.nodes:
        node.ends_at = net.began + (3 if node.rank == 1 else 30)
    net.at(6, lambda: net.node(1).kill())
    net.at(6 + again, lambda: net.start(1))
    net.to_the_end(limit=400)

    found = {(node.verdict.kind, node.verdict.host, node.verdict.summary) for node in net.nodes if node.verdict}
    assert found == {("ClusterError", "algo-2", "algo-2 was started again while the job ran: what it had computed is gone")}
    assert all(node.verdict for node in net.nodes if node.state == "over")
