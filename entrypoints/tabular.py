"""Trains boosted trees, or a linear model, on tables: XGBoost, LightGBM, CatBoost or scikit-learn, by hyperparameters alone.

    python tabular.py --train adult.csv --objective binary:logistic --target income
    python tabular.py --train adult.csv --objective binary:logistic --target income --library lightgbm
    python tabular.py --predict rows.csv --model_dir model

The hyperparameters are those of the platform's XGBoost; docs/programs/tabular.md has their table. In a training job they
come as `--key value`, and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_VALIDATION, SM_MODEL_DIR and so on.

Every rank has a part of the rows: of its host's, where each host has files of its own, else of all. The bins of columns are
then those that one rank would have made, so that the trees are the same but for the order of sums.
"""

from __future__ import annotations

from _common import Parser, Problem, need, note, run

from trainshed.checkpoint import CheckpointError, listen
from trainshed.contract.hyperparameters import decode_value

if __name__ == "__main__":
    listen()  # before XGBoost is imported: that takes a second, and a stop in that time shall end with status 0 too
    need(__file__)

import importlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import _contest
import _folds
import _measures
import numpy
from _columns import Features, Target
from _ring import Ring, first_line
from _rounds import Model, Training, about_in, how, library_of
from _sparing import Spare
from _tables import Table, files_of, read_files
from xgboost.core import XGBoostError

ENGINES = {"xgboost": "_xgboosted", "lightgbm": "_lightgbm", "catboost": "_catboosted", "linear": "_linear"}
OTHER_NAMES = {  # LightGBM's and CatBoost's, and ours, which are XGBoost's
    "num_boost_round": "num_round", "iterations": "num_round", "learning_rate": "eta", "num_leaves": "max_leaves",
    "feature_fraction": "colsample_bytree", "bagging_fraction": "subsample", "feature_fraction_bynode": "colsample_bynode",
    "lambda_l1": "alpha", "lambda_l2": "lambda", "min_gain_to_split": "gamma", "metric": "eval_metric",
    "num_threads": "nthread", "depth": "max_depth", "l2_leaf_reg": "lambda", "rsm": "colsample_bylevel",
    "border_count": "max_bin", "random_seed": "seed", "thread_count": "nthread",
    "min_split_loss": "gamma", "reg_lambda": "lambda", "reg_alpha": "alpha",
}  # fmt: skip
OTHER_VALUES: dict[str, dict[Any, Any]] = {  # theirs, and ours
    "max_depth": {-1: 0}, "nthread": {-1: 0}, "eval_metric": {("auto",): None}, "max_bin": {"Auto": 256},
    "grow_policy": {"Depthwise": "depthwise", "Lossguide": "lossguide", "SymmetricTree": "symmetric"},
}  # fmt: skip
METRICS = {"xgboost": _measures.require_known}  # libraries whose metrics are known before they are loaded


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    parser = Parser.declared(__file__)
    hp = parser.read(argv)
    for name, usual in OTHER_NAMES.items():
        if (value := getattr(hp, name)) is not None:
            if getattr(hp, usual) not in (value, parser.get_default(usual)):
                raise Problem(f"{name} is {usual} by another name: give one of the two")
            setattr(hp, usual, value)
    for name, same in OTHER_VALUES.items():
        setattr(hp, name, same.get(getattr(hp, name), getattr(hp, name)))
    hp.asked = {name for name, value in vars(hp).items() if value != parser.get_default(name)}
    if hp.objective == "reg:linear":
        hp.objective = "reg:squarederror"  # its name in XGBoost 0.90
    if hp.booster != "gbtree" and hp.early_stopping_rounds:
        raise Problem(f"early_stopping_rounds needs the booster gbtree: of {hp.booster} no earlier round can be kept")
    if hp.tree_method == "gpu_hist":
        note("tree_method gpu_hist is hist: trees are grown on CPUs")
        hp.tree_method = "hist"
    if hp._kfold and hp.library != "xgboost" and not hp.predict:
        raise Problem(f"_kfold is served with library xgboost, not {hp.library}")
    if hp.csv_weights and hp.weight:
        raise Problem("csv_weights and weight both say what weighs the rows: give one of the two")
    tuned = (hp._tuning_objective_metric or asked_by_the_tuner()).rpartition(":")[2]
    if tuned:
        hp.eval_metric = (*(name for name in hp.eval_metric or () if name != tuned), tuned)
    METRICS.get(hp.library, lambda names: None)(hp.eval_metric or ())
    return hp


def asked_by_the_tuner() -> str:
    """The metric of a tuning job, which is in the job's file alone: `train` keeps it from command lines."""
    file = Path(os.environ.get("SM_INPUT_CONFIG_DIR", ""), "hyperparameters.json")
    try:
        return str(decode_value(json.loads(file.read_text(encoding="utf-8")).get("_tuning_objective_metric") or ""))
    except (OSError, ValueError, AttributeError):
        return ""


def engine_of(library: str) -> Any:
    """The module of a library. Raises Problem where that is not installed."""
    try:
        return importlib.import_module(ENGINES[library])
    except OSError as error:  # a library of the system that it links
        raise Problem(f"library {library} cannot be loaded: {first_line(error)} (Debian's libgomp1 has libgomp)") from error
    except ImportError as error:
        extra = "tabular,catboost" if library == "catboost" else "tabular"
        raise Problem(
            f"library {library} needs {error.name}, not installed here: pip install 'trainshed[{extra}]'"
        ) from error


def library_in(folder: Path) -> str:
    """The library of the model in a folder; XGBoost for what is no model, which is said later."""
    try:
        return library_of(json.loads(about_in(folder).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError):
        return "xgboost"


def predict(hp: Namespace) -> None:
    """Prints one JSON line a row: {"row", "prediction"}, or {"row", "class", "probability"}."""
    library = library_in(Path(hp.model_dir))
    engine = engine_of(library)
    model = Model(hp.model_dir, library, engine.Engine.file)
    features, target = model.features, model.target
    columns = tuple(features.columns) if features.columns else None
    for name in ("categorical_columns", "ignore_columns", "target", "weight", "csv_weights"):
        if name in model.hyperparameters and name not in hp.asked:
            value = model.hyperparameters[name]
            setattr(hp, name, tuple(value) if isinstance(value, list) else value)
    spare = Spare(lambda part: _require_fit(features, part), features.columns)
    way = replace(how(hp, columns, {}, features.texts, labelled=False), spare=spare)
    table = read_files(files_of(hp.predict, "the data to predict"), way, hp.predict)
    features.check(table, hp.predict)
    matrix = features.matrix(table, numpy.arange(table.rows))
    values = engine.predictions(model.model, matrix, features, target)
    spare.answer(table, (_said(target, value) for value in values))


def _require_fit(features: Features, rows: Table) -> None:
    """Raises Problem for rows that a model with these features does not take."""
    features.check(rows, rows.place(0), say=False)
    features.matrix(rows, numpy.arange(rows.rows))


def _said(target: Target, value: Any) -> dict[str, Any]:
    if target.objective in ("binary:logistic", "binary:hinge"):
        label = float(value > 0.5)
        return {"class": target.class_of(label), "probability": round(float(value if label else 1 - value), 6)}
    if target.objective == "binary:logitraw":
        return {"class": target.class_of(float(value > 0)), "score": round(float(value), 6)}
    if target.objective == "multi:softprob":
        label = int(value.argmax())
        return {"class": target.class_of(label), "probability": round(float(value[label]), 6)}
    if target.objective == "multi:softmax":
        return {"class": target.class_of(float(value.argmax() if numpy.ndim(value) else value))}
    if numpy.ndim(value):
        return {"predictions": [float(f"{one:.7g}") for one in value]}  # one a quantile
    return {"prediction": float(f"{value:.7g}")}


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    try:
        if hp.predict:
            predict(hp)
            return
        ring = Ring()
        if hp._kfold:
            _folds.run(hp, ring, engine_of(hp.library))
        elif hp.library in ENGINES:
            Training(hp, ring, engine_of(hp.library).Engine()).run()
        else:
            _contest.Contest(hp, ring, {library: partial(engine_of, library) for library in ENGINES}).run()
        ring.leave()
    except XGBoostError as error:
        raise Problem(first_line(error)) from error
    except CheckpointError as error:
        raise Problem(str(error)) from error


if __name__ == "__main__":
    run(main)
