"""What a run has measured is told in one place, from its files before its log and its status."""

from __future__ import annotations

import math
from pathlib import Path

from support.offenders import no_offenders
from support.paths import TOOLKIT
from support.run_folders import lay_run
from trainshed.metrics.points import Point, line_of
from trainshed.metrics.reading import MetricsReader, Summary
from trainshed.runner.state.outputs import as_final_metrics, last_values, metrics_in, metrics_of

PACKAGE = TOOLKIT / "trainshed"
ONE_PLACE = ("runner/state/", "runner/control/operations.py")


def test_files_count_before_what_the_log_says_and_earlier_attempts_count(tmp_path: Path) -> None:
    run = lay_run(tmp_path / "a", metrics={"loss": [2.0, 1.0]})
    earlier = run / "attempts/1/algo-1/output/metrics/sagemaker/1.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text(line_of(Point("early", 3.0, 1.0)))
    known = {"loss": Summary(9, 9.0, 9.0), "log": Summary(2, 5.0, 4.0)}

    found = metrics_of(str(run), known)
    assert found == {
        "early": Summary(1, 3.0, 3.0, 3.0, 3.0), "loss": Summary(2, 2.0, 1.0, 1.0, 2.0), "log": known["log"],
    }  # fmt: skip
    assert metrics_of(str(run), known, MetricsReader()) == found


def test_a_status_that_anybody_wrote_tells_what_is_in_shape(tmp_path: Path) -> None:
    odd = [{"MetricName": "a", "Value": "nan"}, {"MetricName": "b", "Value": True}, {"MetricName": 1, "Value": 1}, 3, {}]
    found = last_values(str(tmp_path), {"FinalMetricDataList": [*odd, {"MetricName": "c", "Value": "-inf"}]})

    assert list(found) == ["a", "c"] and math.isnan(found["a"]) and found["c"] == -math.inf
    assert metrics_in({"FinalMetricDataList": {}}) == {}


def test_what_is_written_is_read_again() -> None:
    told = as_final_metrics({"a": Summary(1, 1.0, math.inf), "b": Summary(3, 1.0, 0.5)}, "now")

    assert told[1] == {"MetricName": "b", "Value": 0.5, "Timestamp": "now"} and told[0]["Value"] == "Infinity"
    assert {name: one.last for name, one in metrics_in({"FinalMetricDataList": told}).items()} == {"a": math.inf, "b": 0.5}


def test_nothing_else_reads_the_metrics_of_a_status() -> None:
    files = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    others = {name: text for name, text in files.items() if not name.startswith(ONE_PLACE)}
    found = {name: ["FinalMetricDataList"] * ("FinalMetricDataList" in text) for name, text in others.items()}

    no_offenders(found, "metrics are asked of runner/state/outputs.py")
