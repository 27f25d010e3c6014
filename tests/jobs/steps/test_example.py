"""The example of a pipeline does what its page says."""

from __future__ import annotations

import json
import shutil

from support.paths import ROOT
from support.runner_project import Project


def test_digits_become_a_champion_and_only_what_has_changed_runs_again(project: Project) -> None:
    shutil.copytree(ROOT / "examples/steps", project.folder, dirs_exist_ok=True)
    store = {"TRAINSHED_MODEL_STORE": f"{project.folder}/store"}
    done = project.trainshed("steps", "run", "pipeline.yaml", **store)

    assert done.status == 0 and "keep: digits:1, champion" in done.stderr, done.output
    told = json.loads(project.trainshed("models", "show", "digits@champion", "--json", **store).stdout)
    assert told["facts"]["metrics"]["accuracy"] >= 0.9 and told["facts"]["metrics"]["loss"] < 1
    assert [file["name"] for file in told["files"]] == ["weights.json"]

    again = project.trainshed("steps", "run", "pipeline.yaml", "--param", "least=1.1", **store)
    assert again.status == 0 and "good is false" in again.stderr
    assert sorted(path.name for path in (project.folder / "pipelines/digits/runs").glob("*-[0-9]")) == [
        "evaluate-1", "prepare-1", "train-1",
    ]  # fmt: skip
