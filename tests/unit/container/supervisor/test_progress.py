"""The rule about failures without a newer checkpoint, and how checkpoints are counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainshed.container.supervisor.progress import Progress, newest_checkpoint, newest_step, resumption


def test_three_failures_in_a_row_without_a_newer_checkpoint_refuse_a_restart() -> None:
    progress = Progress(newest=4)
    for failures in (1, 2):
        progress = progress.after_failure(4)
        assert (progress.failures, progress.refusal) == (failures, "")

    progress = progress.after_failure(4)

    assert progress.refusal == "not restarted: 3 failures in a row without a newer checkpoint"


def test_a_newer_checkpoint_starts_the_count_again() -> None:
    progress = Progress().after_failure(-1).after_failure(-1).after_failure(7)

    assert progress == Progress(newest=7, failures=0)


def test_a_checkpoint_that_was_removed_is_not_progress_when_it_is_made_again() -> None:
    progress = Progress(newest=9).after_failure(3).after_failure(9)

    assert progress == Progress(newest=9, failures=2)


@pytest.mark.parametrize(
    ("names", "step"),
    [([], -1), (["step-2", "step-12"], 12), (["checkpoint-7", ".aside-99"], 7), (["model_3.pt"], 3), (["best"], -1)],
)
def test_the_newest_step_is_the_highest_number_in_the_names(names: list[str], step: int, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).mkdir()

    assert newest_step(str(tmp_path)) == step


def test_a_folder_that_does_not_exist_has_no_step(tmp_path: Path) -> None:
    assert newest_step(str(tmp_path / "gone")) == -1


def test_the_newest_checkpoint_is_told_with_its_time(tmp_path: Path) -> None:
    for name, saved in (("step-9", 5.0), ("step-20", 7.0), ("notes", 9.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (saved, saved))

    assert newest_checkpoint(str(tmp_path)) == (20, 7.0)
    assert newest_checkpoint(str(tmp_path / "gone")) == (-1, 0.0)


def test_where_a_restart_begins_is_said() -> None:
    assert (resumption(12), resumption(-1)) == ("resuming from step 12", "from the beginning")
