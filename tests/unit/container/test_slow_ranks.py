"""The watch over slow ranks: what host 0 hears of the others, what it says, and that it costs nothing when it must not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainshed.container import slow_ranks
from trainshed.container.roster.roster import Alone
from trainshed.container.slow_ranks import MOST_SAID, SlowRanks
from trainshed.observe.pace import KEPT, Pace, write_pace
from trainshed.observe.steps import PHASES


class Run:
    """What the watch asks of a run."""

    def __init__(self) -> None:
        self.stopping = False
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


class Two(Alone):
    """Host 0 of two."""

    def __init__(self) -> None:
        super().__init__("algo-1")
        self.names = ("algo-1", "algo-2")


def pace(rank: int, blocks: int, own: float, **more: Any) -> Pace:
    phases = {**dict.fromkeys(PHASES, 0.0), "forward": own, "communication": 2.0 - own}
    fields = {"world": 2, "pid": os.getpid(), "host": f"algo-{rank + 1}", "local": 0, "step": 8 * blocks, "blocks": blocks}
    return Pace(**{"rank": rank, "own": (own,) * KEPT, "phases": phases, **fields, **more})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_ranks, "EVERY", 0.0)


def message(*paces: Pace) -> dict[str, Any]:
    return {"type": "pace", "ranks": [one.plain() for one in paces], "stolen": 0.5, "throttled": {}}


def test_a_rank_of_another_host_is_named_with_what_that_host_tells(tmp_path: Path) -> None:
    roster, run = Two(), Run()
    watch = SlowRanks(str(tmp_path), "algo-1", gpus=True, roster=roster)
    for blocks in range(1, 7):
        write_pace(str(tmp_path), pace(0, blocks, 1.0))
        roster.hear("algo-2", message(pace(1, blocks, 2.0)))
        roster.hear("algo-2", {"type": "pace", "ranks": [{"rank": 1}], "stolen": 0, "throttled": {}})
        roster.hear("algo-2", {"type": "pace"})
        watch.turn(run)  # type: ignore[arg-type]

    (line,) = run.said
    assert line.startswith("rank 1 on algo-2 holds up the others") and "50 % of its host's CPU time" in line
    assert [(one["rank"], one["end"]) for one in watch.episodes()] == [(1, 0)]
    watch.run_over()
    assert not list(tmp_path.glob("pace/*"))


def test_a_host_cannot_tell_of_another_hosts_ranks(tmp_path: Path) -> None:
    roster, run = Two(), Run()
    watch = SlowRanks(str(tmp_path), "algo-1", gpus=False, roster=roster)
    for blocks in range(1, 7):
        write_pace(str(tmp_path), pace(0, blocks, 1.0))
        roster.hear("algo-2", message(pace(1, blocks, 2.0, host="algo-3")))
        watch.turn(run)  # type: ignore[arg-type]

    assert run.said == []


def test_a_rank_that_comes_and_goes_all_day_fills_no_log(tmp_path: Path) -> None:
    roster, run = Two(), Run()
    watch = SlowRanks(str(tmp_path), "algo-1", gpus=False, roster=roster)
    for blocks in range(1, 200):
        write_pace(str(tmp_path), pace(0, blocks, 1.0))
        roster.hear("algo-2", message(pace(1, blocks, 2.0 if blocks // 4 % 2 else 1.0)))
        watch.turn(run)  # type: ignore[arg-type]

    assert len(run.said) == MOST_SAID + 1 and "no further lines" in run.said[-1]
    assert len(watch.episodes()) > MOST_SAID


def test_what_ended_ranks_have_left_says_nothing(tmp_path: Path) -> None:
    watch, run = SlowRanks(str(tmp_path), "algo-1", gpus=False, roster=Alone("algo-1")), Run()
    ended = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(ended, 0)
    for blocks in range(1, 7):
        for rank in (0, 1):
            write_pace(str(tmp_path), pace(rank, blocks, 1.0 + rank, host="algo-1", pid=ended))
        watch.turn(run)  # type: ignore[arg-type]

    assert run.said == []


@pytest.mark.parametrize("folder", ["", "/nowhere"])
def test_it_asks_for_no_turn_where_nothing_is_measured_and_while_the_ranks_stop(folder: str) -> None:
    watch, run = SlowRanks(folder, "algo-1", gpus=False, roster=Alone("algo-1")), Run()
    run.stopping = True
    watch.turn(run)  # type: ignore[arg-type]

    assert watch.pause() > 1000 and watch.episodes() == []
    watch.run_over()
