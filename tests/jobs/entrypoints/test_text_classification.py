"""Texts and their classes: forms of data, models that Transformers loads, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import TRANSFORMER, Train, channel

needs("transformers", "tokenizers")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")
transformers: Any = Lazy("transformers")

PROGRAM = "text_classification.py"
GOOD = [("a fine film", "good"), ("a dull film", "bad"), ("what a fine day", "good"), ("what a dull day", "bad")] * 5
SMALL = {"epochs": 1, **TRANSFORMER}


FORMS = {
    "named.csv": "label,text\n" + "".join(f"{label},{text}\n" for text, label in GOOD),
    "bare.csv": "".join(f'{label},"{text}"\n' for text, label in GOOD),
    "lines.jsonl": "".join(json.dumps({"source": text, "label": label}) + "\n" for text, label in GOOD),
    "marked.txt": "".join(f"__label__{label} {text}\n" for text, label in GOOD),
}


VARIANTS = [pytest.param(one, marks=pytest.mark.matrix) for one in ("roberta", "electra", "deberta-v2", "modernbert")]


@pytest.mark.parametrize("architecture", [pytest.param("bert", marks=pytest.mark.spine), *VARIANTS])
def test_what_was_learnt_is_told_by_the_library_and_by_predict(
    architecture: str, train: Train, tmp_path: Path, capsys: Any
) -> None:
    channel(tmp_path / "train", FORMS["marked.txt"], "marked.txt")
    given = {"architecture": architecture, "epochs": 30, "batch_size": 10, "learning_rate": 0.01, "dropout": 0}
    output = train(validation=tmp_path / "train", **given)
    assert "validation_f1=1 " in output
    facts = json.loads((tmp_path / "model/model.json").read_text())
    assert facts["classes"] == ["bad", "good"] and facts["metrics"]["validation_accuracy"] == 1

    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "what a DULL film"
    with torch.no_grad():
        logits = model(**tokenizer([text, "fine"], return_tensors="pt", padding=True)).logits
    assert [model.config.id2label[at] for at in logits.argmax(1).tolist()] == ["bad", "good"]

    for name, content in (("q.txt", f"{text}\nfine\n"), ("q.csv", f"text\n{text}\nfine\n")):
        said = train(predict=channel(tmp_path / "q", content, name) / name)
        lines = [json.loads(line) for line in said.splitlines()]
        assert [line["class"] for line in lines] == ["bad", "good"]
        assert lines[0]["probability"] == pytest.approx(logits.softmax(1)[0].max().item(), abs=1e-4)


def test_several_labels_a_text(train: Train, tmp_path: Path) -> None:
    rows = [("red", ["warm"]), ("blue", ["cold"]), ("violet", ["warm", "cold"])] * 6
    channel(tmp_path / "train", "".join(json.dumps({"text": t, "label": ls}) + "\n" for t, ls in rows), "a.jsonl")
    output = train(validation=tmp_path / "train", epochs=60, learning_rate=0.02, batch_size=9, class_weights="balanced")
    assert "validation_accuracy=1 " in output
    said = train(predict=channel(tmp_path / "q", "violet\nblue\n", "q.txt") / "q.txt")
    assert [json.loads(line)["classes"] for line in said.splitlines()] == [["cold", "warm"], ["cold"]]


def test_a_trained_model_goes_on_with_the_same_classes_and_with_others(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", FORMS["bare.csv"])
    train(epochs=2)
    again = train(previous_model=tmp_path / "model", model_dir=tmp_path / "second")
    assert "new weights" not in again
    channel(tmp_path / "train", FORMS["bare.csv"] + "odd,what now\n")
    other = train(previous_model=tmp_path / "model", model_dir=tmp_path / "third")
    assert "new weights for these classes: classifier.bias, classifier.weight" in other
    assert json.loads((tmp_path / "third/model.json").read_text())["classes"] == ["bad", "good", "odd"]


def test_it_stops_when_validation_gets_no_better_and_keeps_the_best(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", FORMS["bare.csv"])
    output = train(epochs=50, patience=2, learning_rate=0, min_epochs=4)
    assert "epoch=4 " in output and "epoch=5 " not in output and "the model is that of epoch 1" in output


def test_a_table_with_names_of_its_own_is_learnt_and_predicted(train: Train, tmp_path: Path) -> None:
    rows = "".join(f"{text},{label}\n" for text, label in GOOD)
    channel(tmp_path / "train", f"review,sentiment\n{rows}")
    train(validation=tmp_path / "train")
    assert json.loads((tmp_path / "model/model.json").read_text())["classes"] == ["bad", "good"]
    said = train(predict=tmp_path / "train" / "a.csv", text_column="review")
    assert len(said.splitlines()) == len(GOOD)
