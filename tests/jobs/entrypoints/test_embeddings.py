"""Embeddings: forms of data, the library's own losses and models, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy

needs("sentence_transformers")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")

PROGRAM = "embeddings.py"
WORDS = ["red", "green", "blue", "black", "white", "brown", "grey", "pink"]
PAIRS = [{"anchor": f"what is {word}", "positive": f"{word} is a colour"} for word in WORDS]
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 300, "max_length": 16, "num_hidden_layers": 1}

Train = Callable[..., str]


@pytest.fixture
def train(program: ModuleType, outside_a_job: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Train:
    """Trains on a folder `train` in this process; gives what was printed."""

    def run(**changed: object) -> str:
        given: dict[str, object] = {"train": tmp_path / "train", "model_dir": tmp_path / "model", "device": "cpu"}
        given |= {"output_data_dir": tmp_path / "output", "epochs": 1, "dropout": 0, **SMALL, **changed}
        arguments = [part for key, value in given.items() for part in (f"--{key}", str(value))]
        monkeypatch.setattr(sys, "argv", [PROGRAM, *arguments])
        program.main()
        return str(capsys.readouterr().out)

    return run


def channel(folder: Path, rows: list[dict[str, Any]] | str, name: str = "a.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.heavy
def test_what_belongs_together_comes_near_and_the_library_and_predict_agree(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", PAIRS)
    given = {"epochs": 25, "batch_size": 8, "learning_rate": 0.01}
    output = train(validation=tmp_path / "train", test=tmp_path / "train", **given)
    assert "validation_accuracy=1 " in output and "test_reciprocal_rank=1 " in output

    from sentence_transformers import SentenceTransformer

    texts = ["what is red", "red is a colour", "blue is a colour"]
    made = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts, normalize_embeddings=True)
    assert made[0] @ made[1] > made[0] @ made[2]
    said = train(predict=channel(tmp_path / "q", "\n".join(texts), "q.txt") / "q.txt")
    assert [json.loads(line)["embedding"] for line in said.splitlines()] == [pytest.approx(row, abs=1e-5) for row in made]

    again = train(previous_model=tmp_path / "model", validation=tmp_path / "train", model_dir=tmp_path / "second")
    assert "validation_accuracy=1 " in again


@pytest.mark.parametrize("form", ["pairs", "triplets", "scores"])
def test_the_first_loss_is_that_of_the_library(form: str, train: Train, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = PAIRS
    if form == "triplets":
        rows = [{**row, "negative": f"{row['positive']} not"} for row in PAIRS]
    elif form == "scores":
        rows = [
            {"sentence1": a["anchor"], "sentence2": b["positive"], "score": 0.5 * (a is b)} for a in PAIRS for b in PAIRS[:2]
        ]
    channel(tmp_path / "train", rows)
    output = train(batch_size=len(rows), learning_rate=0, validation_fraction=0)

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss

    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = [name for name in rows[0] if name != "score"]
    features = [dict(model.tokenizer([row[name] for row in rows], return_tensors="pt", padding=True)) for name in texts]
    scores = torch.tensor([row.get("score", 0.0) for row in rows])
    loss = (CosineSimilarityLoss if form == "scores" else MultipleNegativesRankingLoss)(model)
    with torch.no_grad():
        assert f"train_loss={loss(features, scores).item():.4g}"[:-1] in output


def test_csv_is_as_json_lines(program: ModuleType, module: Any, tmp_path: Path) -> None:
    load = module("_pairs").load
    lines = load(str(channel(tmp_path / "a", PAIRS)), "x")
    text = "positive,anchor\n" + "".join(f"{row['positive']},{row['anchor']}\n" for row in PAIRS)
    assert [row.texts for row in load(str(channel(tmp_path / "b", text, "a.csv")), "x")] == [row.texts for row in lines]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"anchor": "a"}], r"a.jsonl:1: has neither anchor and positive .* \(its fields: anchor\)"),
        ([{"anchor": "a", "positive": 3}], r"a.jsonl:1: positive is a number, not a string"),
        ([{"anchor": " ", "positive": "b"}] * 2, r"anchor is empty \(2 lines are wrong in all\)"),
        ([{"sentence1": "a", "sentence2": "b", "score": 7}], r"score is 7, not from 0 to 1: scale it"),
        ([{"sentence1": "a", "sentence2": "b", "score": "high"}], r"score is 'high', not a number"),
        ([PAIRS[0], {**PAIRS[1], "negative": "x"}], r"train: a.jsonl:2: is one of triplets, and train begins with pairs"),
        (PAIRS[:1], r"has one example alone: there is nothing to tell it from"),
        ([{"label": 1, "in0": [3], "in1": [4]}], r"has neither anchor and positive .* \(its fields: label, in0, in1\)"),
    ],
)
def test_bad_data_is_named(rows: Any, words: str, program: ModuleType, train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", rows)
    with pytest.raises(program.Problem, match=words) as raised:
        train()
    assert "\n" not in str(raised.value) and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_attention_heads": 3}, "hidden_size 16 does not divide by num_attention_heads 3"),
        ({"patience": 1, "validation_fraction": 0}, "patience needs a channel validation"),
        ({"previous_model": "/nowhere"}, "previous model /nowhere is not a folder"),
        ({"predict": "/nowhere"}, "holds no model of embeddings"),
    ],
)
def test_bad_hyperparameters_are_named(
    changed: dict[str, Any], words: str, program: ModuleType, train: Train, tmp_path: Path
) -> None:
    channel(tmp_path / "train", PAIRS)
    with pytest.raises(program.Problem, match=words):
        train(**changed)


def test_a_model_that_cannot_be_loaded_is_named(program: ModuleType, train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", PAIRS)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{}")
    with pytest.raises(program.Problem, match="broken holds no embedding of texts that Transformers loads: "):
        train(previous_model=tmp_path / "broken")
