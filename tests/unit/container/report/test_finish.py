"""What is said of a model folder that a packer would stumble over, and left for Kubernetes, when a job ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.obstacles import small_disk, without_rights
from trainshed.container.report.finish import TERMINATION_LOG_BYTES, leave, remarks


def test_a_model_of_files_and_good_links_is_nothing_to_talk_about(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/weights").write_text("w")
    os.symlink("deep/weights", tmp_path / "latest")
    os.symlink(".", tmp_path / "circle")
    assert remarks(str(tmp_path)) == []


def test_pipes_broken_links_and_closed_files_are_named(tmp_path: Path) -> None:
    for number in range(5):
        os.mkfifo(tmp_path / f"pipe-{number}")
    os.symlink("nothing", tmp_path / "link")
    (tmp_path / "closed").write_text("c")
    (tmp_path / "closed").chmod(0)
    (tmp_path / "locked").mkdir(mode=0)
    with without_rights():
        special, broken, closed = remarks(str(tmp_path))
    assert special.endswith("may fail or hang: pipe-0, pipe-1, pipe-2 and 2 more")
    assert broken.endswith("holds links that lead nowhere: link")
    assert closed.endswith("holds what cannot be read: closed, locked")


def test_a_folder_that_is_gone_or_was_replaced_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("f")
    assert remarks(f"{tmp_path}/gone") == [f"{tmp_path}/gone is gone: the platform finds no model"]
    assert "is not a folder any more" in remarks(f"{tmp_path}/file")[0]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2) as disk:
        (disk / "weights").write_bytes(bytes((1 << 20) + (1 << 19)))
        (line,) = remarks(str(disk))
    assert "is full: check that the model is whole" in line


def test_train_says_it_and_the_job_has_succeeded_all_the_same(job_tree: Any) -> None:
    job_tree.code("train.py", "import os\nos.mkfifo(os.environ['SM_MODEL_DIR'] + '/pipe')\n")
    done = job_tree.train(SAGEMAKER_PROGRAM="train.py")
    assert done.status == 0, done.output
    assert "warning: " in done.stderr and "may fail or hang: pipe" in done.stderr


# --- What `train` leaves for the kubelet ---


def test_in_a_pod_the_kubelets_file_gets_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "termination-log"
    log.write_text("")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    leave("UserError: x", str(log))
    assert log.read_text() == ""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    inode = log.stat().st_ino
    leave("UserError: " + "é" * TERMINATION_LOG_BYTES, str(log))
    assert log.read_bytes().startswith("UserError: é".encode()) and log.stat().st_size <= TERMINATION_LOG_BYTES
    assert log.stat().st_ino == inode  # a mount, which cannot be replaced
    leave("x", str(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()
