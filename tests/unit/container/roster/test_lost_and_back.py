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
