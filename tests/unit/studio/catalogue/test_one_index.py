"""Whoever lists runs lists the same ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.run_folders import lay_run
from trainshed import runner
from trainshed.runner.state import index
from trainshed.runner.state.stored import find, load
from trainshed.studio.ui.catalog import Catalog

from .conftest import Told


def test_all_lists_have_the_same_runs_each_once(place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/here")
    run = load(str(lay_run(place / "elsewhere/noted")))
    index.move(run.id, run.name, run.folder, os.environ)
    gone = load(str(lay_run(place / "elsewhere/gone")))
    index.move(gone.id, gone.name, gone.folder, os.environ)
    (place / "elsewhere/gone").rename(place / "elsewhere/away")
    (place / "runs/link").symlink_to(place / "elsewhere/noted")
    (place / "runs/nothing").mkdir()
    listed = trainshed("ls", "--json").names
    lists = {
        "ls": listed,
        "ps": [row["name"] for row in json.loads(trainshed("ps", "--all", "--json").out)["runs"]],
        "Python": [run.name for run in runner.runs()],
        "page": [row["name"] for row in Catalog(os.environ).changes(0)["rows"]],
        "names": [name for name in ("here", "noted") if find(name[:3], os.environ).name == name],
        "ids": ["here", find(run.id[:8], os.environ).name],
    }

    assert [view for view, names in lists.items() if sorted(names) != ["here", "noted"]] == []
    assert "there is no run" in trainshed("stop", "gone").err


def test_a_name_is_found_though_the_run_was_renamed_or_moved_since_it_was_noted(place: Path, trainshed: Told) -> None:
    folder = lay_run(place / "elsewhere/a")
    run = load(str(folder))
    index.move(run.id, "before", run.folder, os.environ)

    assert find("a", os.environ).folder == str(folder)
    assert "there is no run 'before'" in trainshed("stop", "before").err
