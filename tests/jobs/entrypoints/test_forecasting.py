"""Forecasts: the platform's form of data and request, models that GluonTS loads, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.programs import Train, channel
from support.runner_project import Project

needs("gluonts", "lightning")
pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")

PROGRAM = "forecasting.py"
SMALL = {
    "time_freq": "D", "prediction_length": 7, "context_length": 14, "epochs": 1, "num_batches_per_epoch": 2, "num_cells": 8,
    "mini_batch_size": 8, "num_eval_samples": 20,
}  # fmt: skip


def weeks(count: int, level: float = 10.0, **more: object) -> dict[str, object]:
    """A series with a week's rhythm."""
    return {"start": "2024-01-01 00:00:00", "target": [level * (1 + (day % 7 == 6)) for day in range(count)], **more}


@pytest.mark.heavy
def test_a_rhythm_is_learnt_and_the_library_and_predict_go_on_with_it(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", [weeks(70, level) for level in (5.0, 10.0, 20.0)], "a.json.gz")
    channel(tmp_path / "test", [weeks(77, 5.0), weeks(77, 20.0)], "a.json")
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

    said = train(
        predict=channel(tmp_path / "q", [weeks(76, 10.0)], "a.json") / "a.json", time_freq="x", num_eval_samples=100
    )
    [forecast] = map(json.loads, said.splitlines())
    assert forecast["start"] == "2024-03-17 00:00:00" and set(forecast["quantiles"]) == {f"0.{n}" for n in range(1, 10)}
    assert forecast["quantiles"]["0.5"] == pytest.approx([20, 10, 10, 10, 10, 10, 10], rel=0.35)

    from gluonts.dataset.common import ListDataset
    from gluonts.model.predictor import Predictor

    [made] = Predictor.deserialize(tmp_path / "model").predict(ListDataset([weeks(76, 10.0)], freq="D"))
    assert made.quantile(0.5) == pytest.approx(forecast["quantiles"]["0.5"], rel=0.1)


@pytest.mark.spine
def test_a_request_of_the_platform_runs_as_it_is(program: ModuleType, train: Train, tmp_path: Path) -> None:
    """Hyperparameters as the platform's examples give them, with categories, features and missing values."""
    more = {"cat": [1, 0], "dynamic_feat": [[float(day % 7) for day in range(80)]]}
    rows = [weeks(80, 10.0, **more), weeks(80, 3.0, **{**more, "cat": [0, 2]})]
    rows[0]["target"][3:5] = ["NaN", None]  # type: ignore[index]
    channel(tmp_path / "train", rows, "a.json")
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
    said = train(predict=channel(tmp_path / "q", [longer], "a.json") / "a.json")
    assert len(json.loads(said)["mean"]) == 7
    with pytest.raises(program.Problem, match="dynamic_feat has 80 values: it needs 7 more than target has"):
        train(predict=channel(tmp_path / "q", [rows[0]], "a.json") / "a.json")


@pytest.mark.heavy
def test_a_request_file_of_the_platform_runs_by_the_launcher(project: Project, tmp_path: Path) -> None:
    channels = {
        name: (channel(tmp_path / "data" / name, [weeks(60), weeks(60, 3.0)], "a.json"), "json")
        for name in ("train", "test")
    }
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


@pytest.mark.matrix
@pytest.mark.parametrize("likelihood", ["student-T", "gaussian", "negative-binomial", "beta", "deterministic-L1"])
@pytest.mark.parametrize("freq", ["M", "W", "H", "min", "15min", "Q", "Y"])
def test_every_likelihood_and_frequency(likelihood: str, freq: str, train: Train, tmp_path: Path) -> None:
    level = 0.3 if likelihood == "beta" else 10.0
    channel(tmp_path / "train", [weeks(60, level)], "a.json")
    output = train(test=tmp_path / "train", likelihood=likelihood, time_freq=freq, validation=tmp_path / "train")
    assert "validation_loss" in output and "test_RMSE" in output
