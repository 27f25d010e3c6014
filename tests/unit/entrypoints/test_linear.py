"""linear.py: what cannot be done."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support.extras import needs
from support.programs import Train, channel

needs("xgboost", "sklearn", "skops")

PROGRAM = "linear.py"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--predictor_type", "regressor", "--feature_dim", "7"],
            "feature_dim is 7, but the data has 6 columns of features",
        ),
        (
            ["--predictor_type", "regressor", "--loss", "logistic"],
            "loss logistic is not served with regressor: squared_loss",
        ),
        (
            ["--predictor_type", "regressor", "--num_classes", "3"],
            "num_classes is of multiclass_classifier, not of regressor",
        ),
        (["--predictor_type", "regressor", "--positive_example_weight_mult", "balanced"], "is of binary_classifier, not of"),
        (["--predictor_type", "binary_classifier"], "the target"),
        (["--wd", "1"], "predictor_type is missing: one of regressor, binary_classifier, multiclass_classifier"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str],
    words: str,
    program: ModuleType,
    started_here: Train,
    tmp_path: Path,
) -> None:
    channel(tmp_path / "train", "".join(f"{row / 7},{row},1,2,,{row * row},3\n" for row in range(9)))
    with pytest.raises(program.Problem, match=words):
        started_here(PROGRAM, "--train", "train", *arguments)
