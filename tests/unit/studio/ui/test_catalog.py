"""The table's rows: all runs once, and only what has changed since the last look."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainshed.studio.ui import catalog
from trainshed.studio.ui.catalog import Catalog
from trainshed.studio.ui.tickets import Tickets


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalog, "PAUSE", 0.0)
    monkeypatch.chdir(tmp_path)


def lay(folder: Path, state: str = "Completed", **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    status = {
        "TrainingJobName": folder.name,
        "TrainingJobStatus": state,
        "CreationTime": "2026-01-01T00:00:00+00:00",
        **more,
    }
    (folder / "status.json.new").write_text(json.dumps(status))
    os.replace(folder / "status.json.new", folder / "status.json")
    return folder


def names(told: dict[str, Any]) -> list[str]:
    return sorted(row["name"] for row in told["rows"])


def test_what_has_changed_is_told_once(tmp_path: Path) -> None:
    one, two = lay(tmp_path / "runs/one"), lay(tmp_path / "runs/two")
    held = Catalog({"XDG_STATE_HOME": str(tmp_path / "state")})
    first = held.changes(0)
    assert names(first) == ["one", "two"] and names(held.changes(first["version"])) == []

    lay(one, "Failed")
    second = held.changes(first["version"])
    assert [(row["name"], row["state"]) for row in second["rows"]] == [("one", "Failed")]

    (two / "status.json").unlink()
    third = held.changes(second["version"])
    assert names(third) == [] and len(third["gone"]) == 1 and names(held.changes(0)) == ["one"]
    lay(two)
    assert names(held.changes(third["version"])) == ["two"]


def test_runs_of_a_shared_folder_are_found_below_it_and_links_are_not_followed(tmp_path: Path) -> None:
    lay(tmp_path / "shared/anna/runs/a")
    lay(tmp_path / "shared/b")
    lay(tmp_path / "elsewhere/c")
    (tmp_path / "shared/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "shared/anna/loop").symlink_to(tmp_path / "shared")
    held = Catalog({"XDG_STATE_HOME": str(tmp_path / "state")}, (str(tmp_path / "shared"), str(tmp_path / "no such")))

    assert names(held.changes(0)) == ["a", "b"]


def test_a_run_without_a_runner_is_lost_and_one_of_any_form_is_a_row(tmp_path: Path) -> None:
    lay(tmp_path / "runs/lost", "InProgress", SecondaryStatus="Training")
    lay(
        tmp_path / "runs/odd",
        CreationTime=[],
        FinalMetricDataList=[{"Value": [1]}, 3],
        Trainshed={"Tags": [1]},
        ResourceConfig={},
    )
    rows = {row["name"]: row for row in Catalog({"XDG_STATE_HOME": str(tmp_path / "state")}).changes(0)["rows"]}

    assert rows["lost"]["state"] == "Lost" and rows["odd"]["started"] == 0.0 and rows["odd"]["tags"] == {}
    json.dumps(rows, allow_nan=False)


def test_a_ticket_is_taken_once_and_not_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.studio.ui import tickets

    held = Tickets()
    word = held.give("key", "a/b")
    assert held.take(word) == ("key", "a/b") and held.take(word) is None and held.take("x") is None
    monkeypatch.setattr(tickets, "SECONDS", -1.0)
    assert held.take(held.give("key", "")) is None
