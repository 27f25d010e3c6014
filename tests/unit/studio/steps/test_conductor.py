"""What the conductor writes down, and what it leaves to the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.studio.batches.folder import FAILED, IN_PROGRESS
from trainshed.studio.steps.conductor import Conductor
from trainshed.studio.steps.steps_folder import SKIPPED, StepsFolder, StepState
from trainshed.studio.steps.steps_plan import RUN, PipelineDefinition, Step


@pytest.mark.parametrize("how", [FAILED, SKIPPED])
def test_a_run_of_an_earlier_command_is_left_to_the_next_one(tmp_path: Path, how: str) -> None:
    """It may go on by itself: were it written down as over, another one would be started beside it."""
    folder = StepsFolder(str(tmp_path / "p"))
    folder.claim()
    before = StepState("train", "key", 3, IN_PROGRESS, began=1.0)
    folder.save(before)
    said: list[str] = []
    pipeline = PipelineDefinition("p", "/p.yaml", (Step("train", RUN, "p.yaml:1"),), {})
    conductor = Conductor(pipeline, folder, {}, said.append, forced=set(), since=2.0, session=2.0)
    conductor.end("train", how, "its code cannot be read")
    folder.release()

    assert folder.state("train") == before and conductor.over == {"train": how}
    assert said == ["train cannot go on now: its code cannot be read"]
