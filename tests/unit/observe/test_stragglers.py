"""Which rank holds up the others: named for good reasons only, with what it does differently, until it keeps up again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from trainshed.observe.pace import KEPT, Pace
from trainshed.observe.stepping.pacing import Pacing
from trainshed.observe.stepping.segments import Step
from trainshed.observe.steps import PHASES
from trainshed.observe.stragglers import Around, Change, Lagging

BLOCK = 8  # steps of a second at least


class Ranks:
    """Ranks whose steps take what a test says, with the files that real ones write; the fastest wait for the slowest."""

    def __init__(self, folder: Any, world: int = 2) -> None:
        self.folder, self.world = folder, world
        self.queues = [0.0] * world
        self.lagging = Lagging()
        self.said: list[Change] = []
        self.step = 0
        self.around: dict[str, Around] = {}
        self.start()

    def start(self) -> None:
        """All processes anew."""
        self.ranks = [
            Pacing(str(self.folder), {"Rank": rank, "World": self.world, "Local": rank, "Host": "algo-1"}, self.queue(rank))
            for rank in range(self.world)
        ]

    def queue(self, rank: int) -> Any:
        return lambda: self.queues[rank]

    def train(self, steps: int, *own: Any, queued: tuple[float, ...] = ()) -> list[Change]:
        """Each rank's phases, or what gives them for a step; what has been said meanwhile."""
        from trainshed.observe.pace import read_paces

        before = len(self.said)
        for _ in range(steps):
            self.step += 1
            phases = [one(self.step) if callable(one) else one for one in own]
            longest = max(sum(one.values()) for one in phases)
            for rank, one in enumerate(phases):
                self.queues[rank] += queued[rank] if queued else 0.0
                waited = longest - sum(one.values())
                self.ranks[rank].add(Step(longest, {**one, "communication": waited}, None))
            if self.step % BLOCK == 0:  # all have ended a block
                self.said += self.lagging.take(read_paces(str(self.folder), "algo-1"), self.around)
        return self.said[before:]


@pytest.fixture
def ranks(tmp_path: Any) -> Ranks:
    return Ranks(tmp_path)


USUAL = {"forward": 0.4, "backward": 0.5, "data": 0.1}


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ({**USUAL, "data": 0.6}, "the difference is in its wait for data"),
        ({**USUAL, "forward": 0.9}, "the difference is in its forward"),
        ({**USUAL, "rest": 0.5}, "the difference is in its loop outside of the step"),
    ],
)
def test_a_slow_rank_is_named_within_ten_blocks_and_once(ranks: Ranks, slow: dict[str, float], words: str) -> None:
    assert ranks.train(12 * BLOCK, USUAL, USUAL) == []
    (change,) = ranks.train(10 * BLOCK, USUAL, slow)

    assert change.behind and (change.rank, change.host) == (1, "algo-1")
    assert change.text.startswith(f"rank 1 on algo-1 holds up the others, at step {change.step}: ") and words in change.text
    assert "it needs 1.5 s for a step, they 1 s and then wait for it" in change.text
    assert ranks.train(50 * BLOCK, USUAL, slow) == []
    (change,) = ranks.train(10 * BLOCK, USUAL, USUAL)
    assert not change.behind and "keeps up with the others again" in change.text
    (episode,) = ranks.lagging.episodes
    assert (episode.rank, episode.end) == (1, change.step) and 12 * BLOCK < episode.begin <= 22 * BLOCK


def test_two_of_four_ranks_on_a_slow_host_are_both_named(tmp_path: Any) -> None:
    ranks = Ranks(tmp_path, 4)
    slow = {**USUAL, "forward": 0.9}
    changes = ranks.train(12 * BLOCK, USUAL, slow, USUAL, slow)

    assert [change.rank for change in changes] == [1, 3]


def test_evaluation_and_checkpoints_of_rank_0_make_it_no_slow_rank(ranks: Ranks) -> None:
    def first(step: int) -> dict[str, float]:
        extra = 60.0 if step % 25 == 0 else 0.0
        return {**USUAL, "rest": extra, "checkpoint": 3.0}  # a checkpoint in each step, an evaluation in some

    assert ranks.train(60 * BLOCK, first, USUAL) == []


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_batches_of_unequal_lengths_make_no_slow_rank(tmp_path: Any, spread: float) -> None:
    draw = random.Random(0)
    ranks = Ranks(tmp_path, 4)
    lengths = [lambda _: {"forward": draw.lognormvariate(0.5, spread)}] * 4

    assert ranks.train(200 * BLOCK, *lengths) == []


def test_a_loader_whose_workers_bring_batches_by_fours_is_seen_through(ranks: Ranks) -> None:
    bursts = ranks.train(12 * BLOCK, USUAL, lambda step: {**USUAL, "data": 2.4 if step % 4 == 0 else 0.0})

    assert len(bursts) == 1 and "wait for data" in bursts[0].text


def test_ranks_that_do_not_wait_for_each_other_hold_up_nobody(tmp_path: Any) -> None:
    lagging = Lagging()
    for block in range(1, 40):
        paces = [pace(rank, block, own=1.0 + rank, communication=0.0) for rank in range(2)]
        assert lagging.take(paces, {}) == []


def pace(rank: int, blocks: int, own: float, communication: float, **more: Any) -> Pace:
    phases = {**dict.fromkeys(PHASES, 0.0), "forward": own, "communication": communication}
    fields = {"world": 2, "pid": 10 + rank, "host": "algo-1", "local": rank, "step": 8 * blocks, "blocks": blocks}
    return Pace(rank=rank, own=(own,) * KEPT, phases=phases, **{**fields, **more})


def test_what_it_does_differently_is_said() -> None:
    def said(around: Around, **slow: Any) -> str:
        lagging = Lagging()
        for block in range(1, 5):
            ranks = [pace(0, block, 1.0, 1.0, cpu=0.9, queued=0.0), pace(1, block, 2.0, 0.0, **slow)]
            for change in lagging.take(ranks, {"algo-1": around}):
                return change.text.partition("forward; ")[2]
        raise AssertionError("nobody was named")

    assert said(Around(), cpu=0.9, queued=0.9).startswith("for 900 ms of a step it has no CPU: other processes")
    assert said(Around(), cpu=1.9, queued=0.0) == "it computes more: 1.9 s of CPU time a step, they 900 ms"
    assert said(Around(), cpu=0.9, queued=0.0).startswith("it computes no more than they do: it sleeps, or waits")
    assert said(Around(stolen=0.3), cpu=1.3) == "30 % of its host's CPU time goes to other machines (steal)"
    assert said(Around(throttled={0: 4, 1: 0x44 | 1}), cpu=1.3).endswith("its power cap and its temperature")
    assert said(Around(throttled={0: 4, 1: 1}), cpu=1.3) == "", "an idle GPU is not held down"


def test_an_attempt_begins_with_no_names_and_a_missing_rank_is_waited_for(ranks: Ranks) -> None:
    slow = {**USUAL, "forward": 0.9}
    ranks.train(12 * BLOCK, USUAL, slow)
    other = [pace(rank, 1, 1.0 + rank, 1.0 - rank, pid=99 + rank) for rank in range(2)]

    assert ranks.lagging.take(other[:1], {}) == [], "the other one may come yet"
    assert ranks.lagging.take([other[0], other[1].replace(world=3)], {}) == [], "of two attempts"
    assert [ranks.lagging.take([one.replace(blocks=n) for one in other], {}) for n in (1, 1, 1, 2)] == [[]] * 4
    assert [change.behind for change in ranks.lagging.take([one.replace(blocks=3) for one in other], {})] == [True]


@pytest.mark.parametrize(
    "change",
    [
        *({"own": own} for own in ([], [float("nan")], "fast", [1.0] * 99, [10**400])),
        *({"phases": phases} for phases in ([], {"data": -1})),
        *({"rank": 2}, {"host": "\x1b[2J"}, {"cpu": "much"}, {"blocks": None}),
    ],
)
def test_what_another_host_makes_up_is_refused(change: dict[str, Any]) -> None:
    good = pace(0, 1, 1.0, 1.0).plain()

    assert Pace.of(good) == pace(0, 1, 1.0, 1.0)
    with pytest.raises(ValueError, match="no pace of a rank"):
        Pace.of({**good, **change})
