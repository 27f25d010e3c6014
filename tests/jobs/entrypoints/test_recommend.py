"""Factorization machines: forms of data, the platform's request, a model in plain code, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.entrypoints import programs
from support.data_files import frame, tensor_record
from support.extras import needs
from support.lazy import Lazy
from support.runner_project import Project, project  # noqa: F401 (a fixture)

needs("torch", "scipy", "pyarrow", "safetensors")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")

PROGRAM = "recommend.py"
# Users 1 to 4 like items of their own kind.
LIKES = [(float(user % 2 == item % 2), user, f"i{item}") for user in range(8) for item in range(8)]

Train = Callable[..., str]


@pytest.fixture
def train(program: ModuleType, outside_a_job: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Train:
    """Trains on a folder `train` in this process; gives what was printed."""

    def run(**changed: object) -> str:
        given: dict[str, object] = {"train": tmp_path / "train", "model_dir": tmp_path / "model", "device": "cpu"}
        given |= {"output_data_dir": tmp_path / "output", "num_factors": 2, "predictor_type": "binary_classifier", **changed}
        arguments = [part for key, value in given.items() if value is not None for part in (f"--{key}", str(value))]
        monkeypatch.setattr(sys, "argv", [PROGRAM, *arguments])
        program.main()
        return str(capsys.readouterr().out)

    return run


def channel(folder: Path, text: str, name: str = "a.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


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


@pytest.mark.parametrize("form", ["csv", "libsvm"])
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
def test_a_request_file_of_the_platform_runs_by_the_launcher(project: Project, tmp_path: Path) -> None:  # noqa: F811
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


@pytest.mark.parametrize(
    ("text", "changed", "words"),
    [
        ("liked,user\n2,a\n0,b\n", {}, r"a.csv, row 1: the target is 2, not 0 or 1"),
        ("liked,user\n1,a\n", {}, "the channel train has less than two rows"),
        ("liked,user\n1,a\n0,b\n", {"validation_fraction": 0.9}, "validation_fraction 0.9 of 2 rows leaves none"),
        ("liked,user\n1,a\n0,b,c\n", {}, "a.csv"),
        (rows(), {"num_factors": None}, "hyperparameter num_factors is missing"),
        (rows(), {"predictor_type": "ranker"}, "predictor_type: 'ranker' is not one of regressor, binary_classifier"),
        (rows(), {"patience": 2}, "patience needs a channel validation"),
        (rows(), {"target": "rating"}, "rating"),
        (rows(), {"predict": "/nowhere"}, "holds no model of recommend"),
    ],
)
def test_what_is_wrong_is_named(
    text: str, changed: dict[str, Any], words: str, program: ModuleType, train: Train, tmp_path: Path
) -> None:
    channel(tmp_path / "train", text)
    with pytest.raises(program.Problem, match=words) as raised:
        train(**changed)
    assert "\n" not in str(raised.value) and not (tmp_path / "model").exists()


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


@pytest.mark.parametrize(
    ("text", "changed", "words"),
    [
        ("1 0:1\n0 1:1\n", {}, "model towers needs a table with columns"),
        (rows(), {"user_columns": "owner"}, "user_columns: there is no column owner, but user, item"),
        (rows(), {"user_columns": "user,item"}, "user_columns are all the columns"),
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
    channel(tmp_path / "train", libsvm(), "a.libsvm")
    with pytest.raises(program.Problem, match="feature_dim is 5, and the data has 16 features"):
        train(feature_dim=5)


def test_values_that_train_has_not_are_counted(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", rows())
    output = train(epochs=1, test=channel(tmp_path / "test", "liked,user,item\n1,99,i1\n"))
    assert "test: 1 values are not in train, and count nothing" in output
