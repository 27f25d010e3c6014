"""Connections that break, and what was said on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.roster_network import Network, running
from trainshed.container.roster.member import Member


@pytest.fixture
def net() -> Iterator[Network]:
    """Three hosts that have begun to run."""
    with running(3) as made:
        yield made


def test_a_broken_connection_is_made_anew_and_nobody_is_lost(net: Network) -> None:
    for when in (2, 4, 6):
        net.at(when, net.cables[1].reset)
    net.to_the_end()

    assert [node.verdict for node in net.nodes] == [None, None, None]
    assert not any(node.said for node in net.nodes)


def test_what_was_said_before_the_connection_broke_is_said_again(net: Network) -> None:
    member = net.node(1).roster
    assert isinstance(member, Member) and member.link is not None
    net.cables[1].reset()
    member.failed("rank 2 ended with 1")  # into a dead connection
    leader = net.node(0).roster
    net.until(lambda: leader.stopping)

    assert leader.stopping == "algo-2: rank 2 ended with 1"


@pytest.mark.parametrize("seconds", [12, 20])
def test_a_network_that_is_away_for_a_while_ends_nothing_also_while_the_job_ends(net: Network, seconds: int) -> None:
    net.at(8, lambda: setattr(net.cables[1], "cut", True))  # the hosts end at 15
    net.at(8 + seconds, lambda: setattr(net.cables[1], "cut", False))
    net.to_the_end()

    assert [node.verdict for node in net.nodes] == [None, None, None]


def test_a_verdict_is_told_again_to_a_host_whose_connection_broke(net: Network) -> None:
    net.node(2).fate, net.node(2).ends_at = "failed", net.clock.now
    net.until(lambda: net.node(0).roster.verdict is not None)  # type: ignore[union-attr]
    for cable in net.cables.values():
        cable.reset()
    net.to_the_end()

    assert {node.verdict.summary for node in net.nodes if node.verdict} == {"algo-3: bad batch"}
    assert all(node.verdict for node in net.nodes)


def test_a_host_whose_verdict_was_lost_with_host_0_says_what_it_was_stopped_for(net: Network) -> None:
    net.node(1).fate, net.node(1).ends_at = "interrupted", net.clock.now
    net.until(lambda: net.node(2).roster.stopping)
    net.node(0).kill()
    net.to_the_end()

    verdict = net.node(2).verdict
    assert verdict is not None and verdict.kind == "Interrupted" and verdict.summary == "algo-2: stopped by SIGTERM"


def test_a_host_that_is_done_stops_where_the_others_ended_without_it(net: Network) -> None:
    net.node(2).ends_at += 1000
    net.node(1).fate, net.node(1).ends_at = "failed", net.clock.now
    net.to_the_end(limit=60)

    assert net.node(2).state == "over" and net.node(2).verdict is not None
