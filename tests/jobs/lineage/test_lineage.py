"""`trainshed lineage`: chains of whole runs whose folders are then moved, removed and made to lie."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import Project

TRAIN = """\
import os, pathlib
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text(os.environ["SM_HP_VALUE"])
"""
JOB = "program: train.py\nsource_dir: src\nhyperparameters: {value: 1}\nchannels: {train: data}\n"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """first <- second <- third, each gone on from the model before, and `folder`, which has second's model as a folder."""
    project = Project(tmp_path_factory.mktemp("chain") / "project")
    project.folder.mkdir()
    project.write({"src/train.py": TRAIN, "job.yaml": JOB, "data/a.csv": "1\n"})
    state = {"XDG_STATE_HOME": os.fspath(project.folder.parent / "state")}
    for name, *options in (
        ("first",),
        ("second", "--hp", "value=2", "--from-run", "./first"),
        ("third", "--hp", "value=3", "--from-run", "./second"),
        ("folder", "--hp", "value=4", "--channel", "model=second/model"),
    ):
        done = project.trainshed("run", "job.yaml", "--output", name, *options, **state)
        assert done.status == 0, done.output
    return project


def told(project: Project, run: str, *options: str) -> dict[str, Any]:
    """What `trainshed lineage --json` says."""
    state = {"XDG_STATE_HOME": os.fspath(project.folder.parent / "state")}
    done = project.trainshed("lineage", run, "--json", *options, **state)
    assert done.status == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names(found: dict[str, Any]) -> list[tuple[str, str]]:
    """(parent, how it was found) of a run."""
    return [(os.path.basename(one["folder"]), one["found_by"]) for one in found["parents"]]


@pytest.mark.spine
def test_a_chain_is_told_up_and_down(chain: Project) -> None:
    third = told(chain, "./third")

    assert names(third) == [("second", "id")]
    second = third["parents"][0]["of"]
    assert names(second) == [("first", "id")] and names(second["parents"][0]["of"]) == []
    others = [json.loads((chain.folder / one / "status.json").read_text()) for one in ("first", "second", "folder")]
    assert third["data"]["train"]["also_in"] == [one["TrainingJobName"] for one in others]
    down = told(chain, "./first", "--down")
    (child,) = down["children"]
    assert os.path.basename(child["folder"]) == "second"
    assert {os.path.basename(one["folder"]) for one in child["of"]["children"]} == {"third", "folder"}


def test_a_model_folder_leads_to_its_run(chain: Project) -> None:
    found = told(chain, "./folder")

    assert names(found) == [("second", "hashes")] and found["parents"][0]["channel"] == "model"


def test_text_and_picture_say_the_same(chain: Project) -> None:
    state = {"XDG_STATE_HOME": os.fspath(chain.folder.parent / "state")}
    text = chain.trainshed("lineage", "./third", **state).stdout
    done = chain.trainshed("lineage", "./second", "--down", "--svg", "picture.svg", **state)

    assert "went on from the model of" in text and text.count("└── ") >= 3 and "data train" in text
    assert done.stdout == "picture.svg\n"
    drawn = ElementTree.parse(chain.folder / "picture.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{space}g")) == 4 and len(drawn.findall(f"{space}path")) == 3


def test_runs_that_were_moved_are_known_by_their_ids_and_their_models(chain: Project) -> None:
    elsewhere = chain.folder / "elsewhere"
    elsewhere.mkdir()
    runs = ("first", "second", "third", "folder")
    for name in runs:
        (chain.folder / name).rename(elsewhere / name)
    index = chain.folder.parent / "state/trainshed/runs"
    kept = {path: path.read_bytes() for path in index.iterdir()}
    try:
        alone, gone = told(chain, "./elsewhere/folder"), told(chain, "./elsewhere/third")
        found = [told(chain, f"./elsewhere/{name}", "--among", "elsewhere") for name in ("folder", "third")]
    finally:
        for name in runs:
            (elsewhere / name).rename(chain.folder / name)
        elsewhere.rmdir()
        for path, data in kept.items():
            path.write_bytes(data)

    assert names(alone) == [] and names(gone) == [("second", "gone")] and gone["parents"][0]["of"] is None
    assert [names(one) for one in found] == [[("second", "hashes")], [("second", "id")]]


@pytest.mark.safety
def test_a_circle_and_damaged_files_come_to_an_end(chain: Project, tmp_path: Path) -> None:
    for name in ("second", "third"):
        shutil.copytree(chain.folder / name, tmp_path / name, symlinks=True)
    for name, kind, other in (("second", "model", "third"), ("third", "rerun", "second")):
        path = tmp_path / name / "provenance.json"
        called = json.loads((tmp_path / other / "status.json").read_text())["TrainingJobName"]
        parent = {"kind": kind, "run": called, "folder": os.fspath(tmp_path / other)}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"parents": [parent, {"kind": "x", "run": 7}, 8]}))

    found = told(chain, os.fspath(tmp_path / "second"), "--down", "--among", os.fspath(tmp_path))
    above = found["parents"][0]["of"]["parents"][0]["of"]
    assert above["again"] is True and above["folder"] == os.fspath(tmp_path / "second")
    (below,) = [one for one in found["children"] if one["folder"].startswith(os.fspath(tmp_path))]
    assert '"again": true' in json.dumps(below)

    (tmp_path / "second/provenance.json").write_text("{")
    (tmp_path / "third/status.json").write_text("[]")
    assert told(chain, os.fspath(tmp_path / "second"), "--among", os.fspath(tmp_path))["code"] == {}


@pytest.mark.safety
def test_a_folder_that_is_not_there_and_one_that_cannot_be_written(chain: Project) -> None:
    absent = chain.trainshed("lineage", "./third", "--among", "absent")
    unwritable = chain.trainshed("lineage", "./third", "--svg", "/proc/no/picture.svg")

    assert absent.status != 0 and absent.stderr.startswith("trainshed: absent cannot be looked through for runs: ")
    assert unwritable.status != 0 and unwritable.stderr.startswith("trainshed: /proc/no/picture.svg cannot be written: ")
