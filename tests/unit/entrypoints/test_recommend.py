"""recommend.py: what is refused."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.programs import Module, Train, channel

needs("torch", "scipy", "pyarrow", "safetensors")
pytestmark = pytest.mark.torch

PROGRAM = "recommend.py"
SMALL = {"num_factors": 2, "predictor_type": "binary_classifier"}
ROWS = "liked,user,item\n1,a,x\n0,b,y\n1,b,x\n"


@pytest.mark.parametrize(
    ("text", "changed", "words"),
    [
        ("liked,user\n2,a\n0,b\n", {}, r"a.csv, row 1: the target is 2, not 0 or 1"),
        ("liked,user\n1,a\n", {}, "the channel train has less than two rows"),
        ("liked,user\n1,a\n0,b\n", {"validation_fraction": 0.9}, "validation_fraction 0.9 of 2 rows leaves none"),
        ("liked,user\n1,a\n0,b,c\n", {}, "a.csv"),
        (ROWS, {"num_factors": None}, "hyperparameter num_factors is missing"),
        (ROWS, {"predictor_type": "ranker"}, "predictor_type: 'ranker' is not one of regressor, binary_classifier"),
        (ROWS, {"patience": 2}, "patience needs a channel validation"),
        (ROWS, {"target": "rating"}, "rating"),
        (ROWS, {"predict": "/nowhere"}, "holds no model of recommend"),
    ],
)
def test_what_is_wrong_is_named(
    text: str, changed: dict[str, Any], words: str, program: ModuleType, train: Train, tmp_path: Path
) -> None:
    channel(tmp_path / "train", text)
    with pytest.raises(program.Problem, match=words) as raised:
        train(**changed)
    assert "\n" not in str(raised.value) and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("text", "changed", "words"),
    [
        ("1 0:1\n0 1:1\n", {}, "model towers needs a table with columns"),
        (ROWS, {"user_columns": "owner"}, "user_columns: there is no column owner, but user, item"),
        (ROWS, {"user_columns": "user,item"}, "user_columns are all the columns"),
    ],
)
def test_towers_need_users_and_items(
    text: str, changed: dict[str, Any], words: str, program: ModuleType, train: Train, tmp_path: Path
) -> None:
    channel(tmp_path / "train", text, "a.libsvm" if ":" in text else "a.csv")
    with pytest.raises(program.Problem, match=words):
        train(model="towers", **changed)
    assert not (tmp_path / "model").exists()


def test_a_feature_dim_that_is_too_small_is_named(program: ModuleType, train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", "1 0:1 8:1\n0 1:1 15:1\n", "a.libsvm")
    with pytest.raises(program.Problem, match="feature_dim is 5, and the data has 16 features"):
        train(feature_dim=5)


def test_an_id_that_is_empty_is_counted_and_named(
    module: Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratings, sparing = module("_ratings"), module("_sparing")
    hp = Namespace(target="liked", ignore_columns=(), predictor_type="regressor")
    file = channel(tmp_path / "new", "user,item\na,x\n,y\nb,x\n,x\n") / "a.csv"
    columns = {"user": {"a": 0, "b": 1}, "item": {"x": 2, "y": 3}}
    table = ratings.table_of(hp, str(file), "predict", False, list(columns), sparing.Spare(lambda table: None))

    entries = ratings.entries_of(table, columns, hp, "predict", {})

    assert entries.keys.tolist() == [0, 2, 3, 1, 2, 2]
    assert "note: the channel predict: 2 of 4 rows have no user, the first is row 2" in capsys.readouterr().err
