"""What the marks make of what torch gives them. The marks themselves are tested by whole jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from trainshed.autopatch import HOOKS
from trainshed.observe.stepping import hooks
from trainshed.observe.stepping.beginning import Imports
from trainshed.observe.stepping.segments import Step
from trainshed.observe.steps import read_rank


class Tensor:
    """As much of a tensor as counts."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (Tensor(8, 3), 8),
        ([Tensor(4, 3), Tensor(4)], 4),
        ((Tensor(4), [Tensor(9)]), 4),
        ({"text": ["a"], "x": Tensor(5, 2)}, 5),
        ([{"x": Tensor(6)}], 6),
        (Tensor(), None),
        ([], None),
        ("text", None),
        ([[[[[Tensor(1)]]]]], None),
        (object(), None),
    ],
)
def test_a_batchs_samples_are_counted_by_its_first_tensor(batch: Any, rows: int | None) -> None:
    assert hooks.rows_of(batch) == rows


def test_what_ddp_waits_is_the_exchange_that_the_backward_does_not_cover() -> None:
    data = {"backward_compute_time": 20, "backward_comm_time": 130, "backward_compute_comm_overlap_time": 10}

    assert hooks.exposed_part(data, 0.5) == pytest.approx(120 / 140)
    assert hooks.exposed_part({}, 0.5) == 0.5
    assert hooks.exposed_part({**data, "backward_comm_time": 5}, 0.5) == 0.0


def test_autopatch_calls_for_every_module_that_gets_marks() -> None:
    assert set(HOOKS["steps"]) == hooks.MODULES
    assert set(HOOKS["steps"].values()) == {hooks.__name__}


def test_a_training_that_begins_anew_in_its_process_is_another_life(tmp_path: Path) -> None:
    facts = {"Rank": 0, "World": 2, "Host": "algo-1", "Cpus": 1, "Ranks": 2, "Pid": 1}
    meter = hooks.Meter(str(tmp_path), facts)
    try:
        meter.live_on(facts)  # no step has been made: it is the same life
        first, meter._steps = meter.file, 1
        first.tell(Device="cpu", Resumed=3)
        first.add(Step(2.0, {}, 1))
        meter.segments.optimizer_ends(1)
        meter.live_on(facts)
        (path,) = (tmp_path / "steps").iterdir()
        before = path.rename(tmp_path / "before")  # names tell milliseconds apart
        meter.file.add(Step(2.0, {}, 1))
        assert meter.segments.optimizer_ends(2)  # it is another one's steps that count now
        (path,) = (tmp_path / "steps").iterdir()
        old, new = read_rank(str(before)), read_rank(str(path))
        assert old is not None
        assert new is not None
        assert (old.windows[0].steps, new.windows[0].steps) == (1, 1)
        assert (old.facts["Resumed"], new.facts.get("Resumed"), new.facts["Device"]) == (3, None, "cpu")
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Imports)]


def test_a_process_that_was_forked_after_its_imports_measures_itself(tmp_path: Path) -> None:
    facts = {"Rank": 0, "World": 2, "Host": "algo-1", "Cpus": 1, "Ranks": 2, "Pid": 1}
    meter = hooks.Meter(str(tmp_path), facts)
    finders = len(sys.meta_path)
    try:
        meter.begin({**facts, "Rank": 1})
        meter.file.add(Step(2.0, {}, 1))

        (path,) = (tmp_path / "steps").glob("algo-1.rank-1.*")
        assert '"Rank": 1' in path.read_text()
        assert len(sys.meta_path) == finders
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Imports)]
