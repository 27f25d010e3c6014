"""Trees by LightGBM, for `_rounds.Training`: over many ranks by LightGBM's own collectives.

What XGBoost calls otherwise is translated: a job says `eta`, and metrics are called `rmse` and `logloss`, whatever grows
the trees.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import warnings
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import lightgbm
import numpy
from _columns import OF_CATBOOST, OF_XGBOOST, Features, Target
from _common import Problem
from _ring import Ring, first_line
from lightgbm.basic import LightGBMError

FILE = "model.txt"
NAMES = {
    "eta": "learning_rate", "gamma": "min_gain_to_split", "max_leaves": "num_leaves", "subsample": "bagging_fraction",
    "min_child_weight": "min_sum_hessian_in_leaf", "max_delta_step": "max_delta_step", "lambda": "lambda_l2",
    "colsample_bytree": "feature_fraction", "colsample_bynode": "feature_fraction_bynode", "alpha": "lambda_l1",
    "scale_pos_weight": "scale_pos_weight", "tweedie_variance_power": "tweedie_variance_power", "max_depth": "max_depth",
    "max_bin": "max_bin", "min_data_in_leaf": "min_data_in_leaf",
}  # fmt: skip
OBJECTIVES = {
    "reg:squarederror": ("regression", "rmse"), "reg:absoluteerror": ("regression_l1", "l1"),
    "reg:gamma": ("gamma", "gamma"), "reg:tweedie": ("tweedie", "tweedie"), "count:poisson": ("poisson", "poisson"),
    "reg:pseudohubererror": ("huber", "huber"), "reg:logistic": ("cross_entropy", "cross_entropy"),
    "binary:logistic": ("binary", "binary_logloss"), "multi:softmax": ("multiclass", "multi_logloss"),
    "multi:softprob": ("multiclass", "multi_logloss"),
}  # fmt: skip
METRICS = {
    "rmse": "rmse", "mae": "l1", "mape": "mape", "logloss": "binary_logloss", "error": "binary_error", "auc": "auc",
    "aucpr": "average_precision", "mlogloss": "multi_logloss", "merror": "multi_error", "mse": "l2",
}  # fmt: skip
NOT_SERVED = ("colsample_bylevel", "grow_policy", "num_parallel_tree", "base_score", "huber_slope", "rate_drop", "skip_drop",
              "one_drop", "sample_type", "normalize_type", "tree_method", *OF_XGBOOST,
              *OF_CATBOOST)  # fmt: skip


class Engine:
    """LightGBM, as `_rounds.Engine` describes it.

    A model that goes on computes from other sums than one that never stopped, and draws other rows: so both go on from a
    model that was written down, every so many rounds.
    """

    name, version, file, kind = "lightgbm", lightgbm.__version__, FILE, "gain"
    forgets = continues = True
    live: Any
    network: dict[str, Any]

    def prepare(self, hp: Namespace, target: Target, features: Features, ring: Ring) -> None:
        """Takes the settings. Raises Problem for what is not served."""
        if hp.booster != "gbtree":
            raise Problem(f"booster {hp.booster} is XGBoost's: leave it out, or set library to xgboost")
        if hp.objective not in OBJECTIVES:
            raise Problem(f"objective {hp.objective} is not served with LightGBM: {', '.join(OBJECTIVES)}")
        if odd := sorted(set(NOT_SERVED) & hp.asked):
            raise Problem(f"{', '.join(odd)}: LightGBM has no such thing: leave it out, or set library to xgboost")
        if "max_leaves" in hp.asked and hp.max_leaves == 1:
            raise Problem("max_leaves is 1: LightGBM needs 2 or more")
        if "alpha" in hp.asked and hp.objective == "reg:absoluteerror" and hp.alpha > 1e20:
            raise Problem(f"alpha is {hp.alpha:g}: no leaf is left with it")
        objective, metric = OBJECTIVES[hp.objective]
        given = {NAMES[name]: getattr(hp, name) for name in NAMES if name in hp.asked}
        if given.get("max_depth") == 0:
            given["max_depth"] = -1
        if given.get("num_leaves") == 0:
            given.pop("num_leaves")
        if "bagging_fraction" in given:
            given["bagging_freq"] = hp.bagging_freq or 1
        if objective == "multiclass":
            given["num_class"] = target.count
        self.threads = (
            hp.nthread or int(os.environ.get("OMP_NUM_THREADS") or 0) or max(1, (os.cpu_count() or 1) // ring.local_size)
        )
        unknown = [one for one in hp.eval_metric or () if one not in METRICS and one not in METRICS.values()]
        if unknown:
            raise Problem(f"eval_metric {unknown[0]} is not served with LightGBM: {', '.join(METRICS)}")
        self.settings = {
            **given, "objective": objective, "seed": hp.seed, "deterministic": True, "force_row_wise": True,
            "metric": [METRICS.get(one, one) for one in hp.eval_metric] if hp.eval_metric else [metric],
        }  # fmt: skip
        self.features, self.sharded = features, bool(hp.sharded)
        self.verbosity = max(hp.verbosity - 2, -1)  # LightGBM warns where no split is left, each round

    def facts(self) -> dict[str, Any]:
        """The settings that must be the same when training goes on."""
        return {"library": self.name, **self.settings}

    @property
    def parameters(self) -> dict[str, Any]:
        """What LightGBM is told."""
        return {**self.settings, "num_threads": self.threads, "verbosity": self.verbosity}

    def matrix(self, features: Any, labels: Any, weights: Any, bins_of: Any = None, plain: bool = False) -> Any:
        """Rows as LightGBM takes them. Raises Problem."""
        own = self.features
        # plain: rows to measure, which have the bins of those that are trained on
        made = lightgbm.Dataset(
            features, labels, weight=weights, reference=bins_of or (self.whole if plain else None), free_raw_data=False,
            categorical_feature=own.of_text or "auto",
            feature_name=[f"f{at}" for at in range(features.shape[1])], params=self.parameters,
        )  # fmt: skip
        if bins_of is None and not plain:
            self.whole = made
            if not self.sharded:
                with said():
                    made.construct()
        return made

    whole: Any = None

    def mark(self, matrix: Any, extra: dict[str, Any]) -> None:
        """Nothing: objectives with groups, or with an upper end, are not served."""

    def start(self, model: bytes, train: Any, matrices: list[tuple[Any, str]], ring: Ring) -> None:
        """Begins with a model, or with none. Ranks meet at ports that each of them has found free. Raises Problem."""
        self.train, self.grown, self.live, self.network, self.ring = train, model, None, {}, ring
        if ring.world_size > 1:
            self._meet(ring)
        self.seen = dict((name, data) for data, name in matrices)
        if ring.world_size > 1 and not self.sharded:  # what is measured is the same on each rank: all rows
            rows = self.whole
            self.seen["train"] = self.matrix(rows.data, rows.label, rows.weight, bins_of=rows)
        self._begin()

    def _meet(self, ring: Ring) -> None:
        """Connects the ranks, once: a network that is made anew with each booster lets ranks wait for each other."""
        with socket.socket() as held:
            held.bind(("", 0))
            port = held.getsockname()[1]
            every = ring.gather((ring.address(), port))
        self.network = {"num_machines": ring.world_size, "tree_learner": "data"}
        machines = ",".join(f"{host}:{at}" for host, at in every)
        quiet = logging.getLogger("lightgbm")
        quiet.setLevel(logging.WARNING)
        lightgbm.register_logger(quiet)
        with said():
            self.keeper = lightgbm.Booster({"verbosity": -1}, lightgbm.Dataset(numpy.zeros((2, 1)), numpy.zeros(2)))
            self.keeper.set_network(machines, port, num_machines=ring.world_size)

    def _begin(self) -> None:
        """Makes the booster that goes on, where there is none."""
        told = {**self.parameters, **self.network}
        with said():
            if not self.grown:
                self.live = lightgbm.Booster(told, self.train)
            elif self.live is None:
                self.before = lightgbm.Booster(model_str=self.grown.decode())

    def update(self, at: int) -> None:
        """Grows the trees of a round."""
        with said():
            if self.live is not None:
                self.live.update()
                return
            told = {**self.parameters, **self.network}
            self.live = lightgbm.train(
                told, self.train, 1, [*self.seen.values()], [*self.seen], init_model=self.before, keep_training_booster=True
            )

    def measured(self, matrices: list[tuple[Any, str]], at: int) -> dict[str, float]:
        """Metrics of the trees up to a round."""
        names = {theirs: ours for ours, theirs in METRICS.items()}
        values: dict[str, float] = {}
        for data, name in matrices:
            if name == "test":  # once, of the model that is written
                values |= self._of_model(data, at + 1)
                continue
            with said():
                rows = self.seen[name]
                found = self.live.eval_train() if rows is self.train else self.live.eval(rows, name)
            of_data = {f"{name}-{names.get(metric, metric)}": float(value) for _, metric, value, _ in found}
            many = self.sharded and self.ring.world_size > 1
            values |= self._over_hosts(of_data, data.num_data()) if many else of_data
        return values

    def _over_hosts(self, values: dict[str, float], rows: int) -> dict[str, float]:
        """Means over hosts by their rows: LightGBM measures what a host has. Of rmse the mean is of squares."""
        every = self.ring.gather((rows, values))
        total = sum(count for count, _ in every)
        found = {}
        for name in values:
            power = 2 if name.endswith("-rmse") else 1
            found[name] = (sum(count * one[name] ** power for count, one in every) / total) ** (1 / power)
        return found

    def _of_model(self, data: Any, rounds: int) -> dict[str, float]:
        told = self.parameters
        names = {theirs: ours for ours, theirs in METRICS.items()}
        with said():
            started = lightgbm.Booster(model_str=self.model(rounds).decode())
            score = started.predict(data.data, raw_score=True)
            rows = lightgbm.Dataset(data.data, data.label, weight=data.weight, init_score=score.ravel(order="F"),
                                    free_raw_data=False, params={**told, "min_data_in_bin": 1})  # fmt: skip
            found = lightgbm.Booster(told, rows).eval_train()
        of_data = {f"test-{names.get(metric, metric)}": float(value) for _, metric, value, _ in found}
        return self._over_hosts(of_data, rows.num_data()) if self.sharded and self.ring.world_size > 1 else of_data

    def model(self, rounds: int = 0) -> bytes:
        """As LightGBM's text."""
        if self.live is None:
            return self.grown
        return self.live.model_to_string(num_iteration=rounds or -1).encode()

    def state(self) -> bytes:
        """The model: there is nothing else to go on from."""
        return self.model()

    def reset(self) -> None:
        """Goes on from the model as it is written down."""
        self.grown, self.live = self.model(), None
        self._begin()

    def importance(self, rounds: int) -> dict[str, float]:
        """How much each feature matters."""
        booster = lightgbm.Booster(model_str=self.model(rounds).decode())
        names = [name for name, _ in self.features.inputs] or [f"f{at}" for at in range(self.features.width)]
        scores = booster.feature_importance("gain")
        return {name: float(score) for name, score in zip(names, scores, strict=False) if score}


@contextlib.contextmanager
def said() -> Iterator[None]:
    """LightGBM's own errors as a Problem."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a Dataset has the bins of another one, which is what is asked for
            yield
    except (LightGBMError, ValueError) as error:
        raise Problem(f"LightGBM: {first_line(error)}") from error


def predictions(model: bytes, matrix: Any, features: Features, target: Target) -> Any:
    """What a model says of rows, as `matrix` of `Features` gives them. Raises Problem."""
    with said():
        return numpy.asarray(lightgbm.Booster(model_str=model.decode()).predict(matrix))
