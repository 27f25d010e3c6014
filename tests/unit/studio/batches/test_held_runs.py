"""Runs that are found again by the locks that their runners hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.runner.state import identity
from trainshed.studio.batches import held_runs
from trainshed.studio.batches.held_runs import UNTRAINED_STARTS, counts, gets_another_start, lives, look_at, taken
from trainshed.studio.steps.steps_folder import StepsFolder


@pytest.mark.safety
def test_the_lock_of_a_run_is_held_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_runs, "READY_SECONDS", 0.0)
    folder, run = StepsFolder(str(tmp_path)), str(tmp_path / "train-1")
    with taken(run, folder):
        assert lives(run) and look_at(run).runner and not look_at(run).begun
        with pytest.raises(TrainshedError, match="train-1 does not end"), taken(run, folder):
            pass

    assert not lives(run)
    with pytest.raises(TrainshedError, match="cannot write in the pipeline's folder"), taken(f"{run}/no/where", folder):
        pass


def killed(folder: Path, **changes: Any) -> str:
    """The folder of a run whose runner was killed while it trained."""
    runner = {**identity.mine(), "Pid": 1 << 22, "Started": 1}
    ours = {"RunId": "train-1", "Runner": {**runner, **changes.pop("Runner", {})}}
    status = {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training", "TrainingStartTime": "x", **changes}
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"name": "train"}))
    (folder / "status.json").write_text(json.dumps({**status, "Trainshed": ours}))
    return str(folder)


@pytest.mark.safety
@pytest.mark.parametrize(("starts", "retries", "again"), [(0, 0, False), (0, 1, True), (1, 1, False)])
def test_a_run_whose_runner_was_killed_gets_the_starts_that_its_job_asks_for(
    tmp_path: Path, starts: int, retries: int, again: bool
) -> None:
    standing = look_at(killed(tmp_path / "run"))

    assert standing.lost and standing.trained and not standing.can_be_stopped
    assert gets_another_start(standing, starts, retries) is again
    assert counts(standing, paused=False) and not counts(standing, paused=True)


def test_another_boot_is_not_the_runs_fault(tmp_path: Path) -> None:
    standing = look_at(killed(tmp_path / "run", Runner={"Boot": "another"}))

    assert gets_another_start(standing, 9, 0) and not counts(standing, paused=False)


def test_what_has_not_trained_yet_has_lost_nothing(tmp_path: Path) -> None:
    standing = look_at(str(tmp_path / "none"))

    assert gets_another_start(standing, UNTRAINED_STARTS - 1, 0) and not gets_another_start(standing, UNTRAINED_STARTS, 0)
