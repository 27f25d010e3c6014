"""Texts and their classes: forms of data, models that Transformers loads, and what is refused."""

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

needs("transformers", "tokenizers")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")
transformers: Any = Lazy("transformers")

PROGRAM = "text_classification.py"
GOOD = [("a fine film", "good"), ("a dull film", "bad"), ("what a fine day", "good"), ("what a dull day", "bad")] * 5
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 300, "max_length": 16, "num_hidden_layers": 1}

Train = Callable[..., str]


@pytest.fixture
def train(program: ModuleType, outside_a_job: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Train:
    """Trains on a folder `train` in this process; gives what was printed."""

    def run(**changed: object) -> str:
        given: dict[str, object] = {"train": tmp_path / "train", "model_dir": tmp_path / "model", "device": "cpu"}
        given |= {"output_data_dir": tmp_path / "output", "epochs": 1, **SMALL, **changed}
        arguments = [part for key, value in given.items() for part in (f"--{key}", str(value))]
        monkeypatch.setattr(sys, "argv", [PROGRAM, *arguments])
        program.main()
        return str(capsys.readouterr().out)

    return run


def channel(folder: Path, name: str, content: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


FORMS = {
    "named.csv": "label,text\n" + "".join(f"{label},{text}\n" for text, label in GOOD),
    "bare.csv": "".join(f'{label},"{text}"\n' for text, label in GOOD),
    "lines.jsonl": "".join(json.dumps({"source": text, "label": label}) + "\n" for text, label in GOOD),
    "marked.txt": "".join(f"__label__{label} {text}\n" for text, label in GOOD),
}


def test_every_form_of_data_is_the_same_data(program: ModuleType, module: Any, tmp_path: Path) -> None:
    load = module("_labelled").load
    read = [
        load(str(channel(tmp_path / name, name, content)), "the channel train", "", "") for name, content in FORMS.items()
    ]
    assert [(row.text, *row.labels) for row in read[0]] == GOOD
    assert all(other == read[0] for other in read)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra", "deberta-v2", "modernbert"])
def test_what_was_learnt_is_told_by_the_library_and_by_predict(
    architecture: str, train: Train, tmp_path: Path, capsys: Any
) -> None:
    channel(tmp_path / "train", "marked.txt", FORMS["marked.txt"])
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
        said = train(predict=channel(tmp_path / "q", name, content) / name)
        lines = [json.loads(line) for line in said.splitlines()]
        assert [line["class"] for line in lines] == ["bad", "good"]
        assert lines[0]["probability"] == pytest.approx(logits.softmax(1)[0].max().item(), abs=1e-4)


def test_several_labels_a_text(train: Train, tmp_path: Path) -> None:
    rows = [("red", ["warm"]), ("blue", ["cold"]), ("violet", ["warm", "cold"])] * 6
    channel(tmp_path / "train", "a.jsonl", "".join(json.dumps({"text": t, "label": ls}) + "\n" for t, ls in rows))
    output = train(validation=tmp_path / "train", epochs=60, learning_rate=0.02, batch_size=9, class_weights="balanced")
    assert "validation_accuracy=1 " in output
    said = train(predict=channel(tmp_path / "q", "q.txt", "violet\nblue\n") / "q.txt")
    assert [json.loads(line)["classes"] for line in said.splitlines()] == [["cold", "warm"], ["cold"]]


def test_a_trained_model_goes_on_with_the_same_classes_and_with_others(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", "bare.csv", FORMS["bare.csv"])
    train(epochs=2)
    again = train(previous_model=tmp_path / "model", model_dir=tmp_path / "second")
    assert "new weights" not in again
    channel(tmp_path / "train", "bare.csv", FORMS["bare.csv"] + "odd,what now\n")
    other = train(previous_model=tmp_path / "model", model_dir=tmp_path / "third")
    assert "new weights for these classes: classifier.bias, classifier.weight" in other
    assert json.loads((tmp_path / "third/model.json").read_text())["classes"] == ["bad", "good", "odd"]


def test_it_stops_when_validation_gets_no_better_and_keeps_the_best(train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", "bare.csv", FORMS["bare.csv"])
    output = train(epochs=50, patience=2, learning_rate=0, min_epochs=4)
    assert "epoch=4 " in output and "epoch=5 " not in output and "the model is that of epoch 1" in output


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "a,b,c\n1,2,3\n", r"a.csv: has no columns text and label \(its first line: 'a, b, c'\)"),
        ("a.csv", "label,text\nx,y\nz\n", r"train: a.csv:3: has 1 cells, the first line has 2"),
        ("a.csv", "label,text\nx,\ny,z\n", r"a.csv:2: the text is empty"),
        ("a.csv", 'x,"open\n', r"is not CSV: "),
        ("a.csv", b"x,\xff\n", r"a.csv is not UTF-8 \(byte 3\)"),
        ("a.csv.gz", b"\x1f\x8b\x08rubbish", "cannot be read"),
        ("a.csv", "x,one\nx,two\n", r"has one label alone \(x\): there is nothing to tell apart"),
        ("a.txt", "no label here\n", r"a.txt:1: has no label, a word that begins with __label__"),
        ("a.txt", "__label__x\n", r"a.txt:1: the text is empty"),
        ("a.jsonl", '{"text": "a"}\n', r"a.jsonl:1: has no field label \(its fields: text\)"),
        ("a.jsonl", '{"text": "a", "label": {}}\n{', r"the label is an object, neither .* \(2 lines are wrong in all\)"),
        ("a.jsonl", '{"text": "a", "label": []}\n', r"a.jsonl:1: has no label"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', r"a.jsonl:1: the text is a number, not a string"),
        ("a.jsonl", '{"text": "\\ud800", "label": 1}\n', r"half a character"),
        ("a.png", "x", r"holds no CSV \(\*.csv, \*.csv.gz\), or JSON lines"),
        ("a.csv", "", "its files are empty"),
    ],
)
def test_bad_data_is_named(
    name: str, content: str | bytes, words: str, program: ModuleType, train: Train, tmp_path: Path
) -> None:
    channel(tmp_path / "train", name, content)
    with pytest.raises(program.Problem, match=words) as raised:
        train()
    assert "\n" not in str(raised.value) and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_attention_heads": 3}, "hidden_size 16 does not divide by num_attention_heads 3"),
        ({"patience": 1, "validation_fraction": 0}, "patience needs a channel validation"),
        ({"multi_label": "maybe"}, "hyperparameter multi_label: 'maybe' is "),
        ({"mode": "skipgram"}, "hyperparameter mode: 'skipgram' is not one of supervised"),
        ({"mode": "supervised", "learning_rate": 0.05}, "is one for BlazingText's bag of words; leave it out"),
        ({"batch_size": 0}, "hyperparameter batch_size: "),
        ({"previous_model": "/nowhere"}, "previous model /nowhere is not a folder"),
        ({"predict": "/nowhere"}, "holds no model of text_classification"),
    ],
)
def test_bad_hyperparameters_are_named(
    changed: dict[str, Any], words: str, program: ModuleType, train: Train, tmp_path: Path
) -> None:
    channel(tmp_path / "train", "bare.csv", FORMS["bare.csv"])
    with pytest.raises(program.Problem, match=words):
        train(**changed)


def test_labels_that_train_has_not_are_named(program: ModuleType, train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", "bare.csv", FORMS["bare.csv"])
    with pytest.raises(program.Problem, match="the channel test: text 2 has the label 'ugly', which train has not"):
        train(test=channel(tmp_path / "test", "a.csv", "good,x\nugly,y\n"))
