"""The metrics file's lines, the log's lines, and the regex that finds a metric in them."""

from __future__ import annotations

import json
import math
import re

import pytest

from trainshed.contract.metrics import log_line, metric_line, regex_of


def test_a_line_of_the_file_is_one_json_object() -> None:
    line = metric_line("loss", 0.5, 1700000000.25, step=3)

    assert line.endswith("}\n") and line.count("\n") == 1
    assert json.loads(line) == {"MetricName": "loss", "Value": 0.5, "Timestamp": 1700000000.25, "IterationNumber": 3}


def test_a_metric_without_a_step_has_no_step() -> None:
    assert "IterationNumber" not in json.loads(metric_line("loss", 1, 0.0))


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_what_json_has_no_number_for_is_a_string(value: float, text: str) -> None:
    def no_constants(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(metric_line("loss", value, 0.0), parse_constant=no_constants)["Value"] == text


def test_the_log_line_says_values_then_places() -> None:
    assert log_line({"loss": 0.123456789, "acc": 1.0}, {"step": 10, "epoch": 2}) == (
        "metric loss=0.123457 acc=1 step=10 epoch=2"
    )


NAMES = ["loss", "val_loss", "val:loss", "eval/loss", "top.1", "f1-score", "a+b", "acc(5)", "x[0]", "$p", "größe"]
NUMBERS = [0.0, -0.0, 1.0, -1.5, 1e-9, -1e-9, 1e20, 123456.0, 1234567.0, 0.1, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_regex_finds_its_metric_wherever_it_stands_in_the_line(name: str, number: float) -> None:
    for line in (
        log_line({name: number}, {}),
        log_line({"other": 7.0, name: number}, {"step": 8}),
        "2026-11-21 10:00:00 algo-1:0 | " + log_line({name: number, "other": 7.0}, {"step": 8}),
    ):
        found = re.findall(regex_of(name), line)
        assert len(found) == 1
        value = float(found[0])
        assert value == pytest.approx(number, rel=1e-5) or (math.isnan(value) and math.isnan(number))


def test_the_regex_of_one_metric_does_not_find_another() -> None:
    line = log_line({"val_loss": 1.0, "val-loss": 2.0, "loss2": 3.0, "lossx": 4.0}, {})

    assert re.findall(regex_of("loss"), line) == []
    assert re.findall(regex_of("losx"), line) == []
    assert re.findall(regex_of("los."), line) == []


def test_the_regex_has_the_one_group_that_the_platform_wants() -> None:
    assert re.compile(regex_of("loss")).groups == 1
