"""How ranks agree on operations: whatever they announce in whatever order, all run the same, or are told what is wrong."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.lazy import Lazy

agreements = Lazy("trainshed.compat.horovod_api.horovod.torch.engine.agreement")
places = Lazy("trainshed.compat.horovod_api.horovod.torch.engine.place")
wire = Lazy("trainshed.compat.horovod_api.horovod.torch.engine.wire")
pytestmark = pytest.mark.torch
SCALES = {"op": "sum", "average": False, "scales": [1.0, 1.0]}


def agreement(size: int, fusion_bytes: int = 1000, warn: float = 60, fail: float = 600) -> agreements.Agreement:
    return agreements.Agreement(size, fusion_bytes, warn, fail)


def allreduce(name: str, shape: tuple[int, ...] = (2,), **fields: Any) -> dict[str, Any]:
    return {
        **{"set": 0, "name": name, "kind": "allreduce", "device": "cpu", "tensors": [["float32", list(shape)]], **SCALES},
        **fields,
    }


def heard(made: agreements.Agreement, size: int) -> list[list[Any]]:
    """What each rank is told: names of batches, and reasons."""
    told: list[list[Any]] = [[] for _ in range(size)]
    for ranks, message in made.take():
        for rank in ranks:
            batch = message.get("batch")
            told[rank].append([run["name"] for run in batch] if batch else message.get("fail") or message)
    return told


@pytest.mark.parametrize("seed", range(20))
def test_all_ranks_run_everything_once_in_one_order(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 5)
    operations = [allreduce(f"t{number}", (chance.randint(1, 100),)) for number in range(30)]
    left = [chance.sample(operations, len(operations)) for _ in range(size)]
    made = agreement(size)
    told: list[list[str]] = [[] for _ in range(size)]
    while any(left):
        rank = chance.choice([rank for rank in range(size) if left[rank]])
        made.announce(rank, left[rank].pop(), now=0)
        if chance.random() < 0.2 or not any(left):
            news = heard(made, size)
            assert all(one == news[0] for one in news)
            for batch in news[0]:
                told[0] += batch
                sizes = [4 * next(o for o in operations if o["name"] == name)["tensors"][0][1][0] for name in batch]
                assert len(batch) == 1 or sum(sizes) <= 1000

    assert sorted(told[0]) == sorted(operation["name"] for operation in operations)


def test_what_is_not_alike_is_not_fused() -> None:
    made = agreement(1)
    for number, fields in enumerate(({}, {}, {"op": "max"}, {"device": "cuda"}, {"tensors": [["float32", [250]]]}, {})):
        made.announce(0, allreduce(f"t{number}", **fields), now=0)

    assert heard(made, 1) == [[["t0", "t1"], ["t2"], ["t3"], ["t4"], ["t5"]]]


def test_who_is_waited_for_is_told_and_then_given_up() -> None:
    made = agreement(3, warn=60, fail=600)
    made.announce(1, allreduce("w"), now=0)

    assert made.look(59) == [] and made.look(61) == ["allreduce of 'w': rank 1 waited 61 s for ranks 0, 2"]
    assert made.look(62) == [] and heard(made, 3) == [[], [], []]
    made.look(601)
    (failed,) = heard(made, 3)[1]
    assert failed[2].startswith("allreduce of 'w': ranks 0, 2 did not announce it within 600 s")


def test_ranks_that_wait_for_each_other_are_found_and_those_that_may_go_on_are_not() -> None:
    made = agreement(2, warn=0, fail=0)
    made.announce(0, allreduce("a"), now=0)
    made.announce(1, allreduce("b"), now=0)
    made.block(0, (0, "a"))
    made.look(5)
    made.look(5 + 2 * agreements.DEADLOCK_SECONDS)
    assert heard(made, 2) == [[], []]  # rank 1 computes
    made.block(1, (0, "b"))
    made.look(100)
    made.announce(1, allreduce("c"), now=101)  # another thread of rank 1 is at work
    made.look(102)
    made.look(101 + agreements.DEADLOCK_SECONDS)
    assert heard(made, 2) == [[], []]
    made.look(103 + agreements.DEADLOCK_SECONDS)
    told = heard(made, 2)
    assert [one[1] for one in told[0]] == ["a"] and [one[1] for one in told[1]] == ["b", "c"]
    assert "rank 0 waits for allreduce of 'a'; rank 1 waits for allreduce of 'b'" in told[0][0][2]


def test_nobody_waits_for_a_rank_that_has_left() -> None:
    made = agreement(3)
    made.announce(0, allreduce("before"), now=0)
    made.join(1)
    made.leave(2, "is away")
    made.announce(0, allreduce("after"), now=0)
    told = heard(made, 3)

    assert [one[2] for one in told[0]] == ["allreduce of 'before': rank 2 is away", "allreduce of 'after': rank 2 is away"]
    assert told[1] == [{"join_failed": "join: rank 2 is away, and has not joined"}]


def test_process_sets_have_operations_of_their_own() -> None:
    made = agreement(3)
    for rank in range(3):
        made.announce(rank, {"set": 0, "name": "add", "kind": "add_set", "ranks": [0, 2]}, now=0)
    made.announce(0, allreduce("x", set=1), now=0)
    made.announce(1, allreduce("x", set=1), now=0)
    made.leave(1, "is away")
    made.announce(2, allreduce("x", set=1), now=0)

    told = heard(made, 3)
    assert told[0] == told[2] == [["add"], ["x"]] and told[1][1] == [1, "x", "rank 1 is not in the process set 1"]


@pytest.mark.parametrize("cut", [1, 3, 4, 7, 1000])
def test_messages_come_whole_however_they_are_cut(cut: int) -> None:
    messages = [{"a": [1, "é\n"]}, {}, {"b": "x" * 300}]
    stream = b"".join(map(wire.packed, messages))
    unpacker = wire.Unpacker()

    assert [one for at in range(0, len(stream), cut) for one in unpacker.feed(stream[at : at + cut])] == messages


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", "longer than the longest", b"\0\0\0\2[]", b"\0\0\0\1x"])
def test_what_is_no_message_is_refused(noise: bytes | str) -> None:
    noise = noise if isinstance(noise, bytes) else (wire.LONGEST + 1).to_bytes(4, "big")
    with pytest.raises(ValueError):
        wire.Unpacker().feed(noise)


def test_places() -> None:
    rank = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2"}

    assert places.place_of({}) == (0, 1, 0, 1, 0, 1) and places.place_of(rank) == (5, 6, 1, 2, 2, 3)
    with pytest.raises(ValueError, match="start the job with `train`"):
        places.place_of({"OMPI_COMM_WORLD_SIZE": "2"})
    with pytest.raises(ValueError, match="must be numbers"):
        places.place_of({"RANK": "0"})
    with pytest.raises(ValueError, match="rank 6 of 6"):
        places.place_of({**rank, "RANK": "6"})
