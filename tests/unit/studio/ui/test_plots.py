"""Charts for the page: what is new, over the axis that was asked for, never more than a screen shows."""

from __future__ import annotations

import json
import math
from pathlib import Path

from trainshed.metrics.points import Point, line_of
from trainshed.studio.ui.plots import Plots


def lay(folder: Path, *points: Point) -> Path:
    path = folder / "algo-1/output/metrics/trainshed/a.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(map(line_of, points)))
    return folder


def run(name: str, count: int, *, first: int = 1, start: float = 100.0) -> list[Point]:
    return [Point(name, 1.0 / n, start + n, n, None, 0) for n in range(first, first + count)]


def test_only_charts_with_new_points_are_sent(tmp_path: Path) -> None:
    lay(tmp_path, *run("loss", 50), *run("eval_loss", 5), *run("lr", 50))
    held, runs = Plots(), [("a", str(tmp_path))]
    first = held.charts(runs, {})
    known = {chart["title"]: chart["count"] for chart in first["charts"]}
    assert known == {"loss": 55, "lr": 50} and first["whole"]
    assert [line["name"] for line in first["charts"][0]["lines"]] == ["loss", "eval_loss"]
    assert held.charts(runs, {"known": known})["charts"] == []

    lay(tmp_path, *run("lr", 3, first=51))
    again = held.charts(runs, {"known": known})
    assert [(chart["title"], chart["count"]) for chart in again["charts"]] == [("lr", 53)] and again["titles"] == [
        "loss",
        "lr",
    ]


def test_there_is_a_title_for_every_metric_and_a_chart_for_those_that_are_seen(tmp_path: Path) -> None:
    names = [f"grad/layer{number}" for number in range(70)]
    lay(tmp_path, *(point for name in names for point in run(name, 2)))
    told = Plots().charts([("a", str(tmp_path))], {"seen": ["grad/layer69", "no such"]})

    assert told["titles"] == names, "in the order of their numbers"
    assert [chart["title"] for chart in told["charts"]] == ["grad/layer69"]


def test_a_long_curve_is_thinned_and_a_part_of_it_is_asked_for_finely(tmp_path: Path) -> None:
    lay(tmp_path, *run("loss", 20_000))
    held, runs = Plots(), [("a", str(tmp_path))]
    while not held.charts(runs, {})["whole"]:
        pass
    (line,) = held.charts(runs, {"parts": 100})["charts"][0]["lines"]
    assert len(line["x"]) <= 200 and line["count"] == 20_000
    (part,) = held.charts(runs, {"title": "loss", "low": 1000, "high": 1050, "parts": 100})["charts"][0]["lines"]
    assert part["x"] == [float(n) for n in range(999, 1052)]


def test_runs_over_one_another_share_a_chart_for_each_metric_and_begin_together_in_time(tmp_path: Path) -> None:
    lay(tmp_path / "a", *run("loss", 5))
    lay(tmp_path / "b", *run("loss", 5, start=9000.0), *run("acc", 3, start=9000.0))
    told = Plots().charts([("a", str(tmp_path / "a")), ("b", str(tmp_path / "b"))], {"axis": "time"})
    charts = {chart["title"]: chart for chart in told["charts"]}

    assert [line["name"] for line in charts["loss"]["lines"]] == ["a", "b"] and charts["loss"]["axis"] == "time"
    assert [line["x"][0] for line in charts["loss"]["lines"]] == [0.0, 0.0]
    assert [line["name"] for line in charts["acc"]["lines"]] == ["b"]


def test_what_is_not_finite_can_be_sent_and_one_value_belongs_over_no_axis(tmp_path: Path) -> None:
    points = [
        *run("loss", 3),
        Point("loss", math.nan, 104.0, 4),
        Point("loss", math.inf, 105.0, 5),
        Point("train_loss", 0.5, 106.0, 5),
    ]
    lay(tmp_path, *(point.replace(rank=0) for point in points))
    told = Plots().charts([("a", str(tmp_path))], {})
    json.dumps(told, allow_nan=False)
    (chart,) = told["charts"]

    assert chart["once"] == ["train_loss 0.5"] and chart["lines"][0]["last"] == "inf"
    assert chart["lines"][0]["y"][3:] == [None, None] and [kind for _, kind, _ in chart["lines"][0]["odd"]] == ["NaN", "inf"]
