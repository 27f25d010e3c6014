"""Links that a script puts in the place of files that the runner reads or writes later: none is followed, each is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.run_folders import lay_run
from trainshed.base.files import write_atomic
from trainshed.base.locks import hold
from trainshed.contract.outcome import read_own_failure, write_failure
from trainshed.contract.paths import Paths
from trainshed.machine.streams import LogFile
from trainshed.runner.display.screen import Screen
from trainshed.runner.files import layout
from trainshed.runner.job.job import Job
from trainshed.runner.state.status import StatusFile
from trainshed.runner.state.stored import NoRunError, find, load
from trainshed.studio.catalogue.labels import Change, LabelError, change, read

pytestmark = pytest.mark.safety
TEXT = "of somebody else"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A file elsewhere that whoever runs the job can read and write."""
    file = tmp_path / "foreign"
    file.write_text(TEXT)
    return file


@pytest.mark.parametrize("name", ["status.json", "job.json"])
def test_a_run_whose_files_are_links_is_refused_with_the_files_name(tmp_path: Path, name: str) -> None:
    folder = lay_run(tmp_path / "runs/mine")
    os.rename(folder / name, tmp_path / "away.json")
    (folder / name).symlink_to(tmp_path / "away.json")
    with pytest.raises(NoRunError, match=f"{name} is a link"):
        find(str(folder), {})
    stored = load(str(folder))
    assert (stored.status if name == "status.json" else stored.about) == {}


def test_labels_behind_a_link_are_neither_read_nor_replaced(tmp_path: Path, foreign: Path) -> None:
    foreign.write_text('{"tags": {"foreign": ""}}')
    (tmp_path / "run").mkdir()
    (tmp_path / "run/labels.json").symlink_to(foreign)
    labels = read(str(tmp_path / "run"), {})
    assert labels.tags == {} and "labels.json cannot be read: it is a link" in labels.problem
    with pytest.raises(LabelError, match="cannot be read: it is a link"):
        change(str(tmp_path / "run"), Change({"good": ""}), {})


def test_a_failure_file_that_is_a_link_is_named_and_replaced(tmp_path: Path, foreign: Path) -> None:
    paths = Paths.of(str(tmp_path))
    (tmp_path / "output").mkdir()
    (tmp_path / "output/failure").symlink_to(foreign)
    assert "output/failure of the script is not read: it is a link" in read_own_failure(paths)
    write_failure(paths, "the reason")
    written = tmp_path / "output/failure"
    assert not written.is_symlink() and "the reason" in written.read_text() and TEXT not in written.read_text()
    assert foreign.read_text() == TEXT


def test_nothing_is_written_through_a_link_beside_a_file_that_is_replaced(tmp_path: Path, foreign: Path) -> None:
    (tmp_path / f".status.json.{os.getpid()}.tmp").symlink_to(foreign)
    write_atomic(str(tmp_path / "status.json"), "own")
    assert (tmp_path / "status.json").read_text() == "own" and foreign.read_text() == TEXT


def test_logs_messages_and_locks_are_not_written_through_links(tmp_path: Path, foreign: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(foreign)
    log = LogFile(str(link))
    log.write(b"more")
    assert log.problem.endswith("link: it is a link, which is not followed")
    screen = Screen()
    screen.keep(str(link))
    screen.say("more")
    with pytest.raises(OSError, match="it is a link"):
        hold(str(link))
    assert foreign.read_text() == TEXT


def test_a_status_file_that_has_become_a_link_is_a_file_again_and_that_is_said(tmp_path: Path, foreign: Path) -> None:
    job = Job(name="mine", full_name="mine", program="train.py", output=str(tmp_path / "run"))
    run = layout.claim(layout.plan(job, in_containers=False, now=0))
    status = StatusFile(run)
    os.unlink(status.path)
    os.symlink(foreign, status.path)
    status.to("Training")
    status.to("Uploading")
    assert not os.path.islink(status.path) and foreign.read_text() == TEXT
    assert "status.json had become a link, which was not followed" in status.problem
