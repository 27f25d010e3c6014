"""Embeddings: forms of data, the library's own losses and models, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import TRANSFORMER, Train, channel

needs("sentence_transformers")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")

PROGRAM = "embeddings.py"
WORDS = ["red", "green", "blue", "black", "white", "brown", "grey", "pink"]
PAIRS = [{"anchor": f"what is {word}", "positive": f"{word} is a colour"} for word in WORDS]
SMALL = {"epochs": 1, "dropout": 0, **TRANSFORMER}


@pytest.mark.heavy
def test_what_belongs_together_comes_near_and_the_library_and_predict_agree(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", PAIRS, "a.jsonl")
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


@pytest.mark.parametrize("form", [pytest.param("pairs", marks=pytest.mark.spine), "triplets", "scores"])
def test_the_first_loss_is_that_of_the_library(form: str, train: Train, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = PAIRS
    if form == "triplets":
        rows = [{**row, "negative": f"{row['positive']} not"} for row in PAIRS]
    elif form == "scores":
        rows = [
            {"sentence1": a["anchor"], "sentence2": b["positive"], "score": 0.5 * (a is b)} for a in PAIRS for b in PAIRS[:2]
        ]
    channel(tmp_path / "train", rows, "a.jsonl")
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
