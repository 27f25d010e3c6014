"""One value, one line of JSON; what others wrote is read, too."""

from __future__ import annotations

import json
import math

import pytest

from trainshed.metrics.points import Point, line_of, point_of


@pytest.mark.parametrize("value", [0.125, -3.0, 1e-300, math.inf, -math.inf, math.nan])
def test_a_point_comes_back_as_it_was(value: float) -> None:
    point = Point(name="val/loss ü", value=value, time=1_790_000_000.25, step=7, epoch=0.5, rank=3)
    line = line_of(point)

    assert line.endswith("\n")
    json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    again = point_of(line)
    assert again is not None
    assert again.replace(value=0.0) == point.replace(value=0.0)
    assert repr(again.value) == repr(value)


def test_what_nobody_said_is_not_written() -> None:
    assert json.loads(line_of(Point("loss", 1.0, 5.0))) == {"MetricName": "loss", "Value": 1.0, "Timestamp": 5.0}


def test_lines_of_amazons_libraries_are_read() -> None:
    assert point_of('{"MetricName": "a", "Value": 2, "Timestamp": 9.5, "IterationNumber": 4}') == Point("a", 2.0, 9.5, 4)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[1]",
        "7",
        '{"MetricName": "a"}',
        '{"MetricName": 1, "Value": 2}',
        '{"MetricName": "", "Value": 2}',
        '{"MetricName": "a", "Value": "high"}',
        '{"MetricName": "a", "Value": null}',
        "[" * 10_000,
    ],
)
def test_other_lines_hold_no_point(line: str) -> None:
    assert point_of(line) is None


@pytest.mark.parametrize("step", ["word", 1.5, 1e400, True, [3], 1 << 60])
def test_a_step_that_is_not_a_whole_number_is_left_out(step: object) -> None:
    point = point_of(json.dumps({"MetricName": "a", "Value": 1, "Step": step}))
    assert point is not None and point.step is None
