"""The interface to the other hosts, and a free port."""

from __future__ import annotations

import builtins
import io
import os
import socket
from typing import Any

import pytest

from support.free_ports import free_ports
from trainshed.machine import network
from trainshed.machine.network import free_port, interface_to

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
TWO_DEFAULTS = (
    "eth1\t00000000\t0102A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n"
    "eth2\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
)
NO_DEFAULT = "eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what /proc/net/route says; None takes the file away."""

    def say(text: str | None) -> None:
        whole_open = builtins.open

        def fake(path: Any, *arguments: Any, **options: Any) -> Any:
            if path != "/proc/net/route":
                return whole_open(path, *arguments, **options)
            if text is None:
                raise FileNotFoundError(path)
            return io.StringIO(HEAD + text)

        monkeypatch.setattr(network, "open", fake, raising=False)

    return say


def test_the_platforms_interface_is_taken_if_it_exists() -> None:
    assert "lo" in os.listdir("/sys/class/net"), "every Linux has it"
    assert interface_to("lo") == "lo"


@pytest.mark.parametrize("named", ["ethwe", "", "..", "../net/lo", "a" * 300])
def test_else_the_default_route_with_the_lowest_metric_is(named: str, routes: Any) -> None:
    routes(TWO_DEFAULTS)

    assert interface_to(named) == "eth2"


@pytest.mark.parametrize(
    ("text", "interface"), [(NO_DEFAULT, "eth0"), ("", ""), (None, ""), ("\n", ""), ("eth0\tshort\n", "eth0")]
)
def test_without_a_default_route_any_will_do_and_none_is_none(text: str | None, interface: str, routes: Any) -> None:
    routes(text)

    assert interface_to("ethwe") == interface


def test_a_free_port_is_kept_and_a_taken_one_replaced() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        taken = other.getsockname()[1]
        found = free_port(taken)
        assert found != taken and 10_000 <= found < 32_000

    free = free_ports()
    assert free_port(free) == free
