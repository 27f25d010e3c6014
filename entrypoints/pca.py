"""Finds the principal components of tables, with scikit-learn, from hyperparameters alone.

    python pca.py --train rows.csv --num_components 5
    python pca.py --predict rows.csv --model_dir model

The hyperparameters are those of the platform's PCA.
"""

from __future__ import annotations

from _classic import Data, Fitted, Model, Program, Rows, behind, end_at_stop, plain, read_data, scaled
from _common import Problem, need

if __name__ == "__main__":
    end_at_stop()
    need(__file__)

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy
from scipy import sparse
from sklearn.decomposition import PCA

NARROW = 1000  # features, for which a matrix of all pairs of them is small
WIDEST = 20_000  # features, of whose pairs a matrix has 3 GiB


def fit(hp: Namespace) -> tuple[Data, Fitted]:
    """The components of the channel train, and what they leave of it and of test. Raises Problem."""
    data = read_data(hp, usually=False, test_usually=False)
    count, width = data.train.values.shape
    if count < 2:
        raise Problem("the channel train has one row: there is no variance to be explained")
    if hp.num_components > min(count, width):
        raise Problem(
            f"num_components is {hp.num_components}, and the channel train has {count} rows of {width} features: there are "
            f"no more than {min(count, width)} components"
        )
    print(f"finding {hp.num_components} components of {count} rows of {width} features", flush=True)
    values, scaler = scaled(hp, data.train)
    if not hp.subtract_mean:
        values = mirrored(values)
    model = PCA(hp.num_components, svd_solver=solver(hp, values), random_state=hp.seed, n_oversamples=extra(hp)).fit(values)
    estimator = behind(scaler, model)
    parts = model.explained_variance_ratio_
    if not numpy.isfinite(parts).all():  # all rows are alike: there is no variance to be explained
        model.explained_variance_ratio_ = numpy.nan_to_num(parts)
    found = {"train:explained_variance": float(model.explained_variance_ratio_.sum())}
    for name, rows in (("train", data.train), ("test", data.test)):
        if rows is not None:
            found[f"{name}:reconstruction_error"] = left(estimator, scaler, model, rows)
    return data, Fitted(estimator, found)


def mirrored(values: Any) -> Any:
    """The rows, and each once more with its sign turned: their mean is 0, and their components those around 0."""
    return sparse.vstack([values, -values], format="csr") if sparse.issparse(values) else numpy.vstack([values, -values])


def solver(hp: Namespace, values: Any) -> str:
    """How scikit-learn shall compute: the same each time, and exactly unless asked otherwise. Raises Problem."""
    count, width = values.shape
    thin = sparse.issparse(values)
    if hp.algorithm_mode == "randomized":
        return ("arpack" if hp.num_components < min(count, width) else "covariance_eigh") if thin else "randomized"
    if thin and width > WIDEST:
        raise Problem(f"{width} features are too many for algorithm_mode regular: use randomized")
    return "covariance_eigh" if thin or (width <= NARROW and count >= 10 * width) else "full"


def extra(hp: Namespace) -> int:
    """Dimensions more than are wanted that algorithm_mode randomized begins with."""
    return hp.extra_components if hp.extra_components > 0 else max(10, hp.num_components)


def left(estimator: Any, scaler: Any, model: Any, rows: Rows) -> float:
    """The mean squared distance of rows, as they are scaled, from what their components say of them.

    The components are at right angles, so that it is what a row's length has more than its projection's.
    """
    values = rows.values if scaler is None else scaler.transform(rows.values)
    total = 0.0
    for begin in range(0, rows.count, 10_000):  # sparse rows are made dense in parts
        part = values[begin : begin + 10_000]
        centred = (part.toarray() if sparse.issparse(part) else part) - model.mean_
        shown = centred @ model.components_.T
        total += float(((centred - shown @ model.components_) ** 2).sum())
    return total / rows.count


def said(hp: Namespace, model: Model, rows: Rows) -> Iterator[dict[str, Any]]:
    """{"projection"}: one number a component, the one with most variance first."""
    for projected in model.estimator.transform(rows.values):
        yield {"projection": [plain(value) for value in projected]}


PROGRAM = Program(__file__, fit, said, ("PCA",))
main = PROGRAM.main

if __name__ == "__main__":
    PROGRAM.run()
