"""linear.py: the platform's Linear Learner by its names, on scikit-learn."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints import mutants as tables
from jobs.entrypoints import picture_mutants as mutants
from jobs.entrypoints.tables import measured, rows
from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Train
from support.runner_project import Project

needs("xgboost", "sklearn", "skops")
numpy: Any = Lazy("numpy")
PROGRAM = "linear.py"


def table(path: Path, features: Any, target: Any) -> tuple[str, str]:
    numpy.savetxt(path, numpy.column_stack([target, features]), delimiter=",", fmt="%.9g")
    return "--train", str(path)


@pytest.mark.spine
def test_a_penalty_counts_against_the_mean_loss_of_rows(started_here: Train, tmp_path: Path) -> None:
    from sklearn.linear_model import ElasticNet, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, target = numpy.nan_to_num(rows()[0]), rows()[1]
    given = table(tmp_path / "rows.csv", features, target)
    said = ("--predictor_type", "regressor", "--mini_batch_size", "100", "--learning_rate", "auto", "--wd", "0.05")
    printed = started_here(PROGRAM, *given, *said)

    theirs = make_pipeline(StandardScaler(), Ridge(alpha=0.05 * len(target))).fit(features, target)
    error = math.sqrt(numpy.mean((theirs.predict(features) - target) ** 2))
    assert measured(printed)[0]["train-rmse"] == pytest.approx(error, rel=1e-4)

    theirs = make_pipeline(StandardScaler(), ElasticNet(alpha=0.06, l1_ratio=1 / 6)).fit(features, target)
    error = math.sqrt(numpy.mean((theirs.predict(features) - target) ** 2))
    assert measured(started_here(PROGRAM, *given, *said, "--l1", "0.01"))[0]["train-rmse"] == pytest.approx(error, rel=1e-4)
    assert json.loads((tmp_path / "model/model.json").read_text())["program"] == "linear"


def test_classes_that_are_rare_weigh_as_much_and_numbers_may_be_left_as_they_are(
    started_here: Train, module: Module, tmp_path: Path
) -> None:
    from sklearn.linear_model import LogisticRegression

    features, target = numpy.nan_to_num(rows()[0]), rows()[1]
    rare = (target > numpy.quantile(target, 0.9)).astype(int)
    given = (*table(tmp_path / "rows.csv", features, rare), "--predictor_type", "binary_classifier")
    plain = ("--normalize_data", "false", "--use_bias", "false", "--wd", "0.01")
    started_here(PROGRAM, *given, *plain, "--positive_example_weight_mult", "balanced")

    fitted = module("_linear").loaded((tmp_path / "model/model.skops").read_bytes())
    theirs = LogisticRegression(C=1 / (0.01 * len(rare)), fit_intercept=False, class_weight="balanced")
    written = features.astype("f4").astype("f8")
    assert numpy.allclose(fitted[-1].coef_, theirs.fit(written, rare).coef_, rtol=1e-3, atol=1e-5)
    assert fitted[-1].intercept_ == 0

    table(tmp_path / "unseen.csv", features[:3, 1:], features[:3, 0])
    lines = started_here(PROGRAM, "--predict", str(tmp_path / "unseen.csv")).splitlines()
    assert [json.loads(line)["class"] for line in lines] == fitted.predict(written[:3]).astype(int).tolist()


def test_a_request_of_the_platforms_linear_learner_runs_here(project: Project, tables: Path) -> None:
    asked = {
        "feature_dim": "6", "predictor_type": "regressor", "mini_batch_size": "200", "epochs": "15", "num_models": "auto",
        "normalize_data": "true", "normalize_label": "auto", "learning_rate": "auto", "l1": "auto", "wd": "0.0001",
        "loss": "squared_loss", "optimizer": "adam", "early_stopping_patience": "3", "unbias_data": "auto",
    }  # fmt: skip
    channels = {name: (tables / name, "text/csv") for name in ("train", "validation")}
    project.write({"request.json": programs.request_of_the_platform("linear-learner:1", asked, channels)})
    done = project.trainshed("run", "request.json", OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    vain = "learning_rate, mini_batch_size, optimizer, normalize_label, early_stopping_patience change nothing: the solver"
    assert vain in done.output and "num_models changes nothing: there is one" in done.output
    shown = project.trainshed("metrics", "show")
    assert "validation:rmse" in shown.output, shown.output

    asked |= {"loss": "hinge_loss", "epochs": "many", "wd": "some"}
    project.write({"request.json": programs.request_of_the_platform("linear-learner:1", asked, channels)})
    refused = project.trainshed("run", "request.json")
    assert refused.status != 0 and "3 problems" in refused.output
    for words in (
        "'hinge_loss' is not one of auto, logistic",
        "'many' is not a whole",
        "'some' is not a number of 0 or more or auto",
    ):
        assert words in refused.output


# --- mutants ----------------------------------------------------------------------------------------------------------

VALUES: dict[str, list[str]] = {
    "predictor_type": ["regressor", "binary_classifier", "multiclass_classifier", "x"],
    "num_classes": ["2", "3", "1"],
    "feature_dim": ["1", "2", "auto", "auto"],
    "loss": ["auto", "logistic", "softmax_loss", "squared_loss", "hinge_loss"],
    "wd": ["0", "auto", "1e-7", "1e30", "-1"],
    "l1": ["0", "auto", "0.01", "1e30"],
    "use_bias": ["true", "false"],
    "normalize_data": ["true", "false"],
    "unbias_data": ["auto", "true", "false"],
    "positive_example_weight_mult": ["balanced", "0", "1e30", "2"],
    "balance_multiclass_weights": ["true", "false"],
    "epochs": ["1", "15"],
    "mini_batch_size": ["7", "100"],
    "learning_rate": ["auto", "0.1"],
    "csv_weights": ["0", "1"],
    "target": ["t", "b", "missing"],
    "categorical_columns": ["a", "a,b"],
    "ignore_columns": ["a", "b,c", "t"],
    "validation_fraction": ["0", "0.3", "0.9"],
}


def make(draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """A table, perhaps in two files, and arguments."""
    rows = tables.table(draw)
    made = [tables.file_of(tables.mutated(rows, draw), draw) for _ in range(draw.choice([1, 1, 2]))]
    files = {f"train/{at}-{name}": content for at, (name, content) in enumerate(made)}
    kind = draw.choice(["regressor"] * 4 + ["binary_classifier", "multiclass_classifier"])
    few = mutants.chosen(VALUES, draw) if draw.random() < 0.6 else []
    return files, ["--train", "train", "--predictor_type", kind, *few]


def finite() -> bool:
    """Whether the model in ./model gives numbers."""
    import _linear  # type: ignore[import-not-found]
    import _rounds  # type: ignore[import-not-found]

    model = _rounds.Model("model", "linear", _linear.FILE)
    width = len(model.features.columns) or model.features.width
    zeros = numpy.zeros((1, width), numpy.float32)
    return bool(numpy.isfinite(_linear.predictions(model.model, zeros, model.features, model.target)).all())


def work(group: int) -> None:
    """What the process of a group does, in a folder of its own."""
    mutants.each("linear", group, make, finite)


@pytest.mark.matrix
@pytest.mark.parametrize("group", range(mutants.GROUPS))
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    mutants.start("test_linear", group, tmp_path)


def test_several_ranks_are_refused(tmp_path: Path, tables: Path) -> None:
    arguments = ("--train", str(tables / "train"), "--predictor_type", "regressor")
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, ranks=2) as job:
        assert set(job.finish()) == {1}
    assert "linear: error: library linear is for one rank: start one" in job.errors[0]
