"""Trees by CatBoost, for `_rounds.Training`, on one rank: its Python package has no training over several.

CatBoost trains in one call, which asks after each round whether to go on. That call runs in a thread which waits there.
What it goes on from is its own snapshot, written where it stops: with it a training ends as one that was never stopped.
"""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import catboost
import numpy
import scipy.sparse
from _columns import OF_CATBOOST, OF_XGBOOST, Features, Target
from _common import Problem
from _ring import Ring, first_line
from catboost import CatBoostError

FILE = "model.cbm"
NEVER = 10**9  # seconds between snapshots: one is written at the end of a call, and that is enough
NAMES = {
    "eta": "learning_rate", "max_depth": "depth", "lambda": "l2_leaf_reg", "max_bin": "border_count",
    "colsample_bylevel": "rsm",
    **{name: name for name in ("subsample", "scale_pos_weight", "min_data_in_leaf", "max_leaves", *OF_CATBOOST)},
}  # fmt: skip
NOT_SERVED = ("gamma", "alpha", "min_child_weight", "max_delta_step", "colsample_bytree", "colsample_bynode", "base_score",
              "num_parallel_tree", "tree_method", "rate_drop", "skip_drop", "one_drop", "sample_type", "normalize_type",
              "bagging_freq", *OF_XGBOOST)  # fmt: skip
GROWS = {"depthwise": "Depthwise", "lossguide": "Lossguide", "symmetric": "SymmetricTree"}
OBJECTIVES = {  # what CatBoost calls it, what is measured, and what its answers are
    "reg:squarederror": ("RMSE", "rmse", "RawFormulaVal"), "reg:absoluteerror": ("MAE", "mae", "RawFormulaVal"),
    "reg:pseudohubererror": ("Huber", "mae", "RawFormulaVal"), "reg:tweedie": ("Tweedie", "tweedie", "Exponent"),
    "count:poisson": ("Poisson", "poisson", "Exponent"), "reg:logistic": ("CrossEntropy", "logloss", "Probability"),
    "binary:logistic": ("Logloss", "logloss", "Probability"), "binary:logitraw": ("Logloss", "logloss", "RawFormulaVal"),
    "multi:softmax": ("MultiClass", "mlogloss", "Probability"), "multi:softprob": ("MultiClass", "mlogloss", "Probability"),
}  # fmt: skip
METRICS = {
    "rmse": "RMSE", "mae": "MAE", "mape": "MAPE", "logloss": "Logloss", "error": "ZeroOneLoss", "mlogloss": "MultiClass",
    "merror": "ZeroOneLoss", "auc": "AUC:hints=skip_train~false", "aucpr": "PRAUC:hints=skip_train~false",
    "poisson": "Poisson", "tweedie": "Tweedie", "r2": "R2",
}  # fmt: skip


class Engine:
    """CatBoost, as `_rounds.Engine` describes it. There is one rank."""

    name, version, file, kind = "catboost", catboost.__version__, FILE, "change of predictions"
    forgets = continues = False  # from a model CatBoost goes on, but then from no snapshot to the same end

    def prepare(self, hp: Namespace, target: Target, features: Features, ring: Ring) -> None:
        """Takes the settings. Raises Problem for what is not served."""
        if ring.world_size > 1:
            raise Problem("library catboost is for one rank: start one, or set library to xgboost or lightgbm")
        if hp.booster != "gbtree":
            raise Problem(f"booster {hp.booster} is XGBoost's: leave it out, or set library to xgboost")
        if hp.objective not in OBJECTIVES:
            raise Problem(f"objective {hp.objective} is not served with CatBoost: {', '.join(OBJECTIVES)}")
        if odd := sorted(set(NOT_SERVED) & hp.asked):
            raise Problem(f"{', '.join(odd)}: CatBoost has no such thing: leave it out, or set library to xgboost")
        if "max_depth" in hp.asked and not 1 <= hp.max_depth <= 16:
            raise Problem(f"max_depth is {hp.max_depth}: CatBoost needs 1 to 16")
        loss, usual, _ = OBJECTIVES[hp.objective]
        self.names = list(hp.eval_metric or [usual])
        if unknown := [one for one in self.names if one not in METRICS]:
            raise Problem(f"eval_metric {unknown[0]} is not served with CatBoost: {', '.join(METRICS)}")
        more = {"Tweedie": f":variance_power={hp.tweedie_variance_power}", "Huber": f":delta={hp.huber_slope}"}
        spoken = {name: METRICS[name] + more.get(METRICS[name], "") for name in self.names}
        if usual == "logloss" and loss == "CrossEntropy" and "logloss" in spoken:
            spoken["logloss"] = loss  # of labels between 0 and 1
        self.spoken = spoken
        given = {theirs: getattr(hp, ours) for ours, theirs in NAMES.items() if ours in hp.asked}
        if "grow_policy" in hp.asked:
            given["grow_policy"] = GROWS[hp.grow_policy]
        if loss == "MultiClass":
            given["classes_count"] = target.count
        self.settings = {
            **given, "loss_function": loss + more.get(loss, ""), "custom_metric": list(spoken.values()),
            "iterations": hp.num_round, "random_seed": hp.seed, "use_best_model": False,
        }  # fmt: skip
        self.threads = hp.nthread or int(os.environ.get("OMP_NUM_THREADS") or 0) or os.cpu_count() or 1
        self.features, self.silent = features, hp.verbosity < 2

    def facts(self) -> dict[str, Any]:
        """The settings that must be the same when training goes on: the rounds too, as the usual eta depends on them."""
        return {"library": self.name, **self.settings}

    def matrix(self, features: Any, labels: Any, weights: Any, bins_of: Any = None, plain: bool = False) -> Any:
        """Rows as CatBoost takes them. Raises Problem."""
        with said():
            return catboost.Pool(taken(features, self.features), labels, weight=weights)

    def mark(self, matrix: Any, extra: dict[str, Any]) -> None:
        """Nothing: objectives with groups, or with an upper end, are not served."""

    def start(self, model: bytes, train: Any, matrices: list[tuple[Any, str]], ring: Ring) -> None:
        """Begins with what `state` gave, or with nothing. Raises Problem."""
        self.folder = tempfile.TemporaryDirectory(prefix="catboost-")
        self.snapshot = Path(self.folder.name, "snapshot")
        self.data = train, [data for data, name in matrices if name == "validation"]
        self.live: _Training | None = None
        self.grown: Any = None
        if model:
            end = 8 + int.from_bytes(model[:8], "big")
            self.grown = loaded(model[8:end])
            self.snapshot.write_bytes(model[end:])

    def update(self, at: int) -> None:
        """Grows the tree of a round. Raises Problem."""
        with said():
            if self.live is None:
                self.live = _Training(self._fitted)
            self.values = self.live.round()

    def _fitted(self, asked: Any) -> Any:
        train, validation = self.data
        told = {**self.settings, "thread_count": self.threads, "train_dir": self.folder.name}
        made = catboost.CatBoost({**told, "logging_level": "Silent" if self.silent else "Info"})
        made.fit(train, eval_set=validation or None, callbacks=[asked], save_snapshot=True,
                 snapshot_file=str(self.snapshot), snapshot_interval=NEVER)  # fmt: skip
        return made

    def measured(self, matrices: list[tuple[Any, str]], at: int) -> dict[str, float]:
        """Metrics of the trees up to a round."""
        values: dict[str, float] = {}
        for data, name in matrices:
            if name == "test":  # once, of the model that is written
                with said():
                    ended = loaded(self.model(at + 1))
                    found = ended.eval_metrics(data, list(self.spoken.values()), eval_period=at + 1)
                    found = {metric: every[-1] for metric, every in found.items()}
            else:
                found = {metric: every[-1] for metric, every in self.values[THEIRS[name]].items()}
            by_name = {metric.partition(":")[0]: value for metric, value in found.items()}
            for ours, theirs in self.spoken.items():
                values[f"{name}-{ours}"] = float(by_name[theirs.partition(":")[0]])
        return values

    def state(self) -> bytes:
        """The size of the model, the model, and the snapshot, which CatBoost writes where it is stopped."""
        model = self.model()
        return len(model).to_bytes(8, "big") + model + self.snapshot.read_bytes()

    def _stop(self) -> None:
        if self.live is not None:
            with said():
                self.grown, self.live = self.live.stopped(), None

    def model(self, rounds: int = 0) -> bytes:
        """In CatBoost's own format."""
        self._stop()
        with said(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder, FILE)
            self.grown.save_model(str(path))
            if rounds and rounds < self.grown.tree_count_:
                cut = loaded(path.read_bytes())
                cut.shrink(rounds)
                cut.save_model(str(path))
            return path.read_bytes()

    def reset(self) -> None:
        """There is nothing to forget: it is all in the snapshot."""

    def importance(self, rounds: int) -> dict[str, float]:
        """How much each feature matters."""
        scores = loaded(self.model(rounds)).get_feature_importance()
        own = self.features
        names = [*numbers_of(own), *own.categories] if own.columns else [f"f{at}" for at in range(own.width)]
        return {name: float(score) for name, score in zip(names, scores, strict=False) if score}


THEIRS = {"train": "learn", "validation": "validation"}


class _Training:
    """A call of CatBoost that waits after each round."""

    def __init__(self, fit: Any) -> None:
        self.goes_on, self.turn, self.heard = True, threading.Semaphore(0), queue.SimpleQueue[Any]()
        self.result: Any = None
        self.thread = threading.Thread(target=self._run, args=(fit,), daemon=True)

    def _run(self, fit: Any) -> None:
        try:
            self.result = fit(self)
            self.heard.put(CatBoostError("it grew no further tree"))
        except Exception as error:
            self.result = error
            self.heard.put(error)

    def after_iteration(self, info: Any) -> bool:
        """What CatBoost calls."""
        self.heard.put(info.metrics)
        self.turn.acquire()
        return self.goes_on

    def round(self) -> Any:
        """The metrics of one more round. Raises what CatBoost raises."""
        if self.thread.ident is None:
            self.thread.start()
        else:
            self.turn.release()
        heard = self.heard.get()
        if isinstance(heard, Exception):
            raise heard
        return heard

    def stopped(self) -> Any:
        """What CatBoost has made so far. Raises what CatBoost raises."""
        self.goes_on = False
        self.turn.release()
        self.thread.join()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def numbers_of(features: Features) -> list[str]:
    """The columns that are no texts."""
    return [name for name, column in features.inputs if column not in features.categories]


def taken(matrix: Any, features: Features) -> Any:
    """float32 [rows, columns] of `Features.matrix`, or csr, as CatBoost takes it: numbers first, then texts."""
    if scipy.sparse.issparse(matrix) or not features.categories:
        return matrix
    at = {name: place for place, (name, _) in enumerate(features.inputs)}
    numbers = [at[name] for name in numbers_of(features)]
    texts = matrix[:, [at[name] for name in features.categories]]
    return catboost.FeaturesData(
        num_feature_data=numpy.ascontiguousarray(matrix[:, numbers], dtype=numpy.float32) if numbers else None,
        cat_feature_data=numpy.array([[f"{value:.0f}".encode() for value in row] for row in texts], dtype=object),
    )


@contextlib.contextmanager
def said() -> Iterator[None]:
    """CatBoost's own errors as a Problem."""
    try:
        yield
    except (CatBoostError, ValueError) as error:
        raise Problem(f"CatBoost: {first_line(error)}") from error


def loaded(model: bytes) -> Any:
    """The model. Raises Problem."""
    with said():
        return catboost.CatBoost().load_model(blob=model)


def predictions(model: bytes, matrix: Any, features: Features, target: Target) -> Any:
    """What a model says of rows, as `matrix` of `Features` gives them. Raises Problem."""
    kind = OBJECTIVES[target.objective][2]
    with said():
        found = numpy.asarray(loaded(model).predict(taken(matrix, features), prediction_type=kind))
    return found[:, 1] if kind == "Probability" and not target.objective.startswith("multi:") else found
