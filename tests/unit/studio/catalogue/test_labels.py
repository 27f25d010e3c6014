"""Tags and notes: kept in the run's folder, and no writer loses what another one wrote."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.obstacles import small_disk, without_rights
from support.paths import TOOLKIT
from support.run_folders import lay_run
from trainshed.studio.catalogue import labels

from .conftest import Told


@pytest.fixture
def run(place: Path) -> Path:
    """A run whose job gave it two tags."""
    return lay_run(place / "runs/a", tags={"stage": "draft", "team": "x"})


def kept(run: Path) -> dict[str, object]:
    """The file."""
    found: dict[str, object] = json.loads((run / "labels.json").read_text())
    return found


def test_tags_are_given_and_taken_also_those_of_the_job(run: Path, trainshed: Told) -> None:
    assert trainshed("tag", "a").out == "a: stage=draft, team=x\n"
    assert trainshed("tag", "a", "+best", "+stage=final", "-team").out == "a: best, stage=final\n"
    assert trainshed("tag", "a", "-stage", "+team=y").out == "a: best, team=y\n"
    assert trainshed("tag", "a", "+stage=again").out == "a: best, stage=again, team=y\n"
    assert trainshed("tag", "a").out == "a: best, stage=again, team=y\n"
    assert kept(run)["removed"] == []


def test_several_runs_at_once_and_a_group_of_them(place: Path, trainshed: Told) -> None:
    for name in "abc":
        lay_run(place / f"runs/{name}", tags={"tuning": "digits"} if name == "c" else None)
    assert trainshed("tag", "a", "b", "runs/a", "+group=sweep").out == "a: group=sweep\nb: group=sweep\n"

    assert sorted(trainshed("ls", "--group", "sweep", "--json").names) == ["a", "b"]
    assert trainshed("ls", "--group", "digits", "--json").names == ["c"], "the trials of a tuning job are a group"
    lay_run(place / "runs/d", tags={"pipeline": "nightly", "step": "train"})
    assert trainshed("ls", "--group", "nightly", "--json").names == ["d"], "and so are the steps of a pipeline"


def test_notes_are_added_and_cleared(run: Path, trainshed: Told) -> None:
    trainshed("note", "a", "first")
    told = trainshed("note", "a", "se\x1b[1mcond ünd")
    assert [line[18:] for line in told.out.splitlines()] == ["first", "se\\x1b[1mcond ünd"]
    assert trainshed("ls", "--json", "--where", 'note ~ "first" and note ~ "ünd"').names == ["a"]
    assert trainshed("note", "a", "-5 % of loss").out.endswith("  -5 % of loss\n"), "a dash makes no option of it"
    assert trainshed("note", "a", "--clear").out == "" and trainshed("note", "a").out == ""


@pytest.mark.parametrize("words", [
    ("+",), ("-",), ("+a b c ",), ("+../x",), ("+" + "x" * 129,), ("+a=" + "x" * 257,), ("+a=\n",),
    ("-stage=x",), ("+a", "-a"), ("+a", "+a=1"),
], ids=lambda words: repr(words)[:30])  # fmt: skip
def test_tags_that_are_not_valid_change_nothing(words: tuple[str, ...], run: Path, trainshed: Told) -> None:
    told = trainshed("tag", "a", "+good", *words)

    assert told.status == 2 and told.err and "itself failed" not in told.err and not (run / "labels.json").exists()


def test_a_tag_that_is_not_there_is_not_taken_and_nothing_else_is_done(run: Path, trainshed: Told) -> None:
    told = trainshed("tag", "a", "+good", "-stge")

    assert told.status == 2 and "a has no tag 'stge'" in told.err and "did you mean 'stage'?" in told.err
    assert not (run / "labels.json").exists()


def test_no_run_no_tag_no_note(run: Path, trainshed: Told) -> None:
    assert "there is no run 'b'" in trainshed("tag", "b", "+x").err
    assert "name a run" in trainshed("tag", "+x").err
    assert trainshed("note", "a", " ").status == 2
    told = trainshed("note", "a", "x" * 10_001)
    assert told.status == 2 and "10,000 characters" in told.err


def test_writers_at_once_lose_nothing(run: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(TOOLKIT)}
    code = (
        "import sys\nfrom trainshed.studio.catalogue import labels\n"
        "for number in range(20):\n"
        "    name = f'{sys.argv[2]}-{number}'\n    labels.change(sys.argv[1], labels.Change({name: ''}, note=name), {})\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(run), str(who)], env=environ) for who in range(4)]

    assert [one.wait() for one in started] == [0] * 4
    held = labels.read(str(run), {})
    assert len(held.tags) == len(held.notes) == 80
    assert sorted(path.name for path in run.glob(".*")) == [".labels.lock"]


def test_a_writer_that_holds_on_is_waited_for_and_then_said(
    run: Path, trainshed: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "PATIENCE", 0.05)
    fd = os.open(run / ".labels.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    told = trainshed("tag", "a", "+x")
    os.close(fd)

    assert told.status == 2 and "another command has held" in told.err
    assert trainshed("tag", "a", "+x").status == 0


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"tags": []}', '{"tags": {"a": 1}}', '{"notes": [{"at": 3}]}', '{"removed": "a"}', "[" * 9999],
    ids=repr,
)
def test_a_damaged_file_is_not_written_over(text: str, run: Path, trainshed: Told) -> None:
    (run / "labels.json").write_text(text)

    told, listed = trainshed("tag", "a", "+x"), trainshed("ls", "--json")

    assert told.status == 2 and "labels.json is damaged" in told.err and (run / "labels.json").read_text() == text
    assert listed.rows[0]["tags"] == {"stage": "draft", "team": "x"}
    assert "is damaged" in trainshed("tag", "a").err


def test_a_file_of_a_later_version_is_left_alone(run: Path, trainshed: Told) -> None:
    (run / "labels.json").write_text('{"format": 2, "tags": {"a": "b"}}')

    told = trainshed("note", "a", "x")

    assert told.status == 2 and "was written by a later trainshed" in told.err


def test_a_folder_that_cannot_be_written_and_a_full_disk(place: Path, trainshed: Told) -> None:
    run = lay_run(place / "runs/a")
    run.chmod(0o500)
    with without_rights():
        closed = trainshed("tag", "a", "+x")
    run.chmod(0o700)
    assert closed.status == 2 and "cannot be labelled: Permission denied" in closed.err

    with small_disk(place / "disk", 1) as disk:
        full = lay_run(disk / "b")
        trainshed("tag", str(full), "+before")
        with pytest.raises(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        told = trainshed("note", str(full), "x" * 9000)
        held = labels.read(str(full), {})
        left = [path.name for path in full.glob(".labels.json*")]

    assert told.status == 2 and "No space left" in told.err and "nothing has changed" in told.err
    assert held.tags == {"before": ""} and left == []


def test_rm_removes_them_with_the_run(run: Path, trainshed: Told) -> None:
    trainshed("tag", "a", "+x")

    assert trainshed("rm", "a").status == 0 and not run.exists()
