"""What `trainshed doctor --cluster` measures between hosts, and its judgement on what they found."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from trainshed.container.doctor.cluster_checks import Pair, Server, facts, judge, measure, rounds

SAME = {"trainshed": "1", "code": "abc"}


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 40])
def test_nobody_has_two_partners_at_a_time_and_up_to_16_hosts_all_meet(count: int) -> None:
    plan = rounds(count)
    pairs = [pair for one_round in plan for pair in one_round]

    assert len(plan) <= 15
    assert all(len({host for pair in one_round for host in pair}) == 2 * len(one_round) for one_round in plan)
    assert len(pairs) == len(set(pairs)) and all(one < other < count for one, other in pairs)
    assert len(pairs) == (count * (count - 1) // 2 if count <= 16 else 15 * count // 2)


def test_a_closed_port_and_a_strangers_server_are_problems_not_errors() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert "Connection refused" in measure("a", "b", "127.0.0.1", probe.getsockname()[1], b"secret").problem
    server = Server(b"another")
    try:
        assert measure("a", "b", "127.0.0.1", server.port, b"secret").problem
    finally:
        server.close()


def test_the_judgement_names_hosts_ways_and_clocks() -> None:
    known = {
        "a": {"facts": SAME, "unresolved": ["b"]},
        "b": {"facts": {**SAME, "code": "xyz"}, "unresolved": []},
    }
    pairs = [Pair("a", "b", 1e-4, 1e9, offset=-7.5), Pair("b", "a", problem="b:1: Connection refused")]
    found = {check.name: check for check in judge(("a", "b", "c"), ["c"], known, pairs)}

    assert {name: check.level for name, check in found.items()} == {
        "hosts": "fail",
        "names": "fail",
        "same trainshed": "ok",
        "same code": "fail",
        "a - b": "warn",
        "b - a": "fail",
    }
    assert "c did not answer" in found["hosts"].message and "a cannot resolve b" in found["names"].message
    assert "100 us, 8.00 Gbit/s" in found["a - b"].message and "clock -7500 ms" in found["a - b"].message


def test_code_is_told_by_names_and_contents(tmp_path: Path) -> None:
    def code(name: str, text: str) -> str:
        folder = tmp_path / f"{name}{len(text)}"
        (folder / "__pycache__").mkdir(parents=True)
        (folder / name).write_text(text)
        (folder / "__pycache__" / "x.pyc").write_text(str(folder))
        return facts(str(folder))["code"]

    assert len({code("a.py", "1"), code("a.py", "22"), code("b.py", "1")}) == 3
    assert facts(str(tmp_path / "a.py1"))["code"] == facts(str(tmp_path / "a.py1"))["code"]
    assert facts(str(tmp_path / "nowhere"))["code"] == "none"


@pytest.mark.safety
def test_a_host_is_measured_while_strangers_hold_many_connections() -> None:
    server = Server(b"secret")
    with contextlib.ExitStack() as held:
        door = ("127.0.0.1", server.port)
        strangers = [held.enter_context(socket.create_connection(door, timeout=120)) for _ in range(200)]
        for one in strangers[:100]:  # have given way; the limit above is reached by a hang alone
            with contextlib.suppress(ConnectionResetError):
                assert len(one.recv(32)) == 32 and one.recv(1) == b""
        assert measure("here", "there", "127.0.0.1", server.port, b"secret").problem == ""
    server.close()
