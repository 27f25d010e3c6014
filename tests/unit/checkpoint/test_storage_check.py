"""Folders that take no checkpoints, disks with less room than they seem to have, and folders of two jobs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.obstacles import read_only_disk
from support.paths import TOOLKIT
from trainshed.checkpoint import save
from trainshed.checkpoint import storage_check as ground
from trainshed.checkpoint.save import SaveError, check_space

pytestmark = pytest.mark.safety

MIB = 1 << 20


def test_a_probe_leaves_nothing_and_makes_the_folder(tmp_path: Path) -> None:
    ground.probe(str(tmp_path / "a/b"), "step", "abc", 0)
    assert os.listdir(tmp_path / "a/b") == []


def test_a_read_only_folder_is_found_before_the_first_step(tmp_path: Path) -> None:
    with read_only_disk(tmp_path / "ro") as folder, pytest.raises(OSError, match="Read-only") as caught:
        ground.probe(str(folder), "step", "abc", 0)
    said = ground.unwritable(str(folder), caught.value)
    assert said.startswith(f"checkpoints cannot be written to {folder}: Read-only file system; mount it writable")


def test_a_file_in_the_place_of_the_folder_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="exists"):
        ground.probe(str(tmp_path / "file"), "step", "abc", 0)


def test_a_full_disk_does_not_refuse_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old checkpoints are deleted later, and there may be something to resume from."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ground.os, "mkdir", full)
    ground.probe(str(tmp_path), "step", "abc", 0)


FREE = {"f_bavail": 20 * 256}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, ""),
        (
            {"f_bavail": 20 * 256},
            "2.1 MB are needed, and 67.1 MB must stay free for the model, logs and the report, but 21.0 MB",
        ),
        (
            {"f_bavail": 20 * 256, "f_bfree": 120 * 256},
            "21.0 MB are free, besides 105 MB that the file system keeps for root",
        ),
        ({"f_favail": 1}, "it takes no more files (inodes), although 1.0 GB are free"),
        ({"f_files": 0, "f_favail": 0}, ""),
    ],
)
def test_what_looks_free_and_is_not_to_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], says: str
) -> None:
    status = {"f_frsize": 4096, "f_bavail": 244_140, "f_files": 1000, "f_favail": 1000, **given}
    status.setdefault("f_bfree", status["f_bavail"])
    monkeypatch.setattr(ground.os, "statvfs", lambda _: SimpleNamespace(**status))
    try:
        check_space(str(tmp_path), 2 * MIB)
        said = ""
    except SaveError as error:
        said = str(error)
    assert says in said if says else not said, said


def test_which_limit_was_met_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert save.explain(OSError(errno.EDQUOT, "x", f"{tmp_path}/a")).endswith("the quota is used up")
    assert save.explain(OSError(errno.ENOSPC, "x", f"{tmp_path}/a")) == f"{tmp_path}/a: the disk is full"
    monkeypatch.setattr(ground.os, "statvfs", lambda _: SimpleNamespace(f_files=9, f_favail=0))
    assert save.explain(OSError(errno.ENOSPC, "x", f"{tmp_path}/a")).endswith("it takes no more files (inodes)")


HOLD = """\
import sys
from trainshed.checkpoint.storage_check import FolderLock
held = FolderLock(sys.argv[1])
print(held.other or "held", flush=True)
sys.stdin.read()
"""


def test_the_second_job_of_a_folder_is_told_of_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TOOLKIT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        claim = ground.claim(str(tmp_path), said.append)
        assert claim.other in (f"process {first.pid}", "another container or machine")
        assert len(said) == 1 and f"writes checkpoints to {tmp_path}, too" in said[0]
        first.communicate()
    claim = ground.claim(str(tmp_path), said.append)
    assert (claim.other, len(said)) == ("", 1), "once the first is over, the folder is free"
    again = ground.claim(str(tmp_path), said.append)
    assert (again.other, len(said)) == ("", 1), "a second loop of this process is no other job"
    claim.release()
    assert os.listdir(tmp_path) == []


def test_no_folder_and_one_that_is_gone_are_no_trouble(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path / "gone")):
        ground.claim(folder, pytest.fail).release()
