"""Names as MLflow takes them, judged by MLflow itself where it is installed."""

from __future__ import annotations

import pytest

from trainshed.studio.tracking.mlflow_names import LONGEST_NAME, cut, mlflow_name

GOOD = ["loss", "train/loss", "val_loss-1.5: x", "a" * 250]
BAD = ["loss (train)", "a" * 251, "../up", "/root", "a//b", "./x", "ü", "a\nb", "%", "", " ", "loss=1", "a/./b", "\ud800"]


@pytest.mark.parametrize("name", GOOD)
def test_a_name_that_mlflow_takes_stays(name: str) -> None:
    assert mlflow_name(name) == name


def test_any_other_becomes_one_that_it_takes_and_stays_different() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")

    made = [mlflow_name(name) for name in BAD]

    assert len(set(made)) == len(BAD) and all(len(name) <= LONGEST_NAME for name in made)
    for name in (*made, *GOOD):
        validation._validate_metric_name(name)
        validation._validate_param_name(name)


def test_values_are_cut_visibly() -> None:
    assert cut("abc", 3) == "abc" and cut("abcd", 3) == "..." and len(cut("x" * 9000, 8000)) == 8000
