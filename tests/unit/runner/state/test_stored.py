"""Run folders of somebody who means ill, as the commands see them: nothing in their files is more than text."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainshed.base.errors import TrainshedError
from trainshed.base.files import read_object
from trainshed.runner.acting import leftovers
from trainshed.runner.control.operations import clone, public_status, remove, state_of, stop, to_resume
from trainshed.runner.display.runs import describe, table
from trainshed.runner.files import layout
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.state import identity, index
from trainshed.runner.state import stored as module
from trainshed.runner.state.job_json import described
from trainshed.runner.state.status import StatusFile, iso
from trainshed.runner.state.stored import Stored, every, load

EVIL = "good\nprogram: /evil.py\r\x1b]0;owned\x07\u202e"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that has been placed and has not ended; its runner is gone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # no other test's runs
    made = layout.claim(layout.plan(Job(name="digits", program="train.py"), in_containers=False, now=1_795_261_200))
    StatusFile(made)
    Path(made.folder, "job.json").write_text(json.dumps(described(made)))
    change(made.folder, "status.json", lambda told: told["Trainshed"]["Runner"].update(Started=1))
    return made


def change(folder: str, name: str, edit: Any) -> Stored:
    """The run with one of its files changed."""
    path = Path(folder, name)
    told = json.loads(path.read_text())
    edit(told)
    path.write_text(json.dumps(told))
    return load(folder)


def test_a_clone_has_the_fields_of_the_job_and_no_others(run: Run) -> None:
    change(run.folder, "status.json", lambda told: told.update(TrainingJobName=EVIL))

    def edit(about: dict[str, Any]) -> None:
        about.update(started=EVIL, run=EVIL)
        about["job"]["hyperparameters"] = {EVIL: "******", "plain": EVIL}
        about["job"]["environment"] = {EVIL: EVIL}

    text = clone(change(run.folder, "job.json", edit))
    assert set(yaml.safe_load(text)) == {"name", "program", "hyperparameters", "environment"}
    assert yaml.safe_load(text)["program"] == "train.py"
    assert all(letter.isprintable() or letter == "\n" for letter in text), text


def test_tables_have_one_line_a_run_whatever_it_is_named(run: Run) -> None:
    def edit(told: dict[str, Any]) -> None:
        told["TrainingJobName"] = EVIL
        told["SecondaryStatus"] = EVIL
        told["Trainshed"]["Tags"] = {EVIL: EVIL}
        told["AlgorithmSpecification"]["TrainingImage"] = EVIL

    stored = change(run.folder, "status.json", edit)
    listed = table([(stored, state_of(stored, os.environ))], everything=True)
    assert len(listed.splitlines()) == 2
    page = describe(stored, state_of(stored, os.environ))
    assert all(letter.isprintable() or letter == "\n" for letter in listed + page)
    assert "\nprogram:" not in page


@pytest.mark.parametrize(("files", "told"), [(0, "the script wrote nothing to SM_MODEL_DIR"), (2, "model.tar.gz")])
def test_a_model_without_files_is_called_so_as_in_the_closing_card(files: int, told: str, run: Run) -> None:
    Path(run.folder, "output").mkdir(exist_ok=True)
    Path(run.folder, "output/model.tar.gz").touch()
    archives = [{"Path": f"{run.folder}/output/model.tar.gz", "Files": files}, "odd"]
    stored = change(run.folder, "status.json", lambda about: about["Trainshed"].update(Archives=archives))

    [row] = [line for line in describe(stored, state_of(stored, os.environ)).splitlines() if line.split()[0] == "model"]
    assert row.endswith(told)


def test_a_copy_is_no_run(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "copy")
    change(run.folder, "status.json", lambda told: told["Trainshed"].update(Runner=identity.mine()))
    copy = change(str(tmp_path / "copy"), "status.json", lambda told: told["Trainshed"].update(Runner=identity.mine()))
    assert load(run.folder).runner == os.getpid()
    assert (copy.runner, copy.finishing, copy.id, copy.copied) == (0, False, "", run.folder)
    for act in (stop, remove):
        with pytest.raises(TrainshedError, match="is a copy of a run"):
            act(copy, os.environ, lambda _: None)
    again = to_resume(copy, os.environ, lambda _: None)
    assert (again.name, again.folder) == ("copy", str(tmp_path / "copy"))
    assert again.id != run.id


@pytest.mark.safety
def test_a_completed_run_is_taken_up_again_only_where_that_is_asked_for(run: Run) -> None:
    """It would train on, and pack another model over the one that is there."""
    completed = {"TrainingJobStatus": "Completed", "SecondaryStatus": "Completed"}
    stored = change(run.folder, "status.json", lambda told: told.update(completed))
    with pytest.raises(TrainshedError, match="has completed: there is nothing to resume") as refused:
        to_resume(stored, os.environ, lambda _: None)
    assert f"trainshed resume {run.name} --again" in refused.value.hint
    assert to_resume(stored, os.environ, lambda _: None, again=True).folder == run.folder
    details: Any = pytest.importorskip("trainshed.studio.ui.details").details
    assert not details(stored)["can"]["resume"]
    stopped = change(run.folder, "status.json", lambda told: told.update(TrainingJobStatus="Stopped"))
    assert details(stopped)["can"]["resume"] and to_resume(stopped, os.environ, lambda _: None).id == run.id


def test_the_time_between_an_end_and_a_new_start_is_not_part_of_the_duration(run: Run) -> None:
    def edit(told: dict[str, Any]) -> None:
        phases = [
            ("Starting", 0, 1),
            ("Training", 1, 5),
            ("Stopped", 5, 5),
            ("Restarting", 1700, 1702),
            ("Training", 1702, 1710),
        ]
        told["SecondaryStatusTransitions"] = [
            {"Status": name, "StartTime": iso(run.started + start), "EndTime": iso(run.started + end)}
            for name, start, end in phases
        ]
        told.update(TrainingJobStatus="Completed", TrainingEndTime=iso(run.started + 1710))

    stored = change(run.folder, "status.json", edit)
    labels: Any = pytest.importorskip("trainshed.studio.catalogue.labels")
    indexed: Any = pytest.importorskip("trainshed.studio.catalogue.indexed")
    assert indexed.facts_of(stored, labels.Labels())["duration"] == 15.0


def test_a_moved_folder_and_one_whose_inode_has_changed_are_the_run(run: Run, tmp_path: Path) -> None:
    shutil.move(run.folder, tmp_path / "moved")
    assert load(str(tmp_path / "moved")).id == run.id
    shutil.move(tmp_path / "moved", run.folder)
    stored = change(run.folder, "status.json", lambda told: told["Trainshed"].update(FolderId="1:2"))
    assert stored.id == run.id, "some network file systems change their inodes"
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    change(run.folder, "job.json", lambda told: told.update(folder_id="1:2", FolderId="1:2"))
    with pytest.raises(TrainshedError, match="was not made by trainshed here"):
        remove(load(run.folder), environ, lambda _: None)
    index.note(run, environ)
    remove(load(run.folder), environ, lambda _: None)
    assert not os.path.exists(run.folder)


def test_a_link_to_a_run_is_no_second_run(run: Run) -> None:
    os.symlink(run.folder, f"{os.path.dirname(run.folder)}/best")
    environ = {"XDG_STATE_HOME": "/nonexistent"}
    assert [stored.id for stored in every(environ)] == [run.id]


JUNK: list[Any] = [
    None, True, -1, 2**70, 10**400, 1e400, float("nan"), "",
    "\ud800", EVIL, "9" * 5000, [], {}, [[]], {"": {}}, [None], "/", "..",
]  # fmt: skip


@pytest.mark.parametrize("file", ["status.json", "job.json"])
def test_junk_in_any_field_is_an_error_of_ours_or_nothing(run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "processes_of", lambda _: [])  # looks at every process of the machine
    path = Path(run.folder, file)
    whole = json.loads(path.read_text())
    places = _places(whole)
    assert len(places) > 30
    kinds = itertools.cycle(JUNK)
    for place in places:
        for junk in itertools.islice(kinds, 4):  # `tests/fuzz.py` tries many more
            told = json.loads(json.dumps(whole))
            target = told
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = junk
            path.write_text(json.dumps(told))
            stored = load(run.folder)
            try:
                standing = state_of(stored, os.environ)
                text = describe(stored, standing) + table([(stored, standing)], everything=True)
                assert all(letter.isprintable() or letter == "\n" for letter in text)
                json.dumps(public_status(stored, os.environ))
                assert all(letter.isprintable() or letter == "\n" for letter in clone(stored))
                to_resume(stored, os.environ, lambda _: None, _no_settling)
            except TrainshedError as error:
                assert error.message and error.message.isprintable()
            except _Enough:
                pass
            except Exception as error:
                raise AssertionError(f"{file}: {place} = {junk!r}"[:300]) from error


class _Enough(Exception):
    """The job could be read; nothing is to be settled."""


def _no_settling(job: Job) -> Job:
    raise _Enough


def _places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, item in items:
        found += [(*above, key), *_places(item, (*above, key))]
    return found


def test_a_list_of_runs_reads_no_file_that_it_does_not_show(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of runs are listed: each file that is read for nothing is felt."""
    change(run.folder, "status.json", lambda told: told.update(TrainingJobStatus="Completed", SecondaryStatus="Completed"))
    read: list[str] = []

    def noted(path: str, *rest: Any, **more: Any) -> dict[str, Any]:
        read.append(path)
        return read_object(path, *rest, **more)

    monkeypatch.setattr(module, "read_object", noted)
    (found,) = every(os.environ)
    assert state_of(found, os.environ)[0] == "Completed" and os.path.basename(*read) == "status.json"
    assert found.about["run"] == found.name and [os.path.basename(path) for path in read] == ["status.json", "job.json"]
    assert found == load(run.folder)


def test_a_folder_whose_status_is_damaged_is_not_said_to_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("cut").mkdir()
    Path("cut/status.json").write_text('{"TrainingJobName": "tr')
    with pytest.raises(TrainshedError, match=r"it has no status\.json"):
        module.find("./empty", os.environ)
    with pytest.raises(TrainshedError, match=r"status\.json cannot be read, or is damaged"):
        module.find("./cut", os.environ)
