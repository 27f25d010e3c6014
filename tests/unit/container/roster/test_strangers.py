"""Whoever reaches the port without the job's key: nothing of him is read, and he keeps nobody out."""

from __future__ import annotations

import contextlib
import resource
import socket

import pytest

from support.roster_network import KEY, Network
from trainshed.container.roster.acceptor import PROOF_SECONDS
from trainshed.container.roster.authentication import VERSION, Handshake, JobKey, NotOurs, Unproven
from trainshed.container.roster.leader import Leader

pytestmark = pytest.mark.safety

OTHER = JobKey(b"o" * 32)


def strangers_of(net: Network) -> int:
    leader = net.node(0).roster
    assert isinstance(leader, Leader)
    return len(leader.door.strangers)


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 200_000 + b"\n",
        b'{"type":"hello","rank":1,"token":"\\ud800"}\n' * 4,
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        b'{"type": "ended", "state": "failed"}\n' * 10,
        b"\xff" * 4096 + b"\n",
        b"9" * 100_000,
        Handshake(OTHER).preface() + bytes(100),
        Handshake(KEY).preface() + Handshake(OTHER).claim(1, bytes(16), bytes(16)),
    ],
    ids=["deep", "surrogate", "http", "report", "binary", "number", "no proof", "another key"],
)
def test_what_a_stranger_sends_has_no_effect_but_a_closed_connection(net: Network, payload: bytes) -> None:
    for _ in range(3):
        net.dial(payload)
    for _ in range(3):
        net.step()

    assert strangers_of(net) == 0
    net.to_the_end()
    assert [node.verdict for node in net.nodes] == [None, None]


def test_a_stranger_who_says_nothing_has_little_time(net: Network) -> None:
    net.dial()
    net.dial(b"trainshed r")
    net.until(lambda: strangers_of(net) == 2)
    began = net.clock.now
    net.until(lambda: not strangers_of(net))

    assert net.clock.now - began <= PROOF_SECONDS + 2
    net.to_the_end()


def test_idle_strangers_up_to_the_limit_of_descriptors_keep_no_host_out() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in __import__("os").listdir("/proc/self/fd"))
    net = Network(3)
    idle: list[socket.socket] = []
    try:
        for rank in (1, 2):
            net.node(rank).paused_until = 2.0
        net.step()  # host 0 listens
        for _ in range(300):
            net.step(0.001)
            net.dial()
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], used + 1000), limits[1]))
        net.to_the_end()

        assert [node.verdict for node in net.nodes] == [None, None, None]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in idle:
            one.close()
        net.close()


def test_one_who_floods_the_door_pushes_out_himself_and_nobody_else(net: Network) -> None:
    leader = net.node(0).roster
    assert isinstance(leader, Leader)
    with socket.socket() as other:
        other.bind(("127.0.0.9", 0))
        other.connect(("127.0.0.1", net.port))
        for _ in range(120):
            net.dial()
            net.step(0.001)

        assert "127.0.0.9" in {stranger.address for stranger in leader.door.strangers}
    net.to_the_end()


def test_a_recorded_connection_is_of_no_use(net: Network) -> None:
    net.node(1).roster.failed("rank 1 ended with 1")
    net.until(lambda: net.node(0).roster.stopping)
    recorded = b"".join(net.cables[1].heard)
    net.to_the_end()
    net.close()

    again = Network(2)
    try:
        again.until(lambda: all(node.state == "running" for node in again.nodes))
        again.dial(recorded)
        again.to_the_end()
        assert [node.verdict for node in again.nodes] == [None, None]
    finally:
        again.close()


def test_bytes_changed_on_the_way_end_the_connection_not_the_job(net: Network) -> None:
    net.cables[1].spoil = 2
    net.to_the_end()

    assert [node.verdict for node in net.nodes] == [None, None]


def test_another_key_is_refused_with_words_on_both_sides() -> None:
    net = Network(2)
    net.nodes.pop().kill()
    try:
        stranger = net.start(1, OTHER)
        net.until(lambda: stranger.state == "over")
        assert stranger.verdict is not None and "were not started for the same job" in stranger.verdict.summary
        assert "calls itself algo-2, but was not started for the same job" in net.node(0).said[0]
    finally:
        net.close()


def test_another_program_with_the_right_token_ends_all_at_once_and_says_what_differs() -> None:
    net = Network(3)
    net.nodes.pop().kill()
    try:
        net.start(2, KEY.replace(digests=bytes(31) + b"x"))
        net.to_the_end(limit=30)  # host_timeout is longer
        assert {node.verdict.summary for node in net.nodes if node.verdict and node.state == "over"} == {
            "algo-3 and algo-1 were not started for the same job: their hyperparameters differ"
        }
    finally:
        net.close()


def test_another_version_of_the_protocol_is_named_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Network(2)
    try:
        net.node(1).paused_until = 1000.0
        net.step()
        net.dial(b"trainshed roster 77\n" + bytes(32))
        net.step()
        net.step()
        assert "runs another release of trainshed (version 77" in net.node(0).said[0]
    finally:
        net.close()
    with pytest.raises(NotOurs) as error:
        Handshake(KEY).read_preface(b"trainshed roster 77\n" + bytes(32))
    assert error.value.version == 77 != VERSION


def test_host_0_has_to_prove_the_key_too_and_a_proof_is_not_its_own_answer() -> None:
    member, impostor = Handshake(KEY), Handshake(OTHER)
    member.read_preface(impostor.preface())
    impostor.read_preface(member.preface())
    claim = member.claim(1, bytes(16), bytes(16))
    with pytest.raises(Unproven):
        impostor.read_claim(claim)
    with pytest.raises(Unproven):
        member.read_answer(impostor.answer(bytes(16)))
    with contextlib.suppress(Unproven):  # a reflection of what it has sent itself
        member.read_answer(claim[:49])
        raise AssertionError("taken")


def test_a_port_that_another_program_uses_is_named_soon() -> None:
    net = Network(2)
    net.nodes.pop(0).kill()
    server = socket.create_server(("127.0.0.1", net.port))
    server.setblocking(False)
    try:

        def serve() -> None:
            with contextlib.suppress(BlockingIOError):
                connection, _ = server.accept()
                connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                connection.close()

        for _ in range(200):
            net.step()
            serve()
        verdict = net.node(1).verdict
        assert verdict is not None and f"port {net.cables[1].port} of algo-1" in verdict.summary
        assert "another program uses that port" in verdict.summary
    finally:
        server.close()
        net.close()
