"""Predicts from the nearest rows of a table, with scikit-learn, from hyperparameters alone.

    python knn.py --train rows.csv --k 5 --predictor_type classifier
    python knn.py --predict rows.csv --model_dir model

The hyperparameters are those of the platform's K-Nearest Neighbors.
"""

from __future__ import annotations

from _classic import Data, Fitted, Model, Program, Rows, behind, end_at_stop, plain, read_data, scaled
from _common import Problem, need

if __name__ == "__main__":
    end_at_stop()
    need(__file__)

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy
from _columns import Target
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

METRICS = {"L2": "euclidean", "COSINE": "cosine"}
OBJECTIVES = {"classifier": "multi:softprob", "regressor": "reg:squarederror"}


def fit(hp: Namespace) -> tuple[Data, Fitted]:
    """The rows to look in, measured on test. Raises Problem."""
    data = read_data(hp, usually=True, test_usually=True)
    table = data.train.table
    if table.target is None or not data.labelled:
        raise Problem("the channel train has no target to predict (label_size=0): it is the first column, or `target`")
    target = learned(hp, table)
    data = replace(data, train=sample(hp, data.train))
    count = data.train.count
    if hp.k > count:
        raise Problem(f"k is {hp.k}, and there are {count} rows to look in")
    print(f"keeping {count} rows of {data.train.values.shape[1]} features; target: {target.name}", flush=True)
    values, scaler = scaled(hp, data.train)
    kind = KNeighborsClassifier if hp.predictor_type == "classifier" else KNeighborsRegressor
    # By brute force: the trees that are quicker in few dimensions are of types that skops does not know.
    model = kind(hp.k, algorithm="brute", metric=METRICS[hp.index_metric]).fit(values, answers(target, data.train))
    estimator = behind(scaler, model)
    found = {}
    if data.test is not None:
        if data.test.table.target is None:
            raise Problem("the channel test has no target to compare with (label_size=0)")
        truth, guess = answers(target, data.test), estimator.predict(data.test.values)
        if hp.predictor_type == "classifier":
            found["test:accuracy"] = float((guess == truth).mean())
        else:
            found["test:mse"] = float(((guess - truth) ** 2).mean())
    return data, Fitted(estimator, found, {"target": target.plain()})


def learned(hp: Namespace, table: Any) -> Target:
    """What is predicted. Raises Problem."""
    name = table.target_name or "the first column"
    objective = OBJECTIVES[hp.predictor_type]
    if hp.predictor_type == "regressor":
        if table.target.dtype == object:
            row = next(row for row, value in enumerate(table.target) if isinstance(value, str))
            raise Problem(
                f"{table.place(row)}: the target ({name}) is {table.target[row][:40]!r}: a regressor predicts numbers; "
                "predictor_type classifier predicts texts"
            )
        return Target(name, objective)
    values = Target.values(table, objective)
    Target.require_several(name, values)
    return Target.of(name, objective, values, None)


def answers(target: Target, rows: Rows) -> Any:
    """float64 [rows]: labels of classes, or numbers. Raises Problem."""
    if target.objective == OBJECTIVES["classifier"]:
        return target.labels(rows.table, numpy.arange(rows.count)).astype(numpy.float64)
    if rows.table.target.dtype == object:
        raise Problem(f"{rows.table.place(0)}: the target ({target.name}) is text, and numbers in the channel train")
    return rows.table.target


def sample(hp: Namespace, rows: Rows) -> Rows:
    """As many rows as sample_size says, in their order."""
    if hp.sample_size is None or hp.sample_size >= rows.count:
        return rows
    order = numpy.sort(numpy.random.default_rng(hp.seed).permutation(rows.count)[: hp.sample_size])
    return Rows(rows.values[order], rows.table.take(order))


def said(hp: Namespace, model: Model, rows: Rows) -> Iterator[dict[str, Any]]:
    """{"class", "probability"}: the part of the neighbours that are of it; or {"prediction"}."""
    target = Target.of_plain(model.content["target"])
    if target.objective != OBJECTIVES["classifier"]:
        yield from ({"prediction": plain(value)} for value in model.estimator.predict(rows.values))
        return
    classes = model.estimator.classes_
    for parts in model.estimator.predict_proba(rows.values):
        best = int(parts.argmax())
        yield {"class": target.class_of(float(classes[best])), "probability": round(float(parts[best]), 6)}


KINDS = ("KNeighborsClassifier", "KNeighborsRegressor")
PROGRAM = Program(__file__, fit, said, KINDS, ("scipy.sparse._csr.csr_matrix",))
main = PROGRAM.main

if __name__ == "__main__":
    PROGRAM.run()
