"""Hosts that install what the program needs hear the others meanwhile, and are waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.roster_network import Network


@pytest.fixture
def net() -> Iterator[Network]:
    made = Network(3)
    yield made
    made.close()


@pytest.mark.parametrize("installing", [(0,), (1,), (0, 1), (0, 1, 2)])
def test_the_job_starts_when_all_are_ready(net: Network, installing: tuple[int, ...]) -> None:
    for rank in installing:
        net.node(rank).ready_at = net.began + 40 + rank
    net.at(39, lambda: started.extend(node.ran for node in net.nodes))
    started: list[bool] = []
    for node in net.nodes:
        node.ends_at = net.began + 60
    net.to_the_end()

    assert started == [False] * 3
    assert [(node.ran, node.verdict) for node in net.nodes] == [(True, None)] * 3


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("others", [(), (2,), (0, 2), (0, 1, 2)])
def test_a_stop_reaches_those_that_install(net: Network, victim: int, others: tuple[int, ...]) -> None:
    for rank in {victim, *others}:
        net.node(rank).ready_at = net.began + 10_000
    net.node(victim).stopped_at = net.began + 5
    net.to_the_end(limit=60)

    assert {(node.verdict.kind, node.verdict.host) for node in net.nodes if node.verdict} == {
        ("Interrupted", f"algo-{victim + 1}")
    }
    assert all(node.verdict for node in net.nodes) and not any(node.ran for node in net.nodes)


def test_hosts_that_never_become_ready_are_told_from_those_that_do_not_come(net: Network) -> None:
    net.node(1).ready_at = net.began + 10_000
    net.node(2).kill()
    net.to_the_end()

    assert "waiting for algo-3 (5 s of 60 s)" in net.node(0).said
    for node in net.nodes[:2]:
        assert node.verdict and node.verdict.kind == "ClusterError"
        assert node.verdict.summary == (
            "algo-3 (no such host name: algo-3) did not come and algo-2 was not ready within 60 s (2 of 3 hosts are there)"
        )


def test_a_host_that_is_started_again_while_it_installs_is_waited_for(net: Network) -> None:
    net.node(1).ready_at = net.began + 1000
    net.at(5, lambda: net.node(1).kill())
    net.at(8, lambda: setattr(net.start(1), "ready_at", net.began + 30))
    for node in net.nodes:
        node.ends_at = net.began + 60
    net.to_the_end()

    assert [node.verdict for node in net.nodes] == [None] * 4
    assert [node.ran for node in net.nodes] == [True, False, True, True]
