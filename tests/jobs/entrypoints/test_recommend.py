"""Factorization machines: forms of data, the platform's request, a model in plain code, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import programs
from support.data_files import frame, tensor_record
from support.extras import needs
from support.lazy import Lazy
from support.programs import Train, channel
from support.runner_project import Project

needs("torch", "scipy", "pyarrow", "safetensors")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")

PROGRAM = "recommend.py"
SMALL = {"num_factors": 2, "predictor_type": "binary_classifier"}
# Users 1 to 4 like items of their own kind.
LIKES = [(float(user % 2 == item % 2), user, f"i{item}") for user in range(8) for item in range(8)]


def rows() -> str:
    return "liked,user,item\n" + "".join(f"{liked:g},{user},{item}\n" for liked, user, item in LIKES)


def libsvm() -> str:
    return "".join(f"{liked:g} {user}:1 {8 + int(item[1:])}:1\n" for liked, user, item in LIKES)


LEARN = {
    "epochs": 80,
    "mini_batch_size": 16,
    "learning_rate": 0.05,
    "factors_init_sigma": 0.3,
    "factors_wd": 0,
    "linear_wd": 0,
}


@pytest.mark.parametrize("form", [pytest.param("csv", marks=pytest.mark.spine), "libsvm"])
def test_pairs_are_learnt_and_plain_code_and_predict_agree(form: str, train: Train, tmp_path: Path) -> None:
    text, name = (rows(), "a.csv") if form == "csv" else (libsvm(), "a.libsvm")
    output = train(test=channel(tmp_path / "train", text, name), **LEARN)
    assert "test_binary_classification_accuracy=1 " in output

    said = train(predict=tmp_path / "train" / name, predictor_type=None, num_factors=None)
    scores = [json.loads(line)["score"] for line in said.splitlines()]
    assert [score > 0.5 for score in scores] == [liked > 0.5 for liked, _, _ in LIKES]

    from safetensors.torch import load_file

    weights = load_file(tmp_path / "model/model.safetensors")
    columns = json.loads((tmp_path / "model/columns.json").read_text())
    keys = [columns["user"]["3"], columns["item"]["i5"]] if columns else [3, 13]
    linear, factors = weights["linear.weight"][keys], weights["factors.weight"][keys]
    score = (weights["bias"] + linear.sum() + factors[0] @ factors[1]).sigmoid().item()
    assert score == pytest.approx(scores[3 * 8 + 5], abs=1e-5)


@pytest.mark.heavy
def test_a_request_file_of_the_platform_runs_by_the_launcher(project: Project, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    records = [tensor_record([1.0, 1.0], liked, [user, 8 + int(item[1:])]) for liked, user, item in LIKES]
    (tmp_path / "data/a.pbr").write_bytes(b"".join(map(frame, records)))
    # As the developer guide's example for movie ratings gives them.
    hyperparameters = {
        "feature_dim": "16", "predictor_type": "binary_classifier", "mini_batch_size": "16", "num_factors": "4",
        "epochs": "3",
        "bias_lr": "0.1", "linear_lr": "0.01", "factors_lr": "0.01", "factors_init_method": "normal",
        "factors_init_sigma": "0.1",
    }  # fmt: skip
    place = tmp_path / "data", "application/x-recordio-protobuf"
    request = programs.request_of_the_platform("factorization-machines:1", hyperparameters, {"train": place, "test": place})
    project.write({"request.json": request})
    done = project.trainshed("run", "request.json", OMP_NUM_THREADS="1")
    assert done.status == 0, done.output
    assert "test_binary_classification_accuracy" in project.trainshed("metrics", "show").output


def test_two_towers_learn_pairs_and_plain_code_and_predict_agree(train: Train, tmp_path: Path) -> None:
    output = train(test=channel(tmp_path / "train", rows()), model="towers", hidden_size=8, **{**LEARN, "num_factors": 4})
    assert "test_binary_classification_accuracy=1 " in output
    said = train(predict=tmp_path / "train", predictor_type=None, num_factors=None)
    scores = [json.loads(line)["score"] for line in said.splitlines()]

    from safetensors.torch import load_file

    weights = load_file(tmp_path / "model/model.safetensors")
    columns = json.loads((tmp_path / "model/columns.json").read_text())
    user, item = columns["user"]["3"], columns["item"]["i5"]

    def tower(name: str, at: int) -> Any:
        inner = weights[f"{name}.0.weight"] @ weights["factors.weight"][at] + weights[f"{name}.0.bias"]
        return weights[f"{name}.2.weight"] @ inner.relu() + weights[f"{name}.2.bias"]

    linear = weights["linear.weight"][[user, item]].sum()
    score = (weights["bias"] + linear + tower("users", user) @ tower("items", item)).sigmoid().item()
    assert score == pytest.approx(scores[3 * 8 + 5], abs=1e-5)


def test_values_that_train_has_not_are_counted(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", rows())
    output = train(epochs=1, test=channel(tmp_path / "test", "liked,user,item\n1,99,i1\n"))
    assert "test: 1 values are not in train, and count nothing" in output


def test_ids_that_differ_in_their_last_digit_are_different_users(train: Train, tmp_path: Path) -> None:
    first = 9007199254740992
    channel(tmp_path / "train", rows().replace(",0,", f",{first},").replace(",1,", f",{first + 1},"))
    output = train(**LEARN)
    assert "of 16 features" in output
    scores = [json.loads(line)["score"] for line in train(**LEARN, predict=tmp_path / "train" / "a.csv").splitlines()]
    assert scores[0] > 0.8 and scores[8] < 0.2  # the same item, of users that differ by one
