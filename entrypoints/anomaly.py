"""Finds anomalies in tables, with scikit-learn's isolation forest, from hyperparameters alone.

    python anomaly.py --train rows.csv
    python anomaly.py --predict rows.csv --model_dir model

The hyperparameters are those of the platform's Random Cut Forest. A score is between 0 and 1, and the higher, the fewer cuts
part a row from the others ("Isolation Forest", Liu, Ting and Zhou 2008).
"""

from __future__ import annotations

from _classic import Data, Fitted, Model, Program, Rows, behind, chosen, end_at_stop, plain, read_data, scaled
from _common import Problem, need

if __name__ == "__main__":
    end_at_stop()
    need(__file__)

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy
from sklearn.ensemble import IsolationForest

MEASURES = ("accuracy", "precision_recall_fscore")
DEVIATIONS = 3  # above the mean score of the training rows
CLOSE = 1e-9  # scores of rows that are alike differ by less


def fit(hp: Namespace) -> tuple[Data, Fitted]:
    """A forest for the channel train, measured on the labels of test. Raises Problem."""
    measures = chosen(hp.eval_metrics, MEASURES, "eval_metrics") or MEASURES
    data = read_data(hp, usually=False, test_usually=True)
    count = data.train.count
    if count < 2:
        raise Problem("the channel train has one row: nothing to compare it with")
    truth = None if data.test is None else labels(data.test)
    print(f"growing {hp.num_trees} trees on {count} rows of {data.train.values.shape[1]} features", flush=True)
    values, scaler = scaled(hp, data.train)
    model = IsolationForest(
        n_estimators=hp.num_trees, max_samples=min(count, hp.num_samples_per_tree), random_state=hp.seed
    ).fit(values)
    estimator = behind(scaler, model)
    scores = -estimator.score_samples(data.train.values)
    if hp.contamination is None:
        threshold = float(scores.mean() + DEVIATIONS * scores.std()) + CLOSE
    else:
        threshold = float(numpy.quantile(scores, 1 - hp.contamination)) + CLOSE
    found = {"train:anomalies": float((scores > threshold).sum()), "train:mean_score": float(scores.mean())}
    if data.test is not None:
        found |= compared(-estimator.score_samples(data.test.values) > threshold, truth, measures)
    return data, Fitted(estimator, found, {"threshold": threshold})


def labels(test: Rows) -> Any:
    """Whether each row is an anomaly, as the target says: 1 or 0. Raises Problem."""
    values = test.table.target
    if values is None:
        raise Problem("the channel test has no labels, and is there to be compared with them: 1 an anomaly, 0 none")
    for row, value in enumerate(values.tolist()):
        if value not in (0.0, 1.0):
            raise Problem(f"{test.table.place(row)}: the label is {value!r:.40}, and must be 1 (an anomaly) or 0")
    return values == 1.0


def compared(guess: Any, truth: Any, measures: tuple[str, ...]) -> dict[str, float]:
    """What eval_metrics asks for; 0 where there is nothing to divide by."""
    right, said, there = int((guess & truth).sum()), int(guess.sum()), int(truth.sum())
    found = {"test:accuracy": float((guess == truth).mean())} if "accuracy" in measures else {}
    if "precision_recall_fscore" in measures:
        found["test:precision"] = right / said if said else 0.0
        found["test:recall"] = right / there if there else 0.0
        found["test:f1"] = 2 * right / (said + there) if said + there else 0.0
    return found


def said(hp: Namespace, model: Model, rows: Rows) -> Iterator[dict[str, Any]]:
    """{"score", "anomaly"}."""
    threshold = float(model.content["threshold"])
    for score in -model.estimator.score_samples(rows.values):
        yield {"score": plain(score), "anomaly": bool(score > threshold)}


PROGRAM = Program(__file__, fit, said, ("IsolationForest",), ("sklearn.tree._tree.Tree",))
main = PROGRAM.main

if __name__ == "__main__":
    PROGRAM.run()
