"""What the run record says of the data: what `train` can look at, what the runner knows, and never what costs too much."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from trainshed.container import data_seen as module
from trainshed.container.data_seen import data_seen
from trainshed.machine.fingerprint import of_folder


def job(tree: Any, mode: str = "File", **settings: str) -> Any:
    tree.code("train.py", "import os; open(os.environ['SM_CHANNEL_TRAIN'] + '/cache', 'w').close()\n")
    tree.write("input/data/train/a.csv", "1,2\n")
    tree.configure(
        hyperparameters={"sagemaker_program": "train.py", **settings}, channels={"train": {"TrainingInputMode": mode}}
    )
    return tree


def seen(tree: Any) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    return data_seen(tree.read(), lines.append), lines


def test_the_run_record_has_what_the_script_found_and_not_what_it_made(job_tree: Any) -> None:
    job(job_tree)
    expected = of_folder(str(job_tree.base / "input/data/train"))

    assert job_tree.train().status == 0

    record = json.loads(job_tree.text("output/data/run/algo-1.json"))
    assert record["fingerprints"] == {"train": {"digest": expected.digest, "files": 1, "bytes": 4, "read": 1}}
    assert (job_tree.base / "input/data/train/cache").exists()


@pytest.mark.parametrize(("how", "method"), [("sampled", "sampled"), ("whole", "whole")])
def test_the_job_says_how(how: str, method: str, job_tree: Any) -> None:
    found, said = seen(job(job_tree, trainshed_fingerprint=how))
    assert found["train"]["digest"].startswith(f"{method}:")
    assert len(said) == (how == "whole")


def test_a_job_that_wants_none_has_none(job_tree: Any) -> None:
    assert seen(job(job_tree, trainshed_fingerprint="off")) == ({}, [])


@pytest.mark.parametrize("how", ["sampled", "whole"])
def test_nothing_is_read_of_fast_file_channels(how: str, job_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job(job_tree, "FastFile", trainshed_fingerprint=how)
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("the file was read"))

    found, _ = seen(job_tree)

    assert found["train"]["digest"].startswith("listed:") and found["train"]["bytes"] == 4
    assert found["train"]["notes"] == ["FastFile: contents are not fetched for this"]


def test_a_pipe_is_not_opened(job_tree: Any) -> None:
    job(job_tree, "Pipe")
    os.mkfifo(job_tree.base / "input/data/train_0")
    found, said = seen(job_tree)
    assert (found["train"]["digest"], said) == ("", [])
    assert "known to who writes it" in found["train"]["notes"][0]


def test_what_the_runner_hands_over_counts(job_tree: Any) -> None:
    job(job_tree, "Pipe")
    one = {"digest": "sampled:00", "files": 2, "bytes": 9, "read": 2, "notes": ["a"]}
    job_tree.write("input/config/channelfingerprints.json", {"train": one, "other": 7})
    assert seen(job_tree)[0] == {"train": one}


@pytest.mark.parametrize("broken", ["[", "[]", '{"train": {"digest": 7}}', '{"train": []}', "[" * 100_000])
def test_what_is_handed_over_in_another_form_does_not_count(broken: str, job_tree: Any) -> None:
    job(job_tree)
    job_tree.write("input/config/channelfingerprints.json", broken)
    assert seen(job_tree)[0]["train"]["files"] == 1


def test_a_start_does_not_wait_long(job_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", -1.0)
    found, (line,) = seen(job(job_tree))
    assert found["train"]["digest"] == ""
    assert line.startswith("warning: the channel train: no fingerprint: ") and "cannot say for sure" in line


def test_a_channel_without_a_folder_does_not_stop_the_job(job_tree: Any) -> None:
    job(job_tree)
    (job_tree.base / "input/data/train/a.csv").unlink()
    (job_tree.base / "input/data/train").rmdir()
    found, (line,) = seen(job_tree)
    assert found["train"]["digest"].startswith("incomplete:") and "No such file or directory" in line
