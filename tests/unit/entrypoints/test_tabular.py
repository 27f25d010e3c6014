"""tabular.py: what is wrong with tables, and what libraries do not serve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from support import programs
from support.extras import needs
from support.programs import Module, Train, channel

needs("xgboost")

PROGRAM = "tabular.py"


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("1,2\n3\n", [], "Expected 2 columns, got 1"),
        ("1,2\n,3\n", [], "row 2: the target (column 1) is missing"),
        ("1,2\n2,x\n3,4\n5,6\n", [], "row 2: f0 is 'x', and a number in most rows"),
        ("1,2\n2,1e39\n", [], "row 2: f0 is 1e+39: leave it empty"),
        ("a,b\n1,2\n", ["--target", "bb"], "there is no column 'bb' to learn (did you mean 'b'?)"),
        ("a,a\n1,2\n", ["--target", "a"], "two columns have the name 'a'"),
        ("1\n2\n", [], "has no features: its only column is the target"),
        ("", [], "the channel train has no rows"),
        (
            "1,2\n3,4\n5,6\n",
            ["--objective", "binary:logistic"],
            "learns two classes; the target (column 1) has 3 values: 1, 3, 5",
        ),
        (
            "yes,2\nno,4\n",
            ["--objective", "reg:squarederror"],
            "the target (column 1) is 'yes': reg:squarederror learns numbers",
        ),
        ("1,2\n2,4\n3,6\nTotal,12\n", [], "row 4: the target (column 1) is 'Total', and a number in most rows"),
        ("".join(f"t{n},2\n" for n in range(30)), [], "is text with 30 different values in 30 rows, hardly classes"),
        ("1,2\n", [], "the channel train has one row"),
        ("1,2\n1,4\n", ["--objective", "binary:logistic"], "the target (column 1) has one class, 1: a classifier needs two"),
        ("2,2\n2,4\n", ["--objective", "multi:softmax", "--num_class", "3"], "the target (column 1) has one class, 2"),
        ("a,2\na,4\n", ["--objective", "multi:softprob"], "the target (column 1) has one class, a"),
        ("0,2\n3,4\n", ["--objective", "multi:softmax", "--num_class", "3"], "num_class is 3; the target (column 1) has 2"),
        ("-1,2\n3,4\n", ["--objective", "count:poisson"], "row 1: the target (column 1) is -1, which must be 0 or more"),
        ("1,2\n3,4\n", ["--max_dept", "3"], "there is no hyperparameter --max_dept 3; did you mean --max_depth?"),
        ("1,2\n3,4\n", ["--eta", "2"], "hyperparameter eta: '2' is not a number from 0 to 1"),
        ("1,2\n3,4\n", ["--eval_metric", "rsme"], "rsme"),
        ("1,2,3\n3,-4,1\n", ["--csv_weights", "1"], "row 2: the weight is not a number from 0"),
        (b"1,\xff\0\n", [], "train.csv holds zero bytes"),
        (b"\x1f\x8bnot packed", [], "train.csv cannot be read: "),
        ("1 0:2\n1 5:1 3:2\n", [], "the index '3' does not come after 5"),
        ("1 1:2\n1 qid:1 3:2\n", [], "1 of 2 rows have a qid"),
    ],
)
def test_bad_tables_are_said_in_one_line(
    tmp_path: Path, content: str | bytes, arguments: list[str], said: str, program: ModuleType, started_here: Train
) -> None:
    name = "train.svm" if ":" in str(content) else "train.csv"
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(program.Problem) as raised:
        started_here(PROGRAM, "--train", name, *arguments)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "model").exists()


def test_what_is_absent_is_said(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    common = module("_common")
    told: list[Callable[[], None]] = []
    monkeypatch.setattr(common, "run", told.append)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    common.need(str(programs.ENTRYPOINTS / PROGRAM))

    with pytest.raises(common.Problem, match=r"needs xgboost, .* not installed here: pip install 'trainshed\[tabular\]'"):
        told[0]()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (["--library", "lightgbm", "--booster", "dart"], "booster dart is XGBoost's"),
        (
            ["--library", "lightgbm", "--objective", "reg:squaredlogerror"],
            "objective reg:squaredlogerror is not served with LightGBM",
        ),
        (["--library", "lightgbm", "--base_score", "0.5"], "base_score: LightGBM has no such thing"),
        (["--library", "lightgbm", "--eval_metric", "ndcg"], "eval_metric ndcg is not served with LightGBM"),
        (["--library", "linear", "--eta", "0.5"], "eta: a linear model has no such thing"),
        (["--library", "linear", "--eval_metric", "auc"], "eval_metric auc is not served"),
        (["--num_round", "3", "--num_boost_round", "4"], "num_boost_round is num_round by another name"),
    ],
)
def test_what_is_not_served_is_said(
    program: ModuleType, started_here: Train, tmp_path: Path, how: list[str], message: str
) -> None:
    needs("lightgbm", "sklearn", "skops")
    channel(tmp_path / "train", "".join(f"{row / 7},{row},{row % 3}\n" for row in range(9)))
    with pytest.raises(program.Problem, match=message):
        started_here(PROGRAM, "--train", "train", "--validation", "train", *how)
    assert not (tmp_path / "model").exists()


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
def test_what_linear_cannot_do_is_said(
    arguments: list[str], words: str, program: ModuleType, started_here: Train, tmp_path: Path
) -> None:
    needs("sklearn", "skops")
    channel(tmp_path / "train", "".join(f"{row / 7},{row},1,2,,{row * row},3\n" for row in range(9)))
    with pytest.raises(program.Problem, match=words):
        started_here("linear", "--train", "train", *arguments)
