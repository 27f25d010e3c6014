"""Where copies of checkpoints could not go is told before the ranks start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainshed.base import s3
from trainshed.base.errors import TrainshedError
from trainshed.container.copies_check import check_copies


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    check_copies(f"file://{tmp_path}/copies", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainshedError, match="file/copies cannot be written"):
        check_copies(f"file://{tmp_path}/file/copies", {})


def test_what_s3_says_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def create_multipart_upload(self, **_: Any) -> None:
            raise RuntimeError("AccessDenied for https://user:hunter2@host")

    monkeypatch.setattr(s3, "make_client", lambda environ: Refusing())
    with pytest.raises(TrainshedError, match="no copy can be put to s3://b/run/: AccessDenied") as raised:
        check_copies("s3://b/run/", {})
    assert "hunter2" not in raised.value.message


@pytest.mark.parametrize("url", ["", "gs://bucket/run", "s3://bucket/run"])
def test_what_cannot_be_asked_here_is_left_to_the_ranks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(environ: Any) -> None:
        raise ImportError

    monkeypatch.setattr(s3, "make_client", missing)
    check_copies(url, {})


@pytest.mark.safety
def test_a_job_whose_copies_would_be_refused_trains_nothing(job_tree: Any) -> None:
    job_tree.code("train.py", "print('trained')\n")
    job_tree.configure(
        hyperparameters={"sagemaker_program": "train.py", "trainshed_checkpoint_copy_to": "file:///proc/none/copies"}
    )
    done = job_tree.train()
    assert done.status == 1 and "trained" not in done.stdout
    assert "checkpoint_copy_to: file:///proc/none/copies cannot be written" in (job_tree.failure or "")
