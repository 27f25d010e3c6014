"""What the hosts' launchers write to each other over the roster."""

from __future__ import annotations

from trainshed.container.roster.messages import Report
from unit.container.roster.test_connections import both_leave, pair, turns


def test_letters_come_once_and_in_order_in_both_directions():
    leader, member = pair()
    for number in range(3):
        leader.post(1, {"n": number})
        member.post(0, {"n": -number})
    turns(leader, member, lambda: len(leader.inbox) == len(member.inbox) == 3)
    assert member.letters() == [(0, {"n": 0}), (0, {"n": 1}), (0, {"n": 2})]
    assert leader.letters() == [(1, {"n": 0}), (1, {"n": -1}), (1, {"n": -2})]
    both_leave(leader, member, Report(state="done"), Report(state="done"))
    assert leader.letters() == member.letters() == []


def test_letters_survive_a_connection_that_breaks_and_come_no_second_time():
    leader, member = pair()
    leader.post(1, {"n": 1})
    member.post(0, {"n": 1})
    turns(leader, member, lambda: len(leader.inbox) == len(member.inbox) == 1)
    assert member.link is not None
    member.link.close()
    leader.post(1, {"n": 2})  # into a connection that is dead, or none
    member.post(0, {"n": 2})
    turns(leader, member, lambda: len(leader.inbox) == len(member.inbox) == 2)
    assert member.letters() == [(0, {"n": 1}), (0, {"n": 2})]
    assert leader.letters() == [(1, {"n": 1}), (1, {"n": 2})]
    both_leave(leader, member, Report(state="done"), Report(state="done"))
    assert leader.letters() == member.letters() == []


def test_a_host_that_has_ended_is_absent():
    leader, member = pair()
    assert leader.absent() == member.absent() == set()
    both_leave(leader, member, Report(state="done"), Report(state="done"))
    assert leader.absent() == {1} and member.absent() == {0}
