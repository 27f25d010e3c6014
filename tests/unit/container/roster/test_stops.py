"""A stop of one host is a stop of all of them, however far each has come, and by the same signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from support.roster_network import KEY, Network
from trainshed.container.roster import tell_before_start
from trainshed.container.roster.member import Member
from trainshed.contract.outcome import Failure


@pytest.fixture
def net() -> Iterator[Network]:
    """Three hosts with much to do."""
    made = Network(3, ends_at=200.0)
    yield made
    made.close()


def ends_after(net: Network, seconds: float, *ranks: int) -> None:
    """Some hosts' ranks end by themselves then."""
    for rank in ranks:
        net.node(rank).ends_at = net.began + seconds


@pytest.mark.parametrize("victim", [0, 1])
def test_a_job_is_stopped_on_all_hosts_if_the_ranks_of_one_were_stopped_early(net: Network, victim: int) -> None:
    for node in net.nodes:
        node.graceful = True
    ends_after(net, 5, *({0, 1, 2} - {victim}))
    ends_after(net, 10, victim)
    net.node(victim).fate = "interrupted"
    net.to_the_end()

    assert [node.verdict for node in net.nodes] == [None] * 3
    assert {node.stopped for node in net.nodes} == {f"algo-{victim + 1}: stopped by SIGTERM"}


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stop_of_a_host_that_has_ended_stops_the_others_before_their_end(net: Network, victim: int) -> None:
    for node in net.nodes:
        node.graceful = True
    ends_after(net, 5, victim)
    net.at(10, lambda: net.node(victim).roster.interrupted("stopped by SIGHUP while it waited", signal.SIGHUP))
    net.to_the_end()

    assert [node.verdict for node in net.nodes] == [None] * 3
    assert {node.stopped for node in net.nodes} == {f"algo-{victim + 1}: stopped by SIGHUP while it waited"}


def test_a_stop_that_comes_when_all_ranks_have_ended_by_themselves_is_too_late(net: Network) -> None:
    ends_after(net, 5, 0, 1, 2)
    net.until(lambda: all(node.state == "leaving" for node in net.nodes))
    net.node(1).roster.interrupted("stopped by SIGTERM", signal.SIGTERM)
    net.to_the_end()

    assert [(node.verdict, node.stopped) for node in net.nodes] == [(None, "")] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM])
@pytest.mark.parametrize("victim", [0, 1])
def test_all_hosts_end_with_the_status_of_the_signal_that_one_was_sent(
    net: Network, victim: int, number: signal.Signals
) -> None:
    ends_after(net, 5, victim)
    net.at(10, lambda: net.node(victim).roster.interrupted(f"stopped by {number.name}", number))
    net.to_the_end()

    ends = {(node.verdict.kind, node.verdict.exit_code, node.verdict.host) for node in net.nodes if node.verdict}
    assert ends == {("Interrupted", 128 + number, f"algo-{victim + 1}")}


def test_a_first_host_that_is_gone_after_it_had_all_stop_leaves_the_signal_behind(net: Network) -> None:
    net.at(5, lambda: net.node(0).roster.interrupted("stopped by SIGINT", signal.SIGINT))
    net.at(5.5, lambda: net.node(0).kill(silently=True))
    net.to_the_end()

    assert [node.verdict.exit_code for node in net.nodes[1:] if node.verdict] == [130, 130]


@pytest.mark.parametrize(
    ("kind", "grace", "timeout", "stays"),
    [("Interrupted", 110, 300, 8), ("Interrupted", 3, 300, 3), ("Interrupted", 110, 2, 2), ("UserError", 3, 300, 15)],
)
def test_a_host_that_cannot_start_stays_for_the_others_within_the_grace_of_its_stop(
    kind: str, grace: float, timeout: float, stays: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, float]] = []
    roster = Member(("algo-1", "algo-2"), 1, ("127.0.0.1", 9), KEY, grace, print)
    monkeypatch.setattr(roster, "fail_before_start", lambda failure, seconds: told.append((failure.summary, seconds)))

    failure = Failure(kind=kind, summary="stopped by SIGTERM", exit_code=143)
    said = tell_before_start(roster, failure, "algo-2", timeout, print)

    assert told == [(said.summary, stays)]
