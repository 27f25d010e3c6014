"""A rank's file stays small however long the rank runs, and a disk that is full costs it windows alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainshed.observe.stepping.segments import Step
from trainshed.observe.stepping.window_file import LINES_EACH, WindowFile
from trainshed.observe.steps import read_steps

FACTS = {"Rank": 1, "Host": "algo-1", "World": 2}


def step(seconds: float = 1.0, samples: int | None = 8) -> Step:
    return Step(seconds, {"data": seconds / 4, "forward": seconds / 2}, samples)


def test_steps_are_summed_until_a_second_is_full_and_the_rest_is_what_no_phase_has(tmp_path: Path) -> None:
    file = WindowFile(str(tmp_path), FACTS, print, lambda: {"forward": 5})
    for _ in range(5):
        file.add(step(0.3))
    file.tell(Workers=2)
    file.flush()
    (rank,) = read_steps(str(tmp_path))

    assert [(window.step, window.steps, window.samples) for window in rank.windows] == [(4, 4, 32), (5, 1, 8)]
    assert rank.windows[0].phases["rest"] == pytest.approx(0.3) and rank.windows[0].peaks == {"forward": 5}
    assert rank.facts == {**FACTS, "Workers": 2}


def test_a_rank_that_runs_for_weeks_writes_a_few_thousand_lines(tmp_path: Path) -> None:
    file = WindowFile(str(tmp_path), FACTS, print)
    for _ in range(20 * LINES_EACH):
        file.add(step())
    (rank,) = read_steps(str(tmp_path))

    assert len(rank.windows) < 5 * LINES_EACH and rank.steps >= 18 * LINES_EACH


def test_a_window_with_a_batch_of_unknown_size_has_no_samples(tmp_path: Path) -> None:
    file = WindowFile(str(tmp_path), FACTS, print)
    file.add(step(0.5))
    file.add(step(0.5, None))
    file.add(step(1.0))
    (rank,) = read_steps(str(tmp_path))

    assert [window.samples for window in rank.windows] == [None, 8]


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("")
    said: list[str] = []
    file = WindowFile(str(tmp_path), FACTS, said.append)
    for _ in range(3):
        file.add(step())

    assert len(said) == 1 and "cannot be written" in said[0]


def test_a_disk_that_is_full_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    file = WindowFile(str(tmp_path), FACTS, said.append)
    file.add(step())
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
        file.add(step())
    file.add(step())
    (rank,) = read_steps(str(tmp_path))

    assert [window.step for window in rank.windows] == [1, 3] and len(said) == 1


def test_a_forked_child_writes_nothing_of_its_parents(tmp_path: Path) -> None:
    file = WindowFile(str(tmp_path), FACTS, print)
    file.add(step(0.5))
    pid = os.fork()
    if pid == 0:
        file.flush()
        os._exit(0)
    os.waitpid(pid, 0)

    assert read_steps(str(tmp_path)) == []
