"""What a script is told of its channels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainshed.data.channels import facts_of, files_of, place_of_rank
from trainshed.data.errors import DataError

ENVIRON = {
    "SM_CHANNELS": '["train", "eval-1"]',
    "SM_CHANNEL_TRAIN": "/data/train",
    "SM_INPUT_DIR": "/opt/ml/input",
    "SM_INPUT_DATA_CONFIG": json.dumps(
        {
            "train": {"TrainingInputMode": "Pipe", "ContentType": "text/csv", "RecordWrapperType": "RecordIO"},
            "eval-1": {"S3DistributionType": "ShardedByS3Key", "ShuffleConfig": {"Seed": 1}, "ContentType": None},
        }
    ),
}


def test_a_channel_is_what_the_job_says_of_it() -> None:
    train = facts_of("train", ENVIRON)
    assert (train.path, train.input_mode, train.content_type, train.record_wrapper) == (
        "/data/train",
        "Pipe",
        "text/csv",
        "RecordIO",
    )
    other = facts_of("eval-1", ENVIRON)
    assert (other.path, other.input_mode, other.sharded, other.shuffled) == ("/opt/ml/input/data/eval-1", "File", True, True)


def test_a_variable_alone_is_a_channel_of_files() -> None:
    assert facts_of("test", {"SM_CHANNEL_TEST": "/here"}).path == "/here"


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"train": 3}', '{"train": {"TrainingInputMode": ["x"]}}'])
def test_damaged_variables_leave_the_folder(damaged: str) -> None:
    facts = facts_of("train", {"SM_INPUT_DATA_CONFIG": damaged, "SM_CHANNELS": "x", "SM_CHANNEL_TRAIN": "/here"})
    assert (facts.path, facts.input_mode) == ("/here", "File")


def test_a_channel_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(DataError, match=r"there is no channel 'trian': did you mean 'train'\?") as raised:
        facts_of("trian", ENVIRON)
    assert raised.value.hint == "the job's channels are eval-1, train"
    with pytest.raises(DataError) as raised:
        facts_of("train", {})
    assert raised.value.hint == "the job has none"


def test_files_are_sorted_and_without_the_marks_of_their_writers(tmp_path: Path) -> None:
    for name in ("b/2.csv", "a.csv", "b/_1.csv", ".hidden", "_SUCCESS", "b/_started_1", "b/.crc/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    assert files_of(str(tmp_path)) == tuple(f"{tmp_path}/{name}" for name in ("a.csv", "b/2.csv", "b/_1.csv"))
    assert files_of(str(tmp_path / "a.csv")) == (f"{tmp_path}/a.csv",)

    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"gone\.csv is a link to nothing"):
        files_of(str(tmp_path))


def test_no_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no data in"):
        files_of(str(tmp_path))
    with pytest.raises(DataError, match="cannot be listed: No such file or directory"):
        files_of(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("environ", "place"),
    [({}, (0, 1)), ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)), ({"RANK": "x"}, (0, 1)), ({"RANK": "3"}, (0, 1))],
)
def test_the_rank_is_the_launchers(environ: dict[str, str], place: tuple[int, int]) -> None:
    assert place_of_rank(environ) == place
