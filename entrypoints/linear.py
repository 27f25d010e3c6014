"""Fits a linear or logistic model to tables, with scikit-learn, by the names of the platform's Linear Learner.

    python linear.py --train adult.csv --predictor_type binary_classifier --target income
    python linear.py --predict rows.csv --model_dir model

It is tabular.py with the library linear, whose models these are: the optimum is found by a solver, and not by steps of
gradients. So hyperparameters about how to get there are taken, and said not to be used.
"""

from __future__ import annotations

from _common import CHECK, Parser, Problem, need, run

from trainshed.checkpoint import CheckpointError, listen

if __name__ == "__main__":
    listen()
    need(__file__)

import sys
from argparse import Namespace
from collections.abc import Sequence

import tabular
from _linear import Engine, Taken
from _ring import Ring
from _rounds import Training

KINDS = {  # of predictor_type: the loss, the objective, and what is measured
    "regressor": ("squared_loss", "reg:squarederror", "mae,rmse"),
    "binary_classifier": ("logistic", "binary:logistic", "error,logloss"),
    "multiclass_classifier": ("softmax_loss", "multi:softprob", "merror,mlogloss"),
}
EQUAL = ("balanced", "auto")  # of positive_example_weight_mult: both classes weigh the same
SAME = ("csv_weights", "target", "weight", "ignore_columns", "categorical_columns", "validation_fraction", "seed", "train",
        "validation", "test", "model_dir", "output_data_dir", "checkpoint_dir", "predict")  # fmt: skip


def hyperparameters(argv: Sequence[str]) -> tuple[Namespace, Taken]:
    """Reads the command line: what tabular.py would be told, and what it takes for granted. Raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    if hp.predictor_type is None and not hp.predict:
        raise Problem(f"predictor_type is missing: one of {', '.join(KINDS)}")
    loss, objective, measures = KINDS[hp.predictor_type or "regressor"]
    if hp.loss not in ("auto", loss):
        raise Problem(f"loss {hp.loss} is not served with {hp.predictor_type}: {loss}, or auto")
    for name, kind in (("num_classes", "multiclass"), ("balance_multiclass_weights", "multiclass")):
        if getattr(hp, name) and not (hp.predictor_type or "").startswith(kind):
            raise Problem(f"{name} is of multiclass_classifier, not of {hp.predictor_type}: leave it out")
    if hp.positive_example_weight_mult != 1 and hp.predictor_type != "binary_classifier":
        raise Problem(f"positive_example_weight_mult is of binary_classifier, not of {hp.predictor_type}: leave it out")

    told = {"library": "linear", "objective": objective, "eval_metric": measures, "num_round": hp.epochs}
    penalised = not (hp.wd == hp.l1 == "auto")
    if penalised:
        told |= {"lambda": 0 if hp.wd == "auto" else hp.wd, "alpha": 0 if hp.l1 == "auto" else hp.l1}
    if hp.positive_example_weight_mult not in EQUAL:
        told["scale_pos_weight"] = hp.positive_example_weight_mult
    if hp.num_classes:
        told["num_class"] = hp.num_classes
    for name in SAME:
        value = getattr(hp, name)
        told[name] = ",".join(value) if isinstance(value, tuple) else value
    taken = Taken(
        per_row=penalised,
        scale=hp.normalize_data != "false",
        centre=(hp.normalize_data if hp.unbias_data == "auto" else hp.unbias_data) != "false",
        intercept=hp.use_bias,
        balanced=hp.balance_multiclass_weights or hp.positive_example_weight_mult in EQUAL,
        columns=None if hp.feature_dim == "auto" else hp.feature_dim,
    )
    words = [f"--{name}={value}" for name, value in told.items() if value is not None]
    return tabular.hyperparameters([*words, *([CHECK] if hp.check_data else [])]), taken


def main() -> None:
    """The command line."""
    hp, taken = hyperparameters(sys.argv[1:])
    try:
        if hp.predict:
            tabular.predict(hp)
            return
        ring = Ring()
        Training(hp, ring, Engine(taken), "linear").run()
        ring.leave()
    except CheckpointError as error:
        raise Problem(str(error)) from error


if __name__ == "__main__":
    run(main)
