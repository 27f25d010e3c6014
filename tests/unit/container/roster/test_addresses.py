"""On which addresses host 0 listens."""

from __future__ import annotations

import pytest

from support.roster_network import Network
from trainshed.base.errors import ClusterError
from trainshed.container.roster import addresses
from trainshed.container.roster.addresses import EVERYWHERE, to_listen_on
from trainshed.container.roster.leader import Leader
from trainshed.contract.cluster import Cluster


@pytest.fixture
def resolves_to(monkeypatch: pytest.MonkeyPatch) -> object:
    """Has names stand for addresses, and eth0 have 10.0.0.2 and fd00::2."""

    def put(*found: str) -> None:
        monkeypatch.setattr(addresses, "_resolved", lambda name: list(found))

    monkeypatch.setattr(addresses, "addresses_of", lambda name: ["10.0.0.2", "fd00::2"] if name == "eth0" else [])
    return put


def cluster(address: str = "algo-1", interface: str = "eth0", first: str = "algo-1") -> Cluster:
    return Cluster(hosts=(first, "algo-2"), current_host=first, address=address, interface=interface)


@pytest.mark.safety
def test_hosts_that_are_processes_of_one_machine_meet_on_loopback(resolves_to) -> None:
    resolves_to("127.0.0.1")
    assert to_listen_on(cluster("127.0.0.1", "lo")) == ("127.0.0.1",)
    assert to_listen_on(cluster("127.0.0.1", "eth0", first="127.0.0.1")) == ("127.0.0.1",)


def test_other_hosts_come_by_the_addresses_of_the_jobs_interface(resolves_to) -> None:
    resolves_to("10.0.0.2")
    assert to_listen_on(cluster()) == ("10.0.0.2", "fd00::2")


@pytest.mark.parametrize(
    "found",
    [
        [],  # no such name here
        ["127.0.1.1"],  # Debian's /etc/hosts: what the others find is not known here
        ["192.168.1.5"],  # another interface, or a service in front of this host
        ["10.0.0.2", "192.168.1.5"],  # on two networks: nobody knows by which the others come
    ],
)
def test_where_the_name_says_something_else_all_addresses_are_used(resolves_to, found: list[str]) -> None:
    resolves_to(*found)
    assert to_listen_on(cluster()) == EVERYWHERE


def test_the_addresses_of_loopback_are_found_by_its_name() -> None:
    from trainshed.machine.network import addresses_of

    assert "127.0.0.1" in addresses_of("lo") and addresses_of("none0") == []


def test_an_address_that_cannot_be_used_is_not_needed_beside_another_one() -> None:
    net = Network(2)
    leader = net.node(0).roster
    assert isinstance(leader, Leader)
    leader.addresses = ("203.0.113.9", "127.0.0.1")
    try:
        net.to_the_end()
        assert [node.verdict for node in net.nodes] == [None, None]
    finally:
        net.close()


def test_a_port_that_cannot_be_used_on_any_address_is_an_error() -> None:
    net = Network(2)
    leader = net.node(0).roster
    assert isinstance(leader, Leader)
    leader.addresses = ("203.0.113.9", "203.0.113.10")
    try:
        with pytest.raises(ClusterError, match=f"port {net.port}, on which the other hosts find this one, cannot be used"):
            next(leader.joining(1.0))
    finally:
        net.close()
