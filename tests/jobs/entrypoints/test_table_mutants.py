"""Tables and hyperparameters that nobody has written by hand: tabular.py trains a usable model, or says what is wrong."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints import picture_mutants as mutants
from jobs.entrypoints.mutants import file_of, mutated, table
from support.extras import needs
from support.lazy import Lazy

pytestmark = pytest.mark.matrix

numpy: Any = Lazy("numpy")
VALUES: dict[str, list[str]] = {
    "objective": ["reg:squarederror", "binary:logistic", "multi:softmax", "multi:softprob", "reg:gamma", "reg:tweedie",
                  "count:poisson", "reg:logistic", "reg:squaredlogerror", "reg:absoluteerror", "binary:hinge", "reg:linear",
                  "binary:logitraw", "rank:pairwise"],
    "library": ["lightgbm", "lightgbm", "linear", "linear", "xgboost", *["catboost"] * (find_spec("catboost") is not None)],
    "num_leaves": ["2", "31"],
    "min_data_in_leaf": ["0", "1", "5"],
    "booster": ["gbtree", "dart", "gblinear"],
    "tree_method": ["auto", "hist", "approx", "exact", "gpu_hist"],
    "eval_metric": ["rmse", "auc", "mlogloss,merror", "error", "mae,rmse", "ndcg", "error@0.7", "nonsense", "aucpr"],
    "num_class": ["2", "3", "1", "50", "x"],
    "eta": ["0", "0.3", "1", "1e-9"],
    "max_depth": ["0", "1", "60", "-1"],
    "max_bin": ["2", "256", "65535"],
    "subsample": ["0.5", "0.0001", "1"],
    "colsample_bytree": ["0.0001", "0.5"],
    "colsample_bynode": ["0.3"],
    "lambda": ["0", "1e30"],
    "alpha": ["0", "5", "1e30"],
    "base_score": ["0.5", "0", "-3", "1e38", "nan"],
    "scale_pos_weight": ["0", "10", "1e30"],
    "min_child_weight": ["0", "1e20"],
    "max_delta_step": ["0", "0.7"],
    "grow_policy": ["lossguide"],
    "max_leaves": ["0", "2"],
    "early_stopping_rounds": ["1", "2"],
    "validation_fraction": ["0", "0.3", "0.9", "0.01"],
    "csv_weights": ["0", "1"],
    "target": ["t", "b", "missing"],
    "categorical_columns": ["a", "a,b", "f0"],
    "ignore_columns": ["a", "b,c", "t"],
    "num_parallel_tree": ["3"],
    "rate_drop": ["0.5", "1"],
    "seed": ["0", "2147483647"],
}  # fmt: skip


def arguments(draw: random.Random) -> list[str]:
    """Hyperparameters, most of them such as people give."""
    names = draw.sample(sorted(VALUES), draw.choice([0, 1, 2, 3, 6]))
    given = {name: draw.choice(VALUES[name]) for name in names}
    if draw.random() < 0.5:
        given["library"] = draw.choice(VALUES["library"])
    if draw.random() < 0.4:
        given["objective"] = draw.choice(VALUES["objective"])
    if given.get("library", "xgboost") != "xgboost" and draw.random() < 0.8:  # what they share
        shared = ("library", "objective", "lambda", "target", "csv_weights", "ignore_columns", "seed", "validation_fraction")
        given = {name: value for name, value in given.items() if name in shared}
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def make(draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """A table, perhaps in two files, and arguments."""
    rows = table(draw)
    made = [file_of(mutated(rows, draw), draw) for _ in range(draw.choice([1, 1, 2]))]
    files = {f"train/{at}-{name}": content for at, (name, content) in enumerate(made)}
    return files, ["--train", "train", "--num_round", "3", "--verbosity", "0", *arguments(draw)]


def finite() -> bool:
    """Whether the model in ./model gives numbers."""
    import tabular  # type: ignore[import-not-found]

    said = json.loads(tabular.about_in(Path("model")).read_text())
    engine = tabular.engine_of(said["library"])
    model = tabular.Model("model", said["library"], engine.Engine.file)
    width = len(said["features"]["columns"]) or said["features"]["width"]
    zeros = numpy.zeros((1, width), numpy.float32)
    return bool(numpy.isfinite(engine.predictions(model.model, zeros, model.features, model.target)).all())


def work(group: int) -> None:
    """What the process of a group does, in a folder of its own: twice as many as of other programs."""
    mutants.every("tabular", make, finite, "model", range(group, 2 * mutants.COUNT, mutants.GROUPS), "table")


@pytest.mark.parametrize("group", range(mutants.GROUPS))
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    needs("xgboost")
    mutants.start("test_table_mutants", group, tmp_path)
