"""Forecasts: the platform's form of data and request, models that GluonTS loads, and what is refused."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.entrypoints import programs
from support.extras import needs
from support.lazy import Lazy
from support.runner_project import Project, project  # noqa: F401 (a fixture)

needs("gluonts", "lightning")
pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")

PROGRAM = "forecasting.py"
SMALL = {
    "time_freq": "D", "prediction_length": 7, "context_length": 14, "epochs": 1, "num_batches_per_epoch": 2, "num_cells": 8,
    "mini_batch_size": 8, "num_eval_samples": 20,
}  # fmt: skip

Train = Callable[..., str]


@pytest.fixture
def train(program: ModuleType, outside_a_job: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Train:
    """Trains on a folder `train` in this process; gives what was printed."""

    def run(**changed: object) -> str:
        given: dict[str, object] = {"train": tmp_path / "train", "model_dir": tmp_path / "model", "device": "cpu"}
        given |= {"output_data_dir": tmp_path / "output", **SMALL, **changed}
        arguments = [part for key, value in given.items() if value is not None for part in (f"--{key}", str(value))]
        monkeypatch.setattr(sys, "argv", [PROGRAM, *arguments])
        program.main()
        return str(capsys.readouterr().out)

    return run


def lines(folder: Path, *objects: object, name: str = "a.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in objects).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return folder


def weeks(count: int, level: float = 10.0, **more: object) -> dict[str, object]:
    """A series with a week's rhythm."""
    return {"start": "2024-01-01 00:00:00", "target": [level * (1 + (day % 7 == 6)) for day in range(count)], **more}


@pytest.mark.heavy
def test_a_rhythm_is_learnt_and_the_library_and_predict_go_on_with_it(train: Train, tmp_path: Path) -> None:
    lines(tmp_path / "train", *(weeks(70, level) for level in (5.0, 10.0, 20.0)), name="a.json.gz")
    lines(tmp_path / "test", weeks(77, 5.0), weeks(77, 20.0))
    output = train(
        test=tmp_path / "test",
        epochs=10,
        num_batches_per_epoch=30,
        learning_rate=0.01,
        dropout_rate=0,
        likelihood="gaussian",
    )
    facts = json.loads((tmp_path / "model/model.json").read_text())
    assert facts["metrics"]["test_mean_wQuantileLoss"] < 0.15 and "test mean_wQuantileLoss <loss>=0." in output
    assert {f"test_wQuantileLoss[0.{n}]" for n in range(1, 10)} < set(facts["metrics"])

    said = train(predict=lines(tmp_path / "q", weeks(76, 10.0)) / "a.json", time_freq="x", num_eval_samples=100)
    [forecast] = map(json.loads, said.splitlines())
    assert forecast["start"] == "2024-03-17 00:00:00" and set(forecast["quantiles"]) == {f"0.{n}" for n in range(1, 10)}
    assert forecast["quantiles"]["0.5"] == pytest.approx([20, 10, 10, 10, 10, 10, 10], rel=0.35)

    from gluonts.dataset.common import ListDataset
    from gluonts.model.predictor import Predictor

    [made] = Predictor.deserialize(tmp_path / "model").predict(ListDataset([weeks(76, 10.0)], freq="D"))
    assert made.quantile(0.5) == pytest.approx(forecast["quantiles"]["0.5"], rel=0.1)


def test_the_measures_are_those_of_gluonts(module: Callable[[str], ModuleType]) -> None:
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


def test_a_request_of_the_platform_runs_as_it_is(program: ModuleType, train: Train, tmp_path: Path) -> None:
    """Hyperparameters as the platform's examples give them, with categories, features and missing values."""
    more = {"cat": [1, 0], "dynamic_feat": [[float(day % 7) for day in range(80)]]}
    rows = [weeks(80, 10.0, **more), weeks(80, 3.0, **{**more, "cat": [0, 2]})]
    rows[0]["target"][3:5] = ["NaN", None]  # type: ignore[index]
    lines(tmp_path / "train", *rows)
    output = train(
        test=tmp_path / "train", likelihood="negative-binomial", cardinality="auto", num_dynamic_feat="auto",
        early_stopping_patience="40", num_layers="2", dropout_rate="0.05", embedding_dimension="10", learning_rate="5e-4",
        test_quantiles="[0.5, 0.9]",
    )  # fmt: skip
    assert "#quality_metric: host=algo-1, test RMSE <loss>=" in output
    assert "#quality_metric: host=algo-1, train final_loss <loss>=" in output
    facts = json.loads((tmp_path / "model/model.json").read_text())
    assert facts["hyperparameters"]["cardinality"] == [2, 3] and facts["hyperparameters"]["num_dynamic_feat"] == 1

    longer = {**rows[0], "dynamic_feat": [[0.0] * 87]}
    said = train(predict=lines(tmp_path / "q", longer) / "a.json")
    assert len(json.loads(said)["mean"]) == 7
    with pytest.raises(program.Problem, match="dynamic_feat has 80 values: it needs 7 more than target has"):
        train(predict=lines(tmp_path / "q", rows[0]) / "a.json")


@pytest.mark.heavy
def test_a_request_file_of_the_platform_runs_by_the_launcher(project: Project, tmp_path: Path) -> None:  # noqa: F811
    channels = {name: (lines(tmp_path / "data" / name, weeks(60), weeks(60, 3.0)), "json") for name in ("train", "test")}
    hyperparameters = {
        "time_freq": "D", "context_length": "14", "prediction_length": "7", "num_cells": "8", "num_layers": "2",
        "likelihood": "student-T", "epochs": "1", "mini_batch_size": "32", "learning_rate": "0.001", "dropout_rate": "0.05",
        "early_stopping_patience": "10", "cardinality": "auto", "num_dynamic_feat": "auto", "num_eval_samples": "10",
        "test_quantiles": "[0.1, 0.5, 0.9]",
    }  # fmt: skip
    request = programs.request_of_the_platform("forecasting-deepar:1", hyperparameters, channels)
    project.write({"request.json": request})
    done = project.trainshed("run", "request.json", OMP_NUM_THREADS="1")
    assert done.status == 0, done.output
    assert "#quality_metric: host=algo-1, test mean_wQuantileLoss <loss>=" in done.output
    assert "test_mean_wQuantileLoss" in project.trainshed("metrics", "show").output


@pytest.mark.heavy
@pytest.mark.parametrize("likelihood", ["student-T", "gaussian", "negative-binomial", "beta", "deterministic-L1"])
@pytest.mark.parametrize("freq", ["M", "W", "H", "min", "15min", "Q", "Y"])
def test_every_likelihood_and_frequency(likelihood: str, freq: str, train: Train, tmp_path: Path) -> None:
    level = 0.3 if likelihood == "beta" else 10.0
    lines(tmp_path / "train", weeks(60, level))
    output = train(test=tmp_path / "train", likelihood=likelihood, time_freq=freq, validation=tmp_path / "train")
    assert "validation_loss" in output and "test_RMSE" in output


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
        (weeks(30, cat=[0.5]), r"cat\[0\] is 0.5, not a whole number of 0 or more"),
        (weeks(30, dynamic_feat=[[1, 2]]), r"dynamic_feat\[0\] has 2 values, target has 30"),
        (weeks(30, dynamic_feat=[[None] * 30]), r"dynamic_feat\[0\]\[0\] is null, not a number"),
        (weeks(7), r"the channel train: no series has more than prediction_length \(7\) values"),
        ({"start": "2024-01-01", "target": [None] * 30}, r"no series has more than prediction_length \(7\) values, one of"),
        ("[1]", r"a.json:1: is a list, not an object"),
    ],
)
def test_bad_data_is_named(line: Any, words: str, program: ModuleType, train: Train, tmp_path: Path) -> None:
    lines(tmp_path / "train", line)
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
    lines(tmp_path / "train", weeks(30))
    with pytest.raises(program.Problem, match=words):
        train(**changed)
