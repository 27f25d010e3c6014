"""The table's rows: all runs once, and only what has changed since the last look."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.run_folders import lay_run
from trainshed.studio.catalogue.language import ExpressionError
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
    rows = {row["name"]: row for row in told(Catalog({"XDG_STATE_HOME": str(tmp_path / "state")}))}

    assert rows["lost"]["state"] == "Lost" and rows["odd"]["started"] is None and rows["odd"]["tags"] == {}
    assert rows["lost"]["phase"] == "its runner was killed while Training"
    json.dumps(rows, allow_nan=False)


def told(held: Catalog, columns: str = "") -> list[dict[str, Any]]:
    """The rows, with their cells by column."""
    found = held.changes(0, columns)
    names = [name for name, _ in found["columns"]]
    return [{**row, **dict(zip(names, row["values"], strict=True))} for row in found["rows"]]


@pytest.fixture
def held(tmp_path: Path) -> Catalog:
    lay_run(tmp_path / "runs/a", hps={"lr": "0.1"}, metrics={"loss": [2.0, 0.5], "acc": [0.9]}, tags={"stage": "final"})
    lay_run(tmp_path / "runs/b", hps={"lr": "0.01"}, metrics={"loss": [float("nan")]}, BillableTimeInSeconds=30)
    return Catalog({"XDG_STATE_HOME": str(tmp_path / "state")})


def test_columns_are_chosen_and_the_usual_ones_are_those_of_ls(held: Catalog) -> None:
    usual = held.changes(0)
    assert [name for name, _ in usual["columns"]][-2:] == ["metric.loss", "metric.acc"]
    a, b = sorted(told(held, "name,hp.lr,tag.stage,place,billable,loss,min(loss)"), key=lambda row: str(row["name"]))

    assert (a["hp.lr"], a["tag.stage"], a["place"], a["billable"], a["loss"], a["min(loss)"]) == (
        0.1, "final", "here", None, 0.5, 0.5,
    )  # fmt: skip
    assert (b["tag.stage"], b["billable"], b["loss"]) == (None, 30.0, "NaN")
    assert held.names()["hp"] == ["hp.lr"] and "billable" in held.names()["run"]
    again = held.changes(usual["version"], "name", usual["had"])
    assert len(again["rows"]) == 2 and again["had"] == "name", "other columns: all rows come"
    assert held.changes(usual["version"], "name", "name")["rows"] == []


def test_columns_that_no_run_has_are_told_and_the_usual_ones_come(held: Catalog) -> None:
    found = held.changes(0, "name,nope")

    assert "no run has a metric, hyperparameter, tag or fact 'nope'" in found["problem"] and len(found["columns"]) > 6


def test_the_filter_is_words_or_the_language_of_ls(held: Catalog) -> None:
    def names(text: str) -> list[str]:
        keys = held.fitting(text)
        return sorted(row["name"] for row in held.changes(0)["rows"] if row["key"] in keys)

    assert names("") == ["a", "b"] and names("FINAL completed") == ["a"] and names("final b") == []
    assert names("lr < 0.05") == ["b"] and names('tag.stage = "final" or loss is nan') == ["a", "b"]
    with pytest.raises(ExpressionError, match="filter: no run has a metric, hyperparameter, tag or fact 'lr2'"):
        held.fitting("lr2 < 1")
    with pytest.raises(ExpressionError, match=r"filter: .* at its end"):
        held.fitting("lr <")


def test_a_running_runs_last_values_are_live(tmp_path: Path) -> None:
    from trainshed.runner.state import identity

    ours = {"RunId": "a" * 32, "Runner": identity.mine()}
    run = lay_run(tmp_path / "runs/a", state="InProgress", metrics={"loss": [1.0]}, Trainshed=ours)
    held = Catalog({"XDG_STATE_HOME": str(tmp_path / "state")})
    first = told(held)[0]["metric.loss"]
    with (run / "algo-1/output/metrics/trainshed/log.json").open("a") as file:
        file.write('{"MetricName": "loss", "Value": 0.25, "Timestamp": 1790000009.0, "Step": 1}\n')

    assert (first, told(held)[0]["metric.loss"]) == (1.0, 0.25)


def test_a_ticket_is_taken_once_and_not_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.studio.ui import tickets

    held = Tickets()
    word = held.give("key", "a/b")
    assert held.take(word) == ("key", "a/b") and held.take(word) is None and held.take("x") is None
    monkeypatch.setattr(tickets, "SECONDS", -1.0)
    assert held.take(held.give("key", "")) is None
