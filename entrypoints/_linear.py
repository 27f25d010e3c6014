"""A linear model by scikit-learn, for `_rounds.Training`: one fit, which is one round.

Numbers are scaled and their gaps filled with means; a text is a column for each of its values. The model is a Pipeline of
scikit-learn, in the format of skops, which runs no code when it is loaded.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy
import scipy.sparse
import skops.io
from _columns import OF_CATBOOST, OF_XGBOOST, Features, Target
from _common import Problem
from _ring import Ring, first_line
from sklearn import __version__ as version
from sklearn import linear_model, metrics
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.class_weight import compute_sample_weight

FILE = "model.skops"
# What scikit-learn's estimators are made of that skops does not know: plain numbers of a library.
TRUSTED = ("sklearn._loss.link.", "sklearn._loss.loss.", "sklearn._loss._loss.", "sklearn.compose._column_transformer.",
           "numpy.dtype", "sklearn.linear_model._glm.", "scipy.sparse._")  # fmt: skip
SERVED = {
    "reg:squarederror": "rmse", "reg:pseudohubererror": "mae", "count:poisson": "rmse", "reg:gamma": "rmse",
    "reg:tweedie": "rmse", "binary:logistic": "logloss", "multi:softprob": "mlogloss", "multi:softmax": "mlogloss",
}  # fmt: skip
TREES = {
    "eta", "gamma", "max_depth", "max_leaves", "grow_policy", "min_child_weight", "max_delta_step", "subsample", "max_bin",
    "colsample_bytree", "colsample_bylevel", "colsample_bynode", "num_parallel_tree", "tree_method", "rate_drop", "booster",
    "early_stopping_rounds", "min_data_in_leaf", "bagging_freq", "huber_slope", "base_score",
    *OF_XGBOOST, *OF_CATBOOST,
}  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """What tabular.py takes for granted and linear.py lets one choose.

    per_row: whether penalties count against the mean loss of rows, not their sum. scale, centre: numbers before the fit.
    intercept: whether there is one. balanced: whether all classes weigh the same. columns: how many there must be, if said.
    """

    per_row: bool = False
    scale: bool = True
    centre: bool = True
    intercept: bool = True
    balanced: bool = False
    columns: int | None = None


class Engine:
    """scikit-learn, as `_rounds.Engine` describes it. There is one rank."""

    name, version, file, kind = "linear", version, FILE, "size of coefficients"
    forgets = continues = False
    fitted: Any

    def __init__(self, taken: Taken = Taken()) -> None:
        self.taken = taken

    def prepare(self, hp: Namespace, target: Target, features: Features, ring: Ring) -> None:
        """Takes the settings. Raises Problem for what is not served."""
        if ring.world_size > 1:
            raise Problem("library linear is for one rank: start one, or take booster gblinear of XGBoost")
        if odd := sorted(TREES & hp.asked):
            raise Problem(f"{', '.join(odd)}: a linear model has no such thing: leave it out")
        if hp.objective not in SERVED:
            raise Problem(f"objective {hp.objective} is not served with library linear: {', '.join(SERVED)}")
        self.names = list(hp.eval_metric or [SERVED[hp.objective]])
        number = target.count == 0
        known: tuple[str, ...] = ("rmse", "mae") if number else ("mlogloss", "merror")
        if hp.objective == "binary:logistic":
            known = ("logloss", "error", "auc")
        if wrong := [name for name in self.names if name not in known]:
            raise Problem(f"eval_metric {wrong[0]} is not served with {hp.objective} and linear: {', '.join(known)}")
        there = features.width or len(features.columns)
        if self.taken.columns not in (None, there):
            raise Problem(f"feature_dim is {self.taken.columns}, but the data has {there} columns of features")
        self.hp, self.target, self.features, self.fitted = hp, target, features, None
        hp.num_round, self.steps = 1, hp.num_round

    def facts(self) -> dict[str, Any]:
        """The settings that must be the same when training goes on."""
        hp = self.hp
        given = {name: getattr(hp, name) for name in ("objective", "lambda", "alpha", "scale_pos_weight", "seed")}
        chosen = {} if self.taken == Taken() else {"taken": asdict(self.taken)}
        return {"library": self.name, "steps": self.steps, **chosen, **given}

    def matrix(self, features: Any, labels: Any, weights: Any, bins_of: Any = None, plain: bool = False) -> Any:
        """Rows as scikit-learn takes them."""
        return features.astype(numpy.float64), labels.astype(numpy.float64), weights

    def mark(self, matrix: Any, extra: dict[str, Any]) -> None:
        """Nothing: objectives with groups, or with an upper end, are not served."""

    def start(self, model: bytes, train: Any, matrices: list[tuple[Any, str]], ring: Ring) -> None:
        """Begins with a model, or with none. Raises Problem."""
        self.train = train
        if model:
            self.fitted = loaded(model)

    def update(self, at: int) -> None:
        """The fit."""
        features, labels, weights = self.train
        if self.target.count and len(numpy.unique(labels)) < 2:
            raise Problem(f"the target ({self.target.name}) has one class in the rows to learn from")
        if self.target.count and self.hp.scale_pos_weight != 1 and self.target.count == 2:
            weights = (numpy.ones(len(labels)) if weights is None else weights) * numpy.where(
                labels == 1, self.hp.scale_pos_weight, 1.0
            )
        if self.target.count and self.taken.balanced:
            weights = (1.0 if weights is None else weights) * compute_sample_weight("balanced", labels)
        estimator = self._estimator()
        made = make_pipeline(self._prepared(features), estimator)
        with said(), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            made.fit(features, labels, **({} if weights is None else {f"{made.steps[-1][0]}__sample_weight": weights}))
        if any(issubclass(one.category, ConvergenceWarning) for one in found):
            print(f"the solver had not settled after {self.steps} steps: give num_round more", flush=True)
        self.fitted = made
        if not all(numpy.isfinite(part).all() for part in (estimator.coef_, estimator.intercept_)):
            raise Problem("the coefficients are no finite numbers: look for columns with huge values")

    def _prepared(self, features: Any) -> Any:
        scale, centre = self.taken.scale, self.taken.centre
        if scipy.sparse.issparse(features):
            return StandardScaler(with_mean=False, with_std=scale)
        of_text = self.features.of_text
        numbers = [at for at in range(features.shape[1]) if at not in of_text]
        ways = []
        if numbers:
            scaler = StandardScaler(with_mean=centre, with_std=scale)
            ways.append(("numbers", make_pipeline(SimpleImputer(keep_empty_features=True), scaler), numbers))
        if of_text:
            ways.append(("texts", OneHotEncoder(handle_unknown="ignore"), of_text))
        return ColumnTransformer(ways)

    def _estimator(self) -> Any:
        """As the objective and the two penalties say; lambda 1 and alpha 0 are what is usual for both."""
        hp, steps = self.hp, self.steps
        l2, l1 = 1.0 if getattr(hp, "lambda") is None else getattr(hp, "lambda"), hp.alpha
        if self.taken.per_row:
            l2, l1 = l2 * self.train[0].shape[0], l1 * self.train[0].shape[0]
        bias = {"fit_intercept": self.taken.intercept}
        if hp.objective == "reg:squarederror":
            if not l1:
                return linear_model.Ridge(alpha=l2, **bias)
            total = (l1 + l2) / self.train[0].shape[0]
            return linear_model.ElasticNet(alpha=total, l1_ratio=l1 / (l1 + l2), max_iter=steps * 10, **bias)
        if hp.objective.startswith(("binary:", "multi:")):
            strength = l1 + l2
            more = {"solver": "saga", "l1_ratio": l1 / strength, "random_state": hp.seed, **bias} if l1 else bias
            return linear_model.LogisticRegression(C=1 / strength if strength else math.inf, max_iter=steps, **more)
        if l1:
            raise Problem(f"alpha is served with reg:squarederror, binary:logistic and multi:softprob, not {hp.objective}")
        strength = l2 / self.train[0].shape[0]
        if hp.objective == "reg:pseudohubererror":
            return linear_model.HuberRegressor(alpha=strength, max_iter=steps, **bias)
        power = {"count:poisson": 1.0, "reg:gamma": 2.0}.get(hp.objective, hp.tweedie_variance_power)
        return linear_model.TweedieRegressor(power=power, link="log", alpha=strength, max_iter=steps, **bias)

    def measured(self, matrices: list[tuple[Any, str]], at: int) -> dict[str, float]:
        """Metrics by name."""
        values: dict[str, float] = {}
        for (features, labels, weights), data in matrices:
            with said(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers = _answers(self.fitted, features, self.target.count)
                for name in self.names:
                    values[f"{data}-{name}"] = float(_metric(name, labels, answers, weights, self.target.count))
        return values

    def model(self, rounds: int = 0) -> bytes:
        """As skops has it."""
        return bytes(skops.io.dumps(self.fitted)) if self.fitted is not None else b""

    def state(self) -> bytes:
        """The model: there is nothing else to go on from."""
        return self.model()

    def reset(self) -> None:
        """There is nothing to forget."""

    def importance(self, rounds: int) -> dict[str, float]:
        """The largest coefficient of each column."""
        size = numpy.abs(numpy.atleast_2d(self.fitted[-1].coef_)).max(axis=0)
        if isinstance(self.fitted[0], StandardScaler):
            return {f"f{at}": float(value) for at, value in enumerate(size)}
        names = [name for name, _ in self.features.inputs]
        found: dict[str, float] = {}
        for way, value in zip(self.fitted[0].get_feature_names_out(), size, strict=True):
            column = names[int(way.partition("__")[2][1:].partition("_")[0])]
            found[column] = max(found.get(column, 0.0), float(value))
        return found


def _answers(fitted: Any, features: Any, classes: int) -> Any:
    """A number a row, or [rows, classes] of probabilities."""
    if not classes:
        return fitted.predict(features)
    known, made = fitted[-1].classes_.astype(int), numpy.zeros((features.shape[0], classes))
    made[:, known] = fitted.predict_proba(features)
    return made


def _metric(name: str, labels: Any, answers: Any, weights: Any, classes: int) -> float:
    if name == "rmse":
        return metrics.root_mean_squared_error(labels, answers, sample_weight=weights)
    if name == "mae":
        return metrics.mean_absolute_error(labels, answers, sample_weight=weights)
    if name == "auc":
        return metrics.roc_auc_score(labels, answers[:, 1], sample_weight=weights)
    if name in ("error", "merror"):
        return 1 - metrics.accuracy_score(labels, answers.argmax(axis=1), sample_weight=weights)
    return metrics.log_loss(labels, answers, labels=list(range(classes)), sample_weight=weights)


@contextlib.contextmanager
def said() -> Iterator[None]:
    """scikit-learn's own errors as a Problem."""
    try:
        with numpy.errstate(all="ignore"):
            yield
    except (ValueError, ArithmeticError, numpy.linalg.LinAlgError) as error:
        raise Problem(f"scikit-learn: {first_line(error)}") from error


def loaded(model: bytes) -> Any:
    """The Pipeline. Raises Problem."""
    try:
        odd = skops.io.get_untrusted_types(data=model)
        if strange := [name for name in odd if not name.startswith(TRUSTED)]:
            raise Problem(f"the model holds {strange[0]}, which is none of scikit-learn's linear models: it is not loaded")
        fitted = skops.io.loads(model, trusted=odd)
    except Problem:
        raise
    except Exception as error:  # of zip files, JSON and skops
        raise Problem(f"the model cannot be loaded: {first_line(error)}") from error
    return fitted


def predictions(model: bytes, matrix: Any, features: Features, target: Target) -> Any:
    """What a model says of rows, as XGBoost would: of binary:logistic the second class's probability. Raises Problem."""
    fitted = loaded(model)
    with said():
        found = _answers(fitted, matrix.astype(numpy.float64), target.count)
    return found[:, 1] if target.objective == "binary:logistic" else found
