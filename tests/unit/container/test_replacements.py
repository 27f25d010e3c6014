"""A lost rank is replaced where all others can live on and come back in time; else the run has failed with it."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainshed.container import replacements
from trainshed.container.replacements import Replacements
from trainshed.container.restarts import Again
from trainshed.container.supervisor.launch_plan import LaunchPlan, ProcessResult, ProcessSpec
from trainshed.contract.outcome import Failure
from trainshed.contract.wire.in_place import LIFE, fifo_of, read_word
from trainshed.contract.wire.variables import IN_PLACE

if TYPE_CHECKING:
    from trainshed.container.supervisor.watcher import Process, Start, Supervised

FAILURE = Failure(kind="UserError", summary="rank 1 was killed", exit_code=137)


class One:
    """A rank."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec, self.pid, self.returncode = spec, 0, None

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def result(self) -> ProcessResult:
        return ProcessResult(self.spec, self.returncode or 0, 0.0)


class Run:
    """The supervisor's run, as far as replacements see it."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.ranks = [One(spec) for spec in plan.processes]
        self.stopping = False
        self.said: list[str] = []
        self.started: list[str] = []
        self.given_up: list[tuple[Process, Process, str]] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def replace(self, lost: Process, spec: ProcessSpec, start: Start) -> Process:
        self.ranks = [rank for rank in self.ranks if rank is not lost]
        self.ranks.append(One(spec))
        self.started.append(f"{spec.rank} in life {spec.env[LIFE]}")
        return self.ranks[-1]

    def give_up(self, lost: Process, instead: Process, why: str) -> None:
        self.given_up.append((lost, instead, why))


class Job:
    """Three ranks, all inside of their functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in-place"
        self.plan = self.plan_of(0)
        self.allowed = True
        self.counted: list[str] = []
        self.open: dict[str, int] = {}
        self.watcher = Replacements(
            self.plan,
            lambda lost: (Again(FAILURE, 1, 7001), self.plan_of(1)) if self.allowed else None,
            lambda again, name: self.counted.append(f"{name}, {again.done}"),
            lambda spec: (0, 0, 0),
        )
        self.folder.mkdir()
        self.made = Run(self.plan)
        self.run: Supervised = self.made  # type: ignore[assignment]
        for rank in range(3):
            self.enter(rank, 0)

    def plan_of(self, life: int) -> LaunchPlan:
        envs = [
            {IN_PLACE: str(self.folder), LIFE: str(life), "RANK": str(rank), "MASTER_PORT": str(7000 + life)}
            for rank in range(3)
        ]
        return LaunchPlan(tuple(ProcessSpec(("x",), env, "/", rank=rank) for rank, env in enumerate(envs)))

    def enter(self, rank: int, life: int) -> None:
        path = fifo_of(str(self.folder), rank, life)
        os.mkfifo(path)
        self.open[path] = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def leave(self, rank: int, life: int) -> None:
        path = fifo_of(str(self.folder), rank, life)
        os.close(self.open.pop(path))
        os.unlink(path)

    def lose(self, rank: int) -> bool:
        """A rank is killed; whether it is replaced."""
        (lost,) = (one for one in self.made.ranks if one.spec.rank == rank)
        lost.returncode = -9
        for path in [path for path in self.open if f"rank{rank}." in path]:
            os.close(self.open.pop(path))
        return self.watcher.replaces(self.run, lost)

    def turn(self) -> None:
        self.watcher.turn(self.run)

    def told(self, rank: int) -> dict[str, str] | None:
        line = os.read(self.open[fifo_of(str(self.folder), rank, 0)], 5000)
        word = read_word(line)
        return word and word.environ


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for fd in made.open.values():
        os.close(fd)


def test_the_others_are_told_what_is_new_and_it_counts_once_all_of_them_are_back(job: Job) -> None:
    assert job.lose(1)
    assert job.made.started == ["1 in life 1"]
    assert job.told(0) == job.told(2) == {LIFE: "1", "MASTER_PORT": "7001"}
    job.enter(0, 1)
    job.turn()
    assert (job.counted, job.made.given_up) == ([], [])
    job.enter(2, 1)
    for _ in range(3):
        job.turn()
    assert job.counted == ["rank 1, 1"]
    assert job.watcher.pause() < 1  # the new rank has not come to its function
    job.enter(1, 1)
    job.turn()
    assert job.watcher.pause() > 1000
    assert job.counted == ["rank 1, 1"]


def test_a_rank_is_not_replaced_where_another_one_would_not_come_back(job: Job) -> None:
    job.leave(2, 0)
    assert not job.lose(1)
    assert job.made.said == ["rank 1 is not replaced in place: rank 2 is not inside of its function"]


def test_a_rank_is_not_replaced_where_another_one_has_ended(job: Job) -> None:
    job.made.ranks[0].returncode = 0
    assert not job.lose(1)
    assert job.made.said == ["rank 1 is not replaced in place: rank 0 is not inside of its function"]


def test_without_resumable_nothing_is_said(job: Job) -> None:
    for rank in range(3):
        job.leave(rank, 0)
    assert not job.lose(1)
    assert job.made.said == []


def test_a_rank_that_left_its_function_by_an_error_is_replaced_and_one_that_had_come_to_its_end_is_not(job: Job) -> None:
    job.leave(1, 0)
    assert not job.lose(1)
    (job.folder / "rank1.0.failed").touch()
    assert job.lose(1)


def test_the_restarts_decide(job: Job) -> None:
    job.allowed = False
    assert not job.lose(1)
    assert job.made.started == []


@pytest.mark.parametrize("second", [0, 1])
def test_a_second_loss_meanwhile_fails_the_run_with_the_first_one(job: Job, second: int) -> None:
    """Of another rank, or of the new one on its way to its function."""
    (first,) = (rank for rank in job.made.ranks if rank.spec.rank == 1)
    assert job.lose(1)
    assert not job.lose(second)
    ((lost, instead, why),) = job.made.given_up
    assert (lost, instead.spec.env[LIFE], why) == (first, "1", f"rank {second} was lost meanwhile")
    job.enter(2, 1)
    job.turn()
    assert job.counted == []


def test_a_rank_that_does_not_come_back_in_time_fails_the_run(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(replacements.time, "monotonic", lambda: next(clock))
    assert job.lose(1)
    job.enter(0, 1)
    for _ in range(9):
        job.turn()
    ((_, _, why),) = job.made.given_up
    assert why == "rank 2 has not left its function within 60 s"
    assert job.made.said == [f"rank 1 is not replaced in place: {why}; all ranks start again"]
    assert job.counted == []


def test_a_stop_ends_it_without_a_word(job: Job) -> None:
    assert job.lose(1)
    job.made.stopping = True
    job.turn()
    assert (job.made.given_up, job.counted, job.watcher.pause() > 1000) == ([], [], True)


def test_a_word_that_is_too_long_is_not_sent(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = job.plan_of(1)
    long = tuple(spec.replace(env={**spec.env, "LONG": "x" * 5000}) for spec in plan.processes)
    monkeypatch.setattr(job, "plan_of", lambda life: plan.replace(processes=long))
    assert not job.lose(1)
    assert "have more than 4096 bytes" in job.made.said[0]


def test_what_an_earlier_attempt_has_left_says_nothing(job: Job) -> None:
    job.watcher = Replacements(job.plan, lambda lost: None, lambda again, name: None, lambda spec: (0, 0, 0))
    assert list(job.folder.iterdir()) == []


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{}", b"[]", b'{"environ": 1}', json.dumps({"environ": []}).encode(), b"\xff"]
)
def test_what_is_no_word_is_none(line: bytes) -> None:
    assert read_word(line) is None
