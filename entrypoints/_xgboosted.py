"""Trees, or a linear model, by XGBoost, for `_rounds.Training`."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

import xgboost
from _columns import Features, Target
from _common import Problem
from _ring import Ring, first_line
from xgboost.core import XGBoostError

MODEL = "xgboost-model"  # the platform's name, by which its serving image knows it
FOR_XGBOOST = (
    "booster", "eta", "gamma", "max_depth", "max_leaves", "grow_policy", "min_child_weight", "max_delta_step", "subsample",
    "colsample_bytree", "colsample_bylevel", "colsample_bynode", "lambda", "alpha", "scale_pos_weight", "base_score",
    "tree_method", "max_bin", "tweedie_variance_power", "huber_slope", "num_parallel_tree", "rate_drop", "skip_drop",
    "one_drop", "sample_type", "normalize_type", "verbosity",
)  # fmt: skip
SAMPLES = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")


class Engine:
    """XGBoost, as `_rounds.Engine` describes it."""

    name, version, file, continues = "xgboost", xgboost.__version__, MODEL, True

    def prepare(self, hp: Namespace, target: Target, features: Features, ring: Ring) -> None:
        """Takes the settings. Raises Problem for what is not served."""
        self.hp, self.features = hp, features
        if hp.grow_policy == "symmetric":
            raise Problem("grow_policy symmetric is CatBoost's: leave it out, or set library to catboost")
        self.parameters = parameters(hp, target, ring)
        if ring.world_size > 1 and hp.tree_method == "exact":
            raise Problem("tree_method exact is for one rank: use hist or approx")
        self.binned = hp.booster != "gblinear" and hp.tree_method in ("auto", "hist")
        self.kind = "weight" if hp.booster == "gblinear" else "gain"

    @property
    def forgets(self) -> bool:
        """Whether XGBoost draws numbers: its generators are in no model."""
        return self.hp.booster != "gblinear" and any(getattr(self.hp, name) < 1 for name in SAMPLES)

    def facts(self) -> dict[str, Any]:
        """The settings that must be the same when training goes on."""
        return {name: value for name, value in self.parameters.items() if name not in ("nthread", "verbosity")}

    def matrix(self, features: Any, labels: Any, weights: Any, bins_of: Any = None, plain: bool = False) -> Any:
        """Rows as XGBoost takes them."""
        given = {
            "label": labels,
            "weight": weights,
            "feature_names": self.features.names,
            "feature_types": self.features.types,
            "nthread": self.parameters["nthread"],
            "enable_categorical": bool(self.features.categories),
        }
        if plain or not self.binned:
            return xgboost.DMatrix(features, **given)
        return xgboost.QuantileDMatrix(features, max_bin=self.hp.max_bin, ref=bins_of, **given)

    def start(self, model: bytes, train: Any, matrices: list[tuple[Any, str]], ring: Ring) -> None:
        """Begins with a model, or with none."""
        self.train = train
        cache = [matrix for matrix, _ in matrices]
        self.booster = xgboost.Booster(self.parameters, cache, model_file=bytearray(model) if model else None)

    def update(self, at: int) -> None:
        """Grows the trees of a round."""
        self.booster.update(self.train, at)

    def measured(self, matrices: list[tuple[Any, str]], at: int) -> dict[str, float]:
        """Metrics of the trees up to a round."""
        booster = self.booster if at + 1 == self.booster.num_boosted_rounds() or not self._sliced else self.booster[: at + 1]
        return _values(booster.eval_set(matrices, at))

    @property
    def _sliced(self) -> bool:
        return self.hp.booster == "gbtree"

    def model(self, rounds: int = 0) -> bytes:
        """As XGBoost's binary JSON."""
        return bytes(self._first(rounds).save_raw("ubj"))

    def _first(self, rounds: int) -> Any:
        return (
            self.booster[:rounds] if rounds and self._sliced and rounds < self.booster.num_boosted_rounds() else self.booster
        )

    def state(self) -> bytes:
        """The model: there is nothing else to go on from."""
        return self.model()

    def reset(self) -> None:
        """Forgets what is predicted of rows, and begins its generators anew."""
        self.booster.reset()

    def importance(self, rounds: int) -> dict[str, float]:
        """How much each feature matters."""
        scores = self._first(rounds).get_score(importance_type=self.kind)
        return {name: abs(score[0] if isinstance(score, list) else score) for name, score in scores.items()}


def parameters(hp: Namespace, target: Target, ring: Ring) -> dict[str, Any]:
    """What XGBoost is told; what is not asked for is as XGBoost has it."""
    given = {name: getattr(hp, name) for name in FOR_XGBOOST if name in hp.asked}
    given |= {"objective": hp.objective, "seed": hp.seed, "seed_per_iteration": True}
    given["nthread"] = (
        hp.nthread or int(os.environ.get("OMP_NUM_THREADS") or 0) or max(1, (os.cpu_count() or 1) // ring.local_size)
    )
    if hp.eval_metric:
        given["eval_metric"] = list(hp.eval_metric)
    if target.objective.startswith("multi:"):
        given["num_class"] = target.count
    if hp.booster == "gblinear":
        given["updater"] = "coord_descent"  # the usual one, shotgun, has another result each time
    return given


def predictions(model: bytes, matrix: Any, features: Features, target: Target) -> Any:
    """What a model says of rows, as `matrix` of `Features` gives them. Raises Problem."""
    try:
        rows = xgboost.DMatrix(
            matrix,
            feature_names=features.names,
            feature_types=features.types,
            enable_categorical=bool(features.categories),
        )
        return xgboost.Booster(model_file=bytearray(model)).predict(rows)
    except XGBoostError as error:
        raise Problem(first_line(error)) from error


def _values(line: str) -> dict[str, float]:
    """`[3]<tab>train-rmse:0.5<tab>validation-rmse:0.6` as numbers by name."""
    pairs = (part.rpartition(":") for part in line.split("\t")[1:])
    return {name: float(value) for name, _, value in pairs}
