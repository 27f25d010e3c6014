"""The roster's two sides against each other in one process, with connections that break."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from support.free_ports import free_ports
from trainshed.container.roster.leader import Leader
from trainshed.container.roster.member import Member
from trainshed.container.roster.messages import Report
from trainshed.container.roster.proof import JobKey
from trainshed.contract.outcome import Failure

HOSTS = ("127.0.0.1", "127.0.0.2")
KEY = JobKey(b"k" * 32)


def pair() -> tuple[Leader, Member]:
    port = free_ports(2)
    leader = Leader(HOSTS, port, KEY, 1.0, lambda _: None)
    member = Member(HOSTS, 1, ("127.0.0.1", port), KEY, 1.0, lambda _: None)
    joining = threading.Thread(target=leader.join, args=(120.0,))
    joining.start()
    member.join(120.0)
    joining.join()
    return leader, member


def turns(leader: Leader, member: Member, until: Callable[[], object]) -> None:
    """Lets both work until the condition holds."""
    end = time.monotonic() + 120
    while not until():
        assert time.monotonic() < end
        leader.exchange()
        member.exchange()
        time.sleep(0.02)


def both_leave(leader: Leader, member: Member, first: Report, second: Report):
    verdicts: list[object] = []
    leaving = threading.Thread(target=lambda: verdicts.append(leader.leave(first)))
    leaving.start()
    theirs = member.leave(second)
    leaving.join()
    return verdicts[0], theirs


def test_a_broken_connection_is_made_anew_and_nobody_is_lost():
    leader, member = pair()
    for _ in range(3):
        broken, known = member.link, leader.hosts[0].link
        assert broken is not None
        broken.close()
        turns(
            leader, member, lambda b=broken, k=known: member.link not in (None, b) and leader.hosts[0].link not in (None, k)
        )
    assert not leader.hosts[0].lost_at and not leader.stopping
    mine, theirs = both_leave(leader, member, Report(state="done"), Report(state="done"))
    assert mine == theirs and mine.failure is None


def test_what_was_said_before_the_connection_broke_is_said_again():
    leader, member = pair()
    assert member.link is not None
    member.link.close()  # the message below goes into a dead connection
    member.failed("rank 2 ended with 1")
    turns(leader, member, lambda: leader.stopping)
    assert leader.stopping == "127.0.0.2: rank 2 ended with 1"
    failure = Failure(kind="UserError", summary="rank 2 on 127.0.0.2 exited with 1", exit_code=1)
    mine, theirs = both_leave(leader, member, Report(state="stopped"), Report(state="failed", failure=failure))
    assert mine.failure == theirs.failure == failure


def test_nonsense_and_strangers_are_turned_away():
    leader, member = pair()
    for payload in (
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"type": "hello", "rank": 1, "token": "wrong"}\n',
        b'{"rank": [1]}\n',
        b"\xff" * 4096 + b"\n",
    ):
        with socket.create_connection(("127.0.0.1", leader.port)) as stranger:
            turns(leader, member, lambda: leader.door.strangers)
            stranger.sendall(payload)
            turns(leader, member, lambda: not leader.door.strangers)
    assert leader.hosts[0].link is not None and member.link is not None and not leader.stopping
    both_leave(leader, member, Report(state="done"), Report(state="done"))


def test_a_verdict_that_came_while_a_host_was_away_counts():
    leader, member = pair()
    done = Report(state="done")
    member._tell(done.message())
    verdict = leader.leave(done)  # told, but not taken before the first host has left
    assert member.link is not None
    member.link.seen -= 60  # long enough for the connection to be given up
    assert member.leave(done) == verdict and verdict.failure is None


def test_a_verdict_is_told_again_to_a_host_whose_connection_broke():
    leader, member = pair()
    done = Report(state="done")
    member._tell(done.message())
    turns(leader, member, lambda: leader.hosts[0].report)
    assert member.link is not None
    member.link.socket.shutdown(socket.SHUT_RDWR)
    verdicts: list[object] = []
    leaving = threading.Thread(target=lambda: verdicts.append(leader.leave(done)))
    leaving.start()
    while leaving.is_alive() and (leader.verdict is None or leader.hosts[0].link is not None):
        time.sleep(0.01)  # it is told into the dead connection
    theirs = member.leave(done)
    leaving.join()
    assert verdicts == [theirs] and theirs.failure is None
