"""What the hosts' launchers write to each other over the roster."""

from __future__ import annotations

from support.roster_network import Network


def test_letters_come_once_and_in_order_in_both_directions(net: Network) -> None:
    leader, member = net.node(0).roster, net.node(1).roster
    for number in range(3):
        leader.post(1, {"n": number})
        member.post(0, {"n": -number})
    net.until(lambda: len(leader.inbox) == len(member.inbox) == 3)

    assert member.letters() == [(0, {"n": 0}), (0, {"n": 1}), (0, {"n": 2})]
    assert leader.letters() == [(1, {"n": 0}), (1, {"n": -1}), (1, {"n": -2})]
    net.to_the_end()
    assert leader.letters() == member.letters() == []


def test_letters_survive_a_connection_that_breaks_and_come_no_second_time(net: Network) -> None:
    leader, member = net.node(0).roster, net.node(1).roster
    leader.post(1, {"n": 1})
    member.post(0, {"n": 1})
    net.until(lambda: len(leader.inbox) == len(member.inbox) == 1)
    net.cables[1].reset()
    leader.post(1, {"n": 2})  # into a connection that is dead
    member.post(0, {"n": 2})
    net.until(lambda: len(leader.inbox) == len(member.inbox) == 2)

    assert member.letters() == [(0, {"n": 1}), (0, {"n": 2})]
    assert leader.letters() == [(1, {"n": 1}), (1, {"n": 2})]
    net.to_the_end()
    assert leader.letters() == member.letters() == []


def test_a_host_that_has_ended_is_absent(net: Network) -> None:
    leader, member = net.node(0).roster, net.node(1).roster
    assert leader.absent() == member.absent() == set()
    net.to_the_end()
    assert leader.absent() == {1} and member.absent() == {0}


def test_host_0_is_absent_for_the_others_as_soon_as_its_own_ranks_have_ended(net: Network) -> None:
    net.node(0).ends_at = net.clock.now
    net.until(lambda: net.node(1).roster.absent() == {0})  # what MPI's watcher waits for

    assert net.node(1).state == "running"
    net.to_the_end()
