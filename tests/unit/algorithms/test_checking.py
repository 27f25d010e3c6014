"""A job held against what its program declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainshed.algorithms import ENDING
from trainshed.algorithms.checking import check_channels, check_hyperparameters
from trainshed.algorithms.declaration import Algorithm, read
from trainshed.contract.config import Channel

DECLARED = """
hyperparameters:
  rounds: {type: integer, default: 100, range: [1, null]}
  eta: {type: number, range: [0, 1]}
  fast: {type: boolean}
  objective: {type: categorical, choices: ["reg:linear", "multi:softmax"], default: "reg:linear"}
  num_class: {type: integer, range: [2, null], required_with: {objective: ["multi:softmax"]}, help: how many classes}
  columns: {type: list}
  name: {type: text, required: true}
  sizes: {type: integer, choices: [1, 3]}
  demo_data: {type: text}
channels:
  train: {required: true, unless: demo_data, aliases: [training], content_types: [text/csv, application/x-parquet],
    help: rows}
  validation: {input_modes: [File]}
"""


@pytest.fixture
def algorithm(tmp_path: Path) -> Algorithm:
    path = tmp_path / f"boost{ENDING}"
    path.write_text(DECLARED)
    return read(str(path))


def said(algorithm: Algorithm, **given: Any) -> list[str]:
    return [problem.line() for problem in check_hyperparameters(algorithm, {"name": "x", **given}, "hp")]


@pytest.mark.parametrize(
    "given",
    [
        {"rounds": "1000.0"}, {"rounds": 1e3}, {"rounds": 7}, {"rounds": ""}, {"rounds": None}, {"eta": "0"},
        {"eta": "1e-3"}, {"fast": "on"}, {"fast": True}, {"objective": "multi:softmax", "num-class": "3"},
        {"columns": ["a", 1]}, {"columns": "a,b"}, {"sizes": 3.0}, {"sizes": "1"},
    ],
)  # fmt: skip
def test_values_as_jobs_write_them_are_taken(algorithm: Algorithm, given: dict[str, Any]) -> None:
    assert said(algorithm, **given) == []


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"rounds": 0}, "hp: rounds: '0' is not a whole number from 1"),
        ({"rounds": "ten"}, "hp: rounds: 'ten' is not a whole number from 1"),
        ({"rounds": "1.5"}, "hp: rounds: '1.5' is not a whole number from 1"),
        ({"rounds": True}, "hp: rounds: 'true' is not a whole number from 1"),
        ({"rounds": [1]}, "hp: rounds: '[1]' is not a whole number from 1"),
        ({"rounds": "9" * 400}, "is not a whole number from 1"),
        ({"eta": "nan"}, "hp: eta: 'nan' is not a number from 0 to 1"),
        ({"eta": "inf"}, "hp: eta: 'inf' is not a number from 0 to 1"),
        ({"eta": 1.01}, "hp: eta: '1.01' is not a number from 0 to 1"),
        ({"fast": "maybe"}, "hp: fast: 'maybe' is neither true nor false"),
        ({"sizes": 2}, "hp: sizes: '2' is not one of 1, 3"),
        (
            {"objective": "multi:sofmax"},
            "hp: objective: 'multi:sofmax' is not one of reg:linear, multi:softmax; did you mean 'multi:softmax'?",
        ),
        (
            {"objective": "multi:softmax"},
            "hp: num_class: is missing: objective is multi:softmax, which needs it (how many classes)",
        ),
        ({"name": ""}, "hp: name: is missing: a text"),
        ({"round": 3}, "hp: round = 3: is not a hyperparameter of boost (did you mean 'rounds'?)"),
        ({"\u202erounds": 3}, "hp: \\u202erounds = 3: is not a hyperparameter of boost (did you mean 'rounds'?)"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(algorithm: Algorithm, given: dict[str, Any], line: str) -> None:
    (found,) = said(algorithm, **given)
    assert line in found


def channels(algorithm: Algorithm, hyperparameters: dict[str, Any], *given: Channel) -> list[str]:
    problems = check_channels(algorithm, {one.name: one for one in given}, hyperparameters, "in")
    return [problem.line() for problem in problems]


def test_channels_as_declared_are_taken(algorithm: Algorithm) -> None:
    csv = Channel(name="training", path="/x", content_type="text/CSV; label_size=0")
    assert channels(algorithm, {}, csv, Channel(name="code", path="/c"), Channel(name="sm_drivers", path="/d")) == []
    assert channels(algorithm, {"demo_data": "digits"}) == []


def test_channels_that_are_wrong(algorithm: Algorithm) -> None:
    images = Channel(name="validation", path="/x", content_type="image/png", input_mode="Pipe")
    assert channels(algorithm, {}, Channel(name="trian", path="/x"), images) == [
        "in: trian: no channel of this name is read; boost reads train, validation (did you mean 'train'?)",
        "in: validation.TrainingInputMode = Pipe: is not served; known: File",
        "in: train: the channel is missing, or give the hyperparameter demo_data (rows)",
    ]
    wrong = Channel(name="train", path="/x", content_type="image/png")
    assert channels(algorithm, {}, wrong) == [
        "in: train.ContentType = image/png: is not read; known: text/csv, application/x-parquet"
    ]
