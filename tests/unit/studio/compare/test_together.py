"""Any number of runs beside one another: what differs, and what a metric depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.run_folders import lay_run
from trainshed.runner.state.stored import load
from trainshed.studio.compare.together import UNKNOWN, together


def told(*folders: Path) -> dict[str, Any]:
    return together([(str(at), folder.name, load(str(folder))) for at, folder in enumerate(folders)])


def test_a_value_of_each_run_stands_in_its_place(tmp_path: Path) -> None:
    one = lay_run(tmp_path / "one", hps={"lr": "0.1", "same": "x"}, metrics={"loss": [3.0, 2.0]}, tags={"kind": "a"})
    two = lay_run(
        tmp_path / "two", hps={"lr": "0.2", "same": "x", "more": "y"}, metrics={"loss": [float("nan")], "acc": [1.0]}
    )
    three = lay_run(tmp_path / "three", state="Failed")
    found = told(one, two, three)

    assert [(run["name"], run["state"], run["measured"]) for run in found["runs"]] == [
        ("one", "Completed", True), ("two", "Completed", True), ("three", "Failed", False),
    ]  # fmt: skip
    assert found["columns"]["hp.lr"] == [0.1, 0.2, None] and found["columns"]["tag.kind"] == ["a", None, None]
    assert found["metrics"] == {"loss": [2, "NaN", None], "acc": [None, 1, None]}
    assert ["hyperparameters", "more", [None, "y", None]] in found["differs"]
    assert [name for section, name, _ in told(one, two)["differs"] if section == "hyperparameters"] == ["lr", "more"]
    json.dumps(found, allow_nan=False)


def test_what_a_run_does_not_say_is_not_called_different(tmp_path: Path) -> None:
    runs = [lay_run(tmp_path / name) for name in ("one", "two", "three")]
    for run, version in zip(runs, ("1.0", "2.0"), strict=False):
        record = {"phases": [], "environment": {"python": "3.11", "packages": {"numpy": version, "six": "1"}}}
        (run / "algo-1/output/data/run").mkdir(parents=True)
        (run / "algo-1/output/data/run/algo-1.json").write_text(json.dumps(record))
    found = told(*runs)

    packages = [(name, values) for section, name, values in found["differs"] if section == "packages"]
    assert packages == [("numpy", ["1.0", "2.0", UNKNOWN])]
    assert "packages of three, which has noted none" in found["unknown"]
    assert not [row for row in found["differs"] if row[0] in ("code", "data")]


def test_importance_is_told_of_any_runs_that_have_the_metric(tmp_path: Path) -> None:
    runs = [
        lay_run(tmp_path / f"run-{n}", hps={"lr": str(n % 4), "seed": str(n)}, metrics={"loss": [1.0 + n % 4]})
        for n in range(16)
    ]

    (first, share), (second, rest) = told(*runs)["importance"]["loss"]
    assert (first, second) == ("lr", "seed") and share > 0.9 > 0.3 > rest
    assert told(*runs[:5])["importance"] == {}
