"""On which addresses host 0 listens."""

from __future__ import annotations

import pytest

from trainshed.container.roster import addresses
from trainshed.container.roster.addresses import EVERYWHERE, to_listen_on
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
