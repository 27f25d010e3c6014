"""Processes with the name of a host that is, or was, there: one that was started again, or a second one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.roster_network import Network

pytestmark = pytest.mark.safety


@pytest.fixture
def net() -> Iterator[Network]:
    """Three hosts, whose network, and whose names, the test uses."""
    made = Network(3)
    yield made
    made.close()


def causes(net: Network) -> set[str]:
    return {node.verdict.summary if node.verdict else "success" for node in net.nodes if node.state == "over"}


@pytest.mark.parametrize("after", [0.1, 1.0, 3.0])
def test_a_host_that_was_started_again_is_not_the_same_and_all_end_with_that(net: Network, after: float) -> None:
    net.at(5, lambda: net.node(1).kill())
    net.at(5 + after, lambda: net.start(1))
    net.to_the_end(limit=40)

    assert causes(net) == {"algo-2 was started again while the job ran: what it had computed is gone"}
    assert net.node(1).state == "over" and not net.node(1).ran


@pytest.mark.parametrize("after", [0.1, 1.0, 3.0])
def test_host_0_started_again_is_not_the_same_either(net: Network, after: float) -> None:
    net.at(5, lambda: net.node(0).kill())
    net.at(5 + after, lambda: net.start(0))
    net.to_the_end(limit=40)

    assert causes(net) == {"algo-1 (the first host) was started again while the job ran: what it had computed is gone"}
    assert not net.node(0).ran


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_that_is_started_again_before_the_job_has_begun_simply_takes_part(net: Network, rank: int) -> None:
    net.node(2).paused_until = 9.0
    net.at(3, lambda: net.node(rank).kill())
    net.at(4, lambda: net.start(rank))
    net.to_the_end()

    assert causes(net) == {"success"}


def test_two_hosts_of_one_name_are_refused_with_both_addresses_while_one_is_missing(net: Network) -> None:
    net.node(2).kill()  # it is the one that has the wrong name
    net.at(2, lambda: net.start(1))
    net.to_the_end(limit=30)  # host_timeout is longer

    assert causes(net) == {"two hosts call themselves algo-2: one at 127.0.0.1, one at 127.0.0.1"}


def test_a_second_one_does_not_touch_a_job_that_runs(net: Network) -> None:
    net.at(5, lambda: net.start(1))
    net.at(7, lambda: net.start(1))
    net.to_the_end()

    assert [node.verdict for node in net.nodes[:3]] == [None, None, None]
    assert all("two hosts call themselves algo-2" in node.verdict.summary for node in net.nodes[3:] if node.verdict)
    assert all(node.verdict for node in net.nodes[3:])
