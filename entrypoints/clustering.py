"""Finds clusters in tables, with scikit-learn's K-Means, from hyperparameters alone.

    python clustering.py --train rows.csv --k 10
    python clustering.py --predict rows.csv --model_dir model

The hyperparameters are those of the platform's K-Means, and so is the way: mini-batches find more centres than are wanted
("Web-Scale K-Means Clustering", Sculley 2010), and Lloyd's algorithm makes `k` clusters out of these.
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
from sklearn.cluster import KMeans, MiniBatchKMeans

MEASURES = ("msd", "ssd")
MOST_EXTRA = 10  # centres for each cluster that is wanted
BEGIN = {"random": "random", "kmeans++": "k-means++", "k-means++": "k-means++"}  # the platform's names, scikit-learn's


def whole(hp: Namespace, name: str) -> int | None:
    """A number from 1, or None for `auto`. Raises Problem."""
    text = str(getattr(hp, name)).strip()
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise Problem(f"hyperparameter {name}: {text!r} is neither auto nor a whole number from 1")
    return int(text)


def fit(hp: Namespace) -> tuple[Data, Fitted]:
    """Clusters of the channel train, measured there and on test. Raises Problem."""
    measures = chosen(hp.eval_metrics, MEASURES, "eval_metrics") or ("msd",)
    factor, trials = whole(hp, "extra_center_factor"), whole(hp, "local_lloyd_num_trials")
    data = read_data(hp, usually=False, test_usually=False)
    count = data.train.count
    if hp.k > count:
        raise Problem(f"k is {hp.k}, and the channel train has {count} rows")
    print(f"finding {hp.k} clusters of {count} rows of {data.train.values.shape[1]} features", flush=True)
    values, scaler = scaled(hp, data.train)
    first = MiniBatchKMeans(
        n_clusters=min(count, hp.k * (factor or MOST_EXTRA)),
        init=BEGIN[hp.init_method],
        batch_size=hp.mini_batch_size,
        max_iter=hp.epochs,
        random_state=hp.seed,
    ).fit(values)
    centres, weights = weighed(first, values, hp.k)
    model = KMeans(
        n_clusters=hp.k,
        init=BEGIN[hp.local_lloyd_init_method],
        n_init=trials or "auto",
        max_iter=hp.local_lloyd_max_iter,
        tol=hp.local_lloyd_tol,
        random_state=hp.seed,
    ).fit(centres, sample_weight=weights)
    model.labels_ = numpy.arange(hp.k, dtype=numpy.int32)  # those of the centres above mean nothing to anybody
    estimator = behind(scaler, model)
    found: dict[str, float] = {}
    for name, rows in (("train", data.train), ("test", data.test)):
        if rows is not None:
            total = -float(estimator.score(rows.values))
            found |= {f"{name}:{one}": total if one == "ssd" else total / rows.count for one in measures}
    return data, Fitted(estimator, found)


def weighed(first: Any, values: Any, k: int) -> tuple[Any, Any]:
    """The centres that have rows, with how many they have; at least `k`, which needs some without if rows are alike."""
    counts = numpy.bincount(first.predict(values), minlength=len(first.cluster_centers_))
    kept = numpy.argsort(-counts, kind="stable")[: max(k, int((counts > 0).sum()))]
    return first.cluster_centers_[kept], numpy.maximum(counts[kept], 1).astype(numpy.float64)


def said(hp: Namespace, model: Model, rows: Rows) -> Iterator[dict[str, Any]]:
    """{"cluster", "distance"}: the nearest, counted from 0, and how far its centre is."""
    for distances in model.estimator.transform(rows.values):
        cluster = int(distances.argmin())
        yield {"cluster": cluster, "distance": plain(distances[cluster])}


PROGRAM = Program(__file__, fit, said, ("KMeans",))
main = PROGRAM.main

if __name__ == "__main__":
    PROGRAM.run()
