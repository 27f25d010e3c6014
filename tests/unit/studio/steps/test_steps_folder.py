"""What is kept of steps, whoever has written it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from support.obstacles import small_disk, without_rights
from trainshed.base.errors import TrainshedError
from trainshed.runner.job.job import ChannelSpec, Job, Resources
from trainshed.studio.batches import folder as batch_folder
from trainshed.studio.batches.folder import COMPLETED, FAILED
from trainshed.studio.steps.drawing import Box, picture, table
from trainshed.studio.steps.inputs import key_of
from trainshed.studio.steps.steps_folder import StepsFolder, StepState

STATE = StepState("train", "key", 2, COMPLETED, began=1.0, ended=2.5, version="digits:1")


@pytest.fixture
def folder(tmp_path: Path) -> StepsFolder:
    made = StepsFolder(str(tmp_path / "pipelines/p"))
    made.claim()
    return made


def test_a_state_is_read_as_it_was_written(folder: StepsFolder) -> None:
    folder.save(STATE)

    assert folder.state("train") == STATE and folder.state("other") is None


@pytest.mark.safety
@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"}, {"number": "2"}, {"number": -1}, {"number": 10**9}, {"state": "Done"}, {"began": None},
        {"ended": 1e300}, {"cached": 1}, {"more": 1},
    ],
)  # fmt: skip
def test_a_damaged_state_is_none_and_its_runs_are_not_overwritten(folder: StepsFolder, change: dict[str, object]) -> None:
    Path(folder.run("train", 7)).mkdir()
    (Path(folder.path) / "steps/train.json").write_text(json.dumps({**asdict(STATE), **change}))

    found = folder.state("train")
    assert found is not None and (found.state, found.number, found.key) == (FAILED, 7, "")


def test_a_second_conductor_and_a_folder_of_other_things_are_refused(
    folder: StepsFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_folder, "PATIENCE", 0.1)
    with pytest.raises(TrainshedError, match="is being run already"):
        StepsFolder(folder.path).claim()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(TrainshedError, match="holds other things"):
        StepsFolder(str(tmp_path / "other")).claim()
    folder.release()
    assert not folder.worker


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        made = StepsFolder(str(disk / "p"))
        made.claim()
        with pytest.raises(TrainshedError, match="No space left") as caught:
            made.shortage().refuse()
        made.release()
    assert "nothing is lost" in caught.value.hint


def test_a_pipeline_is_found_by_the_beginning_of_its_name(folder: StepsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(folder.path).parent.parent)
    with pytest.raises(TrainshedError, match="there are no pipelines"):
        StepsFolder.find("")
    folder.write("pipeline.json", "{}")
    assert StepsFolder.find("").path == StepsFolder.find("p").path == StepsFolder.find("pipelines/p").path == folder.path
    with pytest.raises(TrainshedError, match="there is no pipeline 'q'"):
        StepsFolder.find("q")


def test_the_hash_of_a_step_is_of_what_its_result_depends_on(folder: StepsFolder, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("one")
    job = Job("train", "train.py", hyperparameters={"lr": 1}, channels=(ChannelSpec("train", str(data)),))
    key = key_of(job, "code", folder)
    same = replace(job, output="/elsewhere", full_name="x", tags={"a": "b"}, retries=3, resources=Resources(cpus=2))
    assert key[0] and not key[1] and key_of(same, "code", folder) == key

    moved = data.rename(tmp_path / "moved")
    assert key_of(replace(job, channels=(ChannelSpec("train", str(moved)),)), "code", folder) == key
    others = {
        key_of(replace(job, channels=(ChannelSpec("other", str(moved)),)), "code", folder),
        key_of(replace(job, channels=(ChannelSpec("train", "model://digits:3"),)), "code", folder),
        key_of(replace(job, channels=(), hyperparameters={"lr": 2}), "code", folder),
        key_of(replace(job, channels=(), environment={"A": "b"}), "code", folder),
        key_of(replace(job, channels=()), "other code", folder),
    }
    (moved / "a").write_text("two")
    others.add(key_of(replace(job, channels=(ChannelSpec("train", str(moved)),)), "code", folder))
    assert len(others) == 6 and key not in others


def test_data_that_cannot_be_read_is_never_taken_as_the_same(folder: StepsFolder, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("one")
    (tmp_path / "data/a").chmod(0)
    with without_rights():
        key, why = key_of(Job("train", channels=(ChannelSpec("train", str(tmp_path / "data")),)), "code", folder)

    assert key == "" and "the channel train cannot be read" in why


def test_texts_of_others_stay_texts_in_the_picture() -> None:
    boxes = [
        Box("a", "run", (), COMPLETED, 3.0),
        Box("b", "run", ("a",), FAILED, 1.0, '<script>"x"</script>\n', report='"><x'),
    ]
    drawn = picture("<p>", boxes)

    assert "<script>" not in drawn and '"><x' not in drawn and drawn.count("<path") == 1
    assert table(boxes).splitlines()[2].split()[:2] == ["b", "run"] and len(table(boxes).splitlines()) == 3
