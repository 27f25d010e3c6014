"""clustering, anomaly, pca and knn: words for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.extras import needs
from support.programs import Train

needs("sklearn", "skops")

BASE = {
    "clustering": ["--k", "2"],
    "anomaly": [],
    "pca": ["--num_components", "1"],
    "knn": ["--k", "1", "--predictor_type", "classifier"],
}


def refused(started_here: Train, name: str, *arguments: object) -> str:
    """The one line that a program refuses with."""
    from _common import Problem  # type: ignore[import-not-found]

    with pytest.raises(Problem) as raised:
        started_here(name, *arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "arguments", "said"),
    [
        ("clustering", "1,2\n3,x\n5,6\n", [], "train.csv, row 2: f1 is 'x', not a number"),
        ("clustering", "1,2\n3,\n5,6\n", [], "train.csv, row 2: f1 is missing"),
        ("pca", "a,b\n1,2\n?,4\n", [], "train.csv, row 2: a is missing (ignore_columns leaves a column out)"),
        ("anomaly", "a,b\n1,red\n2,green\n", [], "train.csv, row 1: b is 'red', not a number"),
        ("anomaly", "1,inf\n2,3\n", [], "row 1: f1 is inf: too large a number"),
        ("anomaly", "1,2\n", [], "has one row"),
        ("anomaly", "1,2\n3,4\n", ["--eval_metrics", "f1"], "eval_metrics: 'f1' is not one of accuracy"),
        ("clustering", "1,2\n3,4\n", ["--k", "3"], "k is 3, and the channel train has 2 rows"),
        ("clustering", "1,2\n3,4\n", ["--feature_dim", "3"], "feature_dim is 3, and the channel train has 2 features"),
        ("clustering", "1,2\n3,4\n", ["--extra_center_factor", "0"], "'0' is neither auto nor a whole number from 1"),
        ("clustering", "1 0:2 1:nan\n1 0:3\n", [], "row 1: feature 1 is missing, or not a finite number"),
        ("clustering", "1 0:2 7:1\n1 0:3\n", ["--feature_dim", "3"], "feature_dim is 3, and the channel train has 8"),
        ("clustering", "a,b\n1,2\n3,4\n", ["--target", "c"], "there is no column 'c' to learn"),
        ("clustering", "", [], "the channel train has no rows"),
        ("pca", "1,2\n3,4\n", ["--num_components", "3"], "there are no more than 2 components"),
        ("pca", "a\n1\n2\n", ["--ignore_columns", "a"], "all its columns are left out"),
        ("knn", "1,2\n3,4\n", ["--k", "3"], "k is 3, and there are 2 rows to look in"),
        ("knn", "x,2\ny,4\n", ["--predictor_type", "regressor"], "row 1: the target (column 1) is 'x': a regressor"),
        ("knn", "1,2\n1,4\n", [], "has one class"),
        ("knn", "1,2\n,4\n", [], "row 2: the target (column 1) is missing"),
        ("knn", "1,2\n2,4\n", ["--index_metric", "L1"], "index_metric: 'L1' is not one of L2, COSINE"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    started_here: Train, tmp_path: Path, name: str, content: str, arguments: list[str], said: str
) -> None:
    file = "train.svm" if ":" in content else "train.csv"
    (tmp_path / file).write_text(content)

    assert said in refused(started_here, name, "--train", file, *BASE[name], *arguments)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("name", "missing"), [("clustering", "k"), ("pca", "num_components"), ("knn", "k")])
def test_a_hyperparameter_without_which_nothing_can_be_learned(started_here: Train, name: str, missing: str) -> None:
    assert f"the hyperparameter {missing} is missing" in refused(started_here, name, "--train", "x.csv")


def test_labels_of_the_channel_test_are_0_and_1(started_here: Train, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\n3,5\n4,4\n")
    (tmp_path / "test.csv").write_text("0,1,2\n1,3,5\n2,4,4\n")
    assert "test.csv, row 3: the label is 2.0" in refused(started_here, "anomaly", "--train", "x.csv", "--test", "test.csv")


def test_hosts_but_the_first_have_nothing_to_do(
    started_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.csv").write_text("1,2\n3,5\n4,4\n")
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-2")
    assert "learns on the first host alone" in started_here("clustering", "--train", "x.csv", "--k", 2)
    assert not (tmp_path / "model").exists()
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    config = {"train": {"S3DistributionType": "ShardedByS3Key"}}
    monkeypatch.setenv("SM_INPUT_DATA_CONFIG", json.dumps(config))
    assert "is ShardedByS3Key, and one host alone" in refused(started_here, "clustering", "--train", "x.csv", "--k", 2)
