"""forecasting.py: its measures, and what is refused."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Train, channel

needs("gluonts", "lightning")
pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")

PROGRAM = "forecasting.py"
SMALL = {"time_freq": "D", "prediction_length": 7, "context_length": 14, "epochs": 1}


def days(count: int, **more: object) -> dict[str, object]:
    """A series without change."""
    return {"start": "2024-01-01 00:00:00", "target": [10.0] * count, **more}


def test_the_measures_are_those_of_gluonts(module: Module) -> None:
    draw = numpy.random.default_rng(0)
    made, truth = draw.normal(5, 1, (4, 4, 6)), draw.normal(5, 1, (4, 6))
    truth[0, 2] = math.nan
    measures = module("_forecaster").measured(made, truth, [0.1, 0.5, 0.9])

    from gluonts.evaluation.metrics import quantile_loss

    there = ~numpy.isnan(truth)
    for at, q in enumerate((0.1, 0.5, 0.9), 1):
        theirs = quantile_loss(truth[there], made[:, at][there], q) / numpy.abs(truth[there]).sum()
        assert measures[f"wQuantileLoss[{q}]"] == pytest.approx(theirs)
    assert measures["RMSE"] == pytest.approx(float(numpy.sqrt(((made[:, 0] - truth)[there] ** 2).mean())))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"target": [1]}, r"a.json:1: has no start \(its fields: target\)"),
        ({"start": "2024-01-01"}, r"a.json:1: has no target"),
        ({"start": "soon", "target": [1]}, r"start is 'soon', not a time like 2024-01-31 00:00:00"),
        ({"start": 3, "target": [1]}, r"start is a number, not a string"),
        ({"start": "2024-01-01T00:00:00+02:00", "target": [1]}, r"leave out the time zone"),
        ({"start": "0001-01-01", "target": [1]}, r"years go from 1700 to 2200"),
        ({"start": "2024-01-01", "target": []}, r"target is empty"),
        ({"start": "2024-01-01", "target": [1, "2"]}, r"target\[1\] is '2', not a number"),
        ({"start": "2024-01-01", "target": [1, 1e300]}, r"target\[1\] is beyond 1e\+18: scale the series"),
        (days(30, cat=[0.5]), r"cat\[0\] is 0.5, not a whole number of 0 or more"),
        (days(30, dynamic_feat=[[1, 2]]), r"dynamic_feat\[0\] has 2 values, target has 30"),
        (days(30, dynamic_feat=[[None] * 30]), r"dynamic_feat\[0\]\[0\] is null, not a number"),
        (days(7), r"the channel train: no series has more than prediction_length \(7\) values"),
        ({"start": "2024-01-01", "target": [None] * 30}, r"no series has more than prediction_length \(7\) values, one of"),
        ("[1]", r"a.json:1: is a list, not an object"),
    ],
)
def test_bad_data_is_named(line: Any, words: str, program: ModuleType, train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", [line], "a.json")
    with pytest.raises(program.Problem, match=words) as raised:
        train()
    assert "\n" not in str(raised.value) and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"time_freq": "fortnight"}, "time_freq 'fortnight' is not one of M, W, D, H, min"),
        ({"time_freq": None}, "hyperparameter time_freq is missing"),
        ({"cardinality": "[2]"}, r"a.json:1: cat has 0 values, and the job has 1 \(cardinality\)"),
        ({"cardinality": "[x]"}, r"cardinality '\[x\]' is not a list of numbers"),
        ({"num_dynamic_feat": "2"}, "dynamic_feat has 0 features, and the job has 2"),
        ({"likelihood": "beta"}, r"a.json:1: target\[0\] is 10, and likelihood beta takes numbers between 0 and 1"),
        ({"test_quantiles": "[0.5, 1.5]"}, "test_quantiles '.*' is not a list of numbers from 0 to 1"),
        ({"predict": "/nowhere"}, "holds no model of forecasting"),
    ],
)
def test_bad_hyperparameters_are_named(
    changed: dict[str, Any], words: str, program: ModuleType, train: Train, tmp_path: Path
) -> None:
    channel(tmp_path / "train", [days(30)], "a.json")
    with pytest.raises(program.Problem, match=words):
        train(**changed)


def test_a_series_of_missing_values_is_not_gone_on_with(module: Module) -> None:
    was = Namespace(cardinality=(), num_dynamic_feat=0, likelihood="gaussian", prediction_length=7)
    rows = [module("_series").series_of(days(3, **more), "a.json:1") for more in ({}, {"target": [None, "NaN"]})]
    said = [module("_forecaster")._unlike(was, row) for row in rows]
    assert said == ["", "all values of target are missing: there is nothing to go on from"]
