"""An elastic job that loses its leader: the next host leads, two parts never train, and a minority ends with words."""

from __future__ import annotations

import os

import pytest

from support.elastic_network import ElasticNetwork, training

pytestmark = pytest.mark.safety


def _ends(net: ElasticNetwork) -> list[str]:
    """How each host says that the job has ended."""
    assert not net.both, f"two parts of the job trained: {net.both[:5]}"
    return [
        node.state if node.state != "over" else (node.failure.summary if node.failure is not None else "success")
        for node in net.nodes
    ]


@pytest.mark.parametrize(("hosts", "enough"), [(2, 1), (3, 2), (3, 1), (5, 2)])
def test_the_next_host_leads_when_the_first_is_killed(hosts: int, enough: int) -> None:
    with training(hosts, enough) as net:
        net.nodes[0].kill()
        before = net.now()
        net.until(lambda: all(node.moves == ["algo-2"] for node in net.nodes[1:]))
        assert net.now() - before < 15
        net.to_the_end()
        assert _ends(net) == ["dead", *["success"] * (hosts - 1)]


def test_host_after_host_is_killed_and_the_last_one_finishes_the_job() -> None:
    with training(4, 1, work=40.0) as net:
        for number in range(3):
            net.nodes[number].kill()
            net.until(lambda number=number: all(len(node.moves) == number + 1 for node in net.nodes[number + 1 :]))
            net.wait(3)
        net.to_the_end()
        assert _ends(net) == ["dead", "dead", "dead", "success"]
        assert net.nodes[3].moves == ["algo-2", "algo-3", "algo-4"]


def test_the_next_host_is_killed_while_it_takes_over() -> None:
    with training(4, 2) as net:
        net.nodes[0].kill()
        net.until(lambda: net.nodes[1].roster.handover is not None)
        net.nodes[1].kill()
        net.to_the_end()
        assert _ends(net) == ["dead", "dead", "success", "success"]
        assert net.nodes[3].moves == ["algo-3"]


def test_too_few_hosts_end_with_words() -> None:
    with training(3, 3 - 1) as net:
        net.nodes[0].kill()
        net.nodes[1].kill()
        net.to_the_end()
        assert "fewer than trainshed_min_nodes = 2" in _ends(net)[2]


def test_a_member_that_is_killed_does_not_move_the_leader() -> None:
    with training(3, 1) as net:
        net.nodes[1].kill()
        net.to_the_end()
        assert _ends(net) == ["success", "dead", "success"] and not net.nodes[2].moves


def test_members_are_killed_one_after_the_other_and_the_leader_finishes_alone() -> None:
    with training(3, 1, work=30.0) as net:
        net.nodes[1].kill()
        net.wait(8)
        net.nodes[2].kill()
        net.to_the_end()
        assert _ends(net) == ["success", "dead", "dead"]


def test_a_leader_that_loses_most_hosts_at_once_cannot_know_that_they_are_dead() -> None:
    with training(3, 1) as net:
        net.nodes[1].kill()
        net.nodes[2].kill()
        net.to_the_end()
        assert "cannot reach the other hosts" in _ends(net)[0]


@pytest.mark.parametrize("enough", [1, 2])
def test_the_first_host_is_cut_off_and_the_larger_part_goes_on(enough: int) -> None:
    with training(3, enough, work=60.0) as net:
        net.cut({0}, {1, 2})
        net.to_the_end()
        first, *others = _ends(net)
        assert others == ["success", "success"] and net.nodes[2].moves == ["algo-2"]
        assert "vanished" in first or "cannot reach the other hosts" in first


def test_of_two_halves_the_leaders_goes_on() -> None:
    with training(4, 1, work=60.0) as net:
        net.cut({0, 1}, {2, 3})
        net.to_the_end()
        ends = _ends(net)
        assert ends[:2] == ["success", "success"]
        assert all("cannot reach the other hosts" in end for end in ends[2:]), ends


def test_of_two_hosts_without_a_network_between_them_the_first_goes_on() -> None:
    with training(2, 1, work=60.0) as net:
        net.cut({0}, {1})
        net.to_the_end()
        first, second = _ends(net)
        assert first == "success" and "cannot reach the other hosts" in second


def test_where_every_host_is_alone_none_goes_on() -> None:
    with training(4, 1, work=60.0) as net:
        net.cut()
        net.to_the_end()
        assert "success" not in _ends(net)


def test_a_cut_between_the_first_host_and_the_second_leaves_the_others_with_the_first() -> None:
    with training(3, 1, work=60.0) as net:
        net.cut({0, 2}, {1, 2})
        net.to_the_end()
        first, second, third = _ends(net)
        assert (first, third) == ("success", "success")
        assert "cannot reach the other hosts" in second


def test_a_network_that_is_away_for_twenty_seconds_moves_nothing() -> None:
    with training(3, 2, work=40.0) as net:
        net.cut({0}, {1}, {2})
        net.wait(20)
        net.mend()
        net.to_the_end()
        assert _ends(net) == ["success"] * 3 and not any(node.moves for node in net.nodes)


@pytest.mark.parametrize("enough", [1, 2])
def test_a_first_host_that_was_stopped_and_wakes_later_is_out(enough: int) -> None:
    with training(3, enough, work=60.0) as net:
        net.nodes[0].paused = True
        net.until(lambda: all(node.moves == ["algo-2"] for node in net.nodes[1:]))
        net.wait(5)
        net.nodes[0].wake()
        net.to_the_end()
        first, *others = _ends(net)
        assert others == ["success", "success"]
        assert "was suspended for" in first


def test_a_member_that_was_stopped_while_the_leader_changed_is_out() -> None:
    with training(4, 1, work=80.0) as net:
        net.nodes[2].paused = True
        net.nodes[0].kill()
        net.until(lambda: bool(net.nodes[3].moves))
        net.wait(40)
        net.nodes[2].wake()
        net.to_the_end()
        ends = _ends(net)
        assert (ends[1], ends[3]) == ("success", "success") and ends[2] != "success"


def test_hosts_whose_ranks_take_long_to_stop_are_waited_for() -> None:
    with training(3, 2) as net:
        net.nodes[2].slow = 12.0
        net.nodes[0].kill()
        net.to_the_end()
        assert _ends(net) == ["dead", "success", "success"]


def test_a_script_that_fails_under_the_new_leader_ends_the_job_on_all_hosts() -> None:
    with training(3, 1) as net:
        net.nodes[0].kill()
        net.until(lambda: bool(net.nodes[2].moves))
        net.nodes[2].breaks_at = net.now()
        net.to_the_end()
        assert _ends(net)[1:] == ["bad batch", "bad batch"]


def test_a_first_host_that_dies_while_it_saves_is_replaced_although_the_others_are_done() -> None:
    with training(3, 2, work=10.0) as net:
        net.nodes[0].work = 60.0  # rank 0 writes the model, while the others have nothing left to do
        net.until(lambda: net.nodes[1].state == net.nodes[2].state == "leaving")
        net.nodes[0].kill()
        net.to_the_end()
        assert _ends(net) == ["dead", "success", "success"] and net.nodes[1].moves == ["algo-2"]


def test_a_first_host_that_is_killed_before_the_start_ends_the_job_with_words() -> None:
    net = ElasticNetwork(3, 2)
    try:
        net.nodes[2].paused = True
        net.wait(3)
        net.nodes[0].kill()
        net.nodes[2].wake()
        net.to_the_end()
        assert all("algo-1 did not let the job start" in end for end in _ends(net)[1:])
    finally:
        net.close()


def _happen(net: ElasticNetwork, story: list[str]) -> None:
    """One thing that goes wrong, at a random moment."""
    when, rank = net.random.uniform(0, 40), net.random.randrange(len(net.names))
    what = net.random.choice(("kill", "kill", "pause", "split", "lonely", "slow", "reset"))
    node = net.nodes[rank]
    story.append(f"{when:.1f} s: {what} {node.name}")
    if what == "kill":
        net.at(when, node.kill)
    elif what == "slow":
        node.slow = net.random.uniform(0, 15)
    elif what == "reset":
        net.at(when, lambda: [cable.reset() for (near, far), cable in net.cables.items() if rank in (near, far)])
    elif what == "pause":
        net.at(when, lambda: setattr(node, "paused", True))
        net.at(when + net.random.choice((5.0, 15.0, 30.0, 60.0)), node.wake)
    else:
        ranks = set(range(len(net.names)))
        part = {rank} if what == "lonely" else set(net.random.sample(sorted(ranks), len(ranks) // 2))
        net.at(when, lambda: net.cut(part, ranks - part))
        if net.random.random() < 0.5:
            net.at(when + net.random.choice((5.0, 15.0, 30.0, 60.0)), net.mend)


CASES = int(os.environ.get("TRAINSHED_TEST_ROSTER", "120"))


@pytest.mark.safety
@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=[pytest.mark.heavy] if n >= 40 else []) for n in range(0, CASES, 20)]
)
def test_whatever_happens_two_parts_never_train_and_every_host_ends(first: int) -> None:
    for seed in range(first, first + 20):
        count = 2 + seed % 4
        with training(count, 1 + seed % max(1, count - 1), seed, work=30.0) as net:
            story: list[str] = []
            for _ in range(net.random.choice((1, 2, 2, 3))):
                _happen(net, story)
            try:
                net.to_the_end(limit=500)
                _ends(net)
            except AssertionError as error:
                said = "\n".join(
                    f"{node.name} {node.state} {node.failure and node.failure.summary} {node.said}" for node in net.nodes
                )
                raise AssertionError("\n".join([str(error), f"seed {seed}", *sorted(story), said])) from error
