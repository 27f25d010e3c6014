"""What XGBoost's users measure: its own metrics by name, and those of the platform's image, by scikit-learn."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy
from _common import Problem

XGBOOST = (
    "rmse", "rmsle", "mae", "mape", "mphe", "logloss", "error", "merror", "mlogloss", "auc", "aucpr", "pre", "ndcg", "map",
    "poisson-nloglik", "gamma-nloglik", "cox-nloglik", "gamma-deviance", "tweedie-nloglik", "aft-nloglik",
    "interval-regression-accuracy", "quantile", "expectile",
)  # fmt: skip
OF_CLASSES = ("accuracy", "balanced_accuracy", "f1", "f1_binary", "f1_macro", "precision", "precision_macro",
              "precision_micro", "recall", "recall_macro", "recall_micro")  # fmt: skip
OF_NUMBERS = ("mse", "r2")
OURS = (*OF_CLASSES, *OF_NUMBERS)
HIGHER_IS_BETTER = (*OF_CLASSES, "r2", "auc", "aucpr", "map", "ndcg", "pre", "interval-regression-accuracy")
WITH_A_NUMBER = ("error", "map", "ndcg", "pre", "tweedie-nloglik")  # behind @
OF_ORDER = ("auc", "aucpr")  # measured where there are classes or groups alone
AVERAGES = {"f1": "macro", "f1_binary": "binary", "precision": "binary", "recall": "binary"}  # else by the name's end


def require_known(names: Sequence[str]) -> None:
    """Raises Problem for a metric that XGBoost has not, before data is read."""
    for name in names:
        bare = name.partition("@")[0].removesuffix("-")
        if bare not in (*XGBOOST, *OURS):
            near = difflib.get_close_matches(bare, (*XGBOOST, *OURS), n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join((*XGBOOST, *OURS))
            raise Problem(f"eval_metric {name} is not a metric of XGBoost: {hint}")
        if "@" in name and bare not in WITH_A_NUMBER:
            raise Problem(f"eval_metric {name}: {bare} takes no number behind @, as {', '.join(WITH_A_NUMBER)} do")


def require_fit(names: Sequence[str], objective: str, classes: int) -> None:
    """Raises Problem for a metric that an objective's answers cannot be measured by."""
    for name in names:
        bare = name.partition("@")[0].removesuffix("-")
        of_classes = bare in (*OF_CLASSES, *OF_ORDER)
        ordered = bare in OF_ORDER and objective.startswith(("rank:", "reg:logistic"))
        if of_classes and not (classes or ordered):
            raise Problem(f"eval_metric {name} measures classes, and {objective} has none")
        if bare in OF_NUMBERS and classes > 2:
            raise Problem(f"eval_metric {name} measures numbers, and {objective} has classes")
        if bare in ("f1_binary", "precision", "recall") and classes > 2:
            raise Problem(f"eval_metric {name} is for two classes: take {name.partition('_')[0]}_macro or {name}_micro")
        if bare == "aft-nloglik" and objective != "survival:aft":
            raise Problem(f"eval_metric {name} is of survival:aft, not of {objective}")


def measured(name: str, labels: Any, answers: Any, objective: str) -> float:
    """One of `OURS`. answers: of `Booster.predict`."""
    if name in OF_CLASSES:
        return float(_measure(name)(labels, classes_of(answers, objective)))
    return float(_measure(name)(labels, answers))


JUDGES = {  # of objectives that every library serves, and of some that most do
    "reg:squarederror": "rmse", "reg:pseudohubererror": "mae", "reg:absoluteerror": "mae", "count:poisson": "rmse",
    "reg:gamma": "rmse", "reg:tweedie": "rmse", "binary:logistic": "logloss", "multi:softprob": "mlogloss",
}  # fmt: skip


def judge_of(objective: str, names: Sequence[str] | None) -> str:
    """The metric by which libraries are compared: the last of eval_metric, else the usual one. Raises Problem."""
    if objective not in JUDGES:
        raise Problem(f"library auto does not compare {objective}: {', '.join(JUDGES)}")
    name = names[-1] if names else JUDGES[objective]
    classes = {"binary:logistic": ("logloss", "error", "auc"), "multi:softprob": ("mlogloss", "merror")}
    served = classes.get(objective, ("rmse", "mae"))
    if name not in served:
        raise Problem(f"library auto compares by {', '.join(served)}, not by eval_metric {name}")
    return name


def judged(name: str, labels: Any, answers: Any, weights: Any, classes: int) -> float:
    """A metric of `judge_of`. answers: numbers, of two classes the second one's probability, of more [rows, classes]."""
    from sklearn import metrics

    if name in ("error", "merror"):
        wrong = classes_of(answers, "") != labels
        return float(numpy.average(wrong, weights=weights))
    if name in ("logloss", "mlogloss"):
        return float(metrics.log_loss(labels, answers, labels=list(range(classes)), sample_weight=weights))
    by_name = {"rmse": metrics.root_mean_squared_error, "mae": metrics.mean_absolute_error, "auc": metrics.roc_auc_score}
    return float(by_name[name](labels, answers, sample_weight=weights))


def classes_of(answers: Any, objective: str) -> Any:
    """The class that each answer of a model is."""
    if answers.ndim > 1:
        return answers.argmax(axis=1)
    if objective.startswith("multi:"):
        return answers
    return answers > (0.0 if objective == "binary:logitraw" else 0.5)


def _measure(name: str) -> Callable[[Any, Any], float]:
    from sklearn import metrics

    plain = {"accuracy": metrics.accuracy_score, "balanced_accuracy": metrics.balanced_accuracy_score,
             "mse": metrics.mean_squared_error, "r2": metrics.r2_score}  # fmt: skip
    if name in plain:
        found: Callable[[Any, Any], float] = plain[name]
        return found
    kind, _, average = name.partition("_")
    by_kind = {"f1": metrics.f1_score, "precision": metrics.precision_score, "recall": metrics.recall_score}
    return partial(by_kind[kind], average=AVERAGES.get(name, average), zero_division=0)


def whole(parts: Sequence[Any]) -> tuple[Any, Any]:
    """Labels and answers of all ranks as one."""
    labels, answers = zip(*parts, strict=True)
    return numpy.concatenate(labels), numpy.concatenate(answers)
