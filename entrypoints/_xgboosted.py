"""Trees, or a linear model, by XGBoost, for `_rounds.Training`."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import _measures
import xgboost
from _columns import OF_CATBOOST, Features, Target
from _common import Problem
from _ring import Ring, first_line
from xgboost.core import XGBoostError

MODEL = "xgboost-model"  # the platform's name, by which its serving image knows it
FOR_XGBOOST = (
    "booster", "eta", "gamma", "max_depth", "max_leaves", "grow_policy", "min_child_weight", "max_delta_step", "subsample",
    "colsample_bytree", "colsample_bylevel", "colsample_bynode", "lambda", "alpha", "scale_pos_weight", "base_score",
    "tree_method", "max_bin", "tweedie_variance_power", "huber_slope", "num_parallel_tree", "rate_drop", "skip_drop",
    "one_drop", "sample_type", "normalize_type", "verbosity", "aft_loss_distribution", "aft_loss_distribution_scale",
    "monotone_constraints", "interaction_constraints", "process_type", "refresh_leaf", "sampling_method",
)  # fmt: skip
UPDATERS = ("grow_colmaker", "grow_histmaker", "grow_quantile_histmaker", "prune", "refresh")
GONE = {  # updaters that XGBoost has no more: why
    "sync": "", "distcol": "take tree_method hist", "grow_skmaker": "take tree_method approx",
    "grow_local_histmaker": "take tree_method approx",
}  # fmt: skip
SAMPLES = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")


class Engine:
    """XGBoost, as `_rounds.Engine` describes it."""

    name, version, file, continues = "xgboost", xgboost.__version__, MODEL, True

    def prepare(self, hp: Namespace, target: Target, features: Features, ring: Ring) -> None:
        """Takes the settings. Raises Problem for what is not served."""
        self.hp, self.features = hp, features
        if hp.grow_policy == "symmetric":
            raise Problem("grow_policy symmetric is CatBoost's: leave it out, or set library to catboost")
        if odd := sorted({*OF_CATBOOST, "min_data_in_leaf", "bagging_freq"} & hp.asked):
            raise Problem(f"{', '.join(odd)}: XGBoost has no such thing: leave it out, or set another library")
        self.target, self.ring = target, ring
        names = hp.eval_metric or ()
        _measures.require_fit(names, hp.objective, target.count)
        self.ours = [name for name in names if name in _measures.OURS]
        self.parameters = parameters(hp, target, ring)
        updaters = self.parameters.get("updater", "")
        if ring.world_size > 1 and (hp.tree_method == "exact" or "grow_colmaker" in updaters):
            raise Problem("tree_method exact (updater grow_colmaker) is for one rank: use hist or approx")
        if ring.world_size > 1 and hp.objective.startswith("rank:"):
            raise Problem(f"{hp.objective} is for one rank: groups are not divided")
        self.binned = hp.booster != "gblinear" and hp.tree_method in ("auto", "hist") and not updaters
        self.kind = "weight" if hp.booster == "gblinear" else "gain"

    @property
    def forgets(self) -> bool:
        """Whether XGBoost draws numbers: its generators are in no model."""
        return self.hp.booster != "gblinear" and any(getattr(self.hp, name) < 1 for name in SAMPLES)

    def facts(self) -> dict[str, Any]:
        """The settings that must be the same when training goes on."""
        return {
            name: value
            for name, value in self.parameters.items()
            if name not in ("nthread", "verbosity", "disable_default_eval_metric")
        }

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

    def mark(self, matrix: Any, extra: dict[str, Any]) -> None:
        """Says which rows are ranked together, or where what is learnt ends."""
        if "group" in extra:
            matrix.set_info(qid=extra["group"])
        if "upper" in extra:
            matrix.set_info(label_lower_bound=matrix.get_label(), label_upper_bound=extra["upper"])

    def start(self, model: bytes, train: Any, matrices: list[tuple[Any, str]], ring: Ring) -> None:
        """Begins with a model, or with none. Raises Problem."""
        self.train = train
        if self.hp.process_type == "update" and not model:
            raise Problem("process_type update needs trees to look at again: add a channel model")
        cache = [matrix for matrix, _ in matrices]
        self.booster = xgboost.Booster(self.parameters, cache, model_file=bytearray(model) if model else None)

    def update(self, at: int) -> None:
        """Grows the trees of a round."""
        self.booster.update(self.train, at)

    def measured(self, matrices: list[tuple[Any, str]], at: int) -> dict[str, float]:
        """Metrics of the trees up to a round."""
        booster = self.booster if at + 1 == self.booster.num_boosted_rounds() or not self._sliced else self.booster[: at + 1]
        values = _values(booster.eval_set(matrices, at)) if self.parameters.get("eval_metric", True) else {}
        return self._in_order({**values, **self._ours(booster, matrices)}, matrices)

    def _ours(self, booster: Any, matrices: list[tuple[Any, str]]) -> dict[str, float]:
        values = {}
        for matrix, data in matrices if self.ours else ():
            mine = matrix.get_label(), booster.predict(matrix)
            shared = data == "train" or bool(self.hp.sharded)
            labels, answers = _measures.whole(self.ring.gather(mine)) if shared else mine
            for name in self.ours:
                values[f"{data}-{name}"] = _measures.measured(name, labels, answers, self.hp.objective)
        return values

    def _in_order(self, values: dict[str, float], matrices: list[tuple[Any, str]]) -> dict[str, float]:
        """As eval_metric has them, since the last one stops early."""
        wanted = [f"{data}-{name}" for _, data in matrices for name in self.hp.eval_metric or ()]
        rank = {name: at for at, name in enumerate(wanted)}
        return dict(sorted(values.items(), key=lambda item: rank.get(item[0], -1))) if self.ours else values

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
        given["eval_metric"] = [name for name in hp.eval_metric if name not in _measures.OURS]
        if not given["eval_metric"]:
            given["disable_default_eval_metric"] = True
    if target.objective.startswith("multi:"):
        given["num_class"] = target.count
    if hp.booster == "gblinear":
        given["updater"] = "coord_descent"  # the usual one, shotgun, has another result each time
    if hp.updater:
        given |= updaters(hp)
    if hp.objective == "reg:quantileerror":
        given["quantile_alpha"] = quantiles(hp.quantile_alpha or ("0.5",))
    return given


def updaters(hp: Namespace) -> dict[str, str]:
    """The updaters that XGBoost still has, as they are asked for. Raises Problem for others."""
    known = ("coord_descent", "shotgun") if hp.booster == "gblinear" else UPDATERS
    for name in hp.updater:
        if GONE.get(name):
            raise Problem(f"updater {name}: XGBoost has it no more: {GONE[name]}")
        if name not in (*known, *GONE):
            raise Problem(f"updater {name} is not one of {', '.join(known)} for booster {hp.booster}")
    if hp.booster == "gblinear":
        return {"updater": hp.updater[0]} if len(hp.updater) == 1 else {}
    kept = [name for name in hp.updater if name not in GONE]
    if sum(name.startswith("grow_") for name in kept) > 1:
        raise Problem(f"updater {','.join(kept)}: one alone can grow trees")
    if hp.process_type == "update" and any(name.startswith("grow_") for name in kept):
        raise Problem("process_type update takes the updaters refresh and prune alone")
    return {"updater": ",".join(kept)} if kept else {}


def quantiles(given: Sequence[str]) -> list[float]:
    """The quantiles to learn. Raises Problem."""
    try:
        values = [float(one.strip("[]() ")) for one in given]
    except ValueError as error:
        raise Problem(f"quantile_alpha: {error}") from error
    if wrong := [value for value in values if not 0 < value < 1]:
        raise Problem(f"quantile_alpha: {wrong[0]:g} is not between 0 and 1")
    return values


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
