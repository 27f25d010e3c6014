"""text_classification.py: forms of data, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.programs import TRANSFORMER, Train, channel

needs("transformers", "tokenizers")
pytestmark = pytest.mark.torch

PROGRAM = "text_classification.py"
GOOD = [("a fine film", "good"), ("a dull film", "bad"), ("what a fine day", "good"), ("what a dull day", "bad")] * 5
SMALL = TRANSFORMER
FORMS = {
    "named.csv": "label,text\n" + "".join(f"{label},{text}\n" for text, label in GOOD),
    "bare.csv": "".join(f'{label},"{text}"\n' for text, label in GOOD),
    "lines.jsonl": "".join(json.dumps({"source": text, "label": label}) + "\n" for text, label in GOOD),
    "marked.txt": "".join(f"__label__{label} {text}\n" for text, label in GOOD),
}


def test_every_form_of_data_is_the_same_data(program: ModuleType, module: Any, tmp_path: Path) -> None:
    load = module("_labelled").load
    read = [
        load(str(channel(tmp_path / name, content, name)), "the channel train", "", "") for name, content in FORMS.items()
    ]
    assert [(row.text, *row.labels) for row in read[0]] == GOOD
    assert all(other == read[0] for other in read)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "a,b,c\n1,2,3\n", r"a.csv: has no columns text and label \(its first line: 'a, b, c'\)"),
        ("a.csv", "label,text\nx,y\nz\n", r"train: a.csv:3: has 1 cells, the first line has 2"),
        ("a.csv", "label,text\nx,\ny,z\n", r"a.csv:2: the text is empty"),
        ("a.csv", 'x,"open\n', r"line 1: a quote is opened here that is never closed"),
        ("a.csv", b"x,\xff\n", r"a.csv is damaged: it holds b'\\xff'"),
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
    channel(tmp_path / "train", content, name)
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
    channel(tmp_path / "train", FORMS["bare.csv"])
    with pytest.raises(program.Problem, match=words):
        train(**changed)


def test_labels_that_train_has_not_are_named(program: ModuleType, train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", FORMS["bare.csv"])
    with pytest.raises(program.Problem, match="the channel test: text 2 has the label 'ugly', which train has not"):
        train(test=channel(tmp_path / "test", "good,x\nugly,y\n"))


BOTH = {"good": "nice film", "bad": "dull film"}
PLAIN = [(f"{text} number {n}", label) for n in range(9) for label, text in BOTH.items()]


@pytest.mark.parametrize(
    ("first", "label_first", "noted"),
    [
        ("review,sentiment", False, "'review' and 'sentiment', its first line"),
        ("sentence,label", False, "'sentence' and 'label', its first line"),
        ("Sentiment,Tweet text", True, "'Tweet text' and 'Sentiment', its first line"),
        ("good,a film that one sees twice", True, ""),
        ("a film that one sees twice,good", False, "its columns 1 and 2"),
    ],
)
def test_a_first_line_of_csv_is_judged_by_what_is_below(
    module: Any, tmp_path: Path, first: str, label_first: bool, noted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{label},{text}" if label_first else f"{text},{label}" for text, label in PLAIN]
    read = module("_labelled").load(str(channel(tmp_path / "x", "\n".join([first, *rows]) + "\n")), "x", "", "")

    assert [(row.text, *row.labels) for row in read][-len(PLAIN) :] == PLAIN
    assert len(read) == len(PLAIN) + ("film" in first) and {row.labels[0] for row in read} == {"good", "bad"}
    said = capsys.readouterr().err
    assert noted in said and bool(noted) == bool(said)


@pytest.mark.parametrize("first", ["review,sentiment", "Sentence,label"])
def test_texts_that_come_again_are_no_labels(module: Any, tmp_path: Path, first: str) -> None:
    content = f"{first}\n" + "".join(f"{text},{label}\n" for text, label in GOOD)
    read = module("_labelled").load(str(channel(tmp_path / "x", content)), "x", "", "")
    assert [(row.text, *row.labels) for row in read] == GOOD


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_about_as_many_classes_as_texts_are_refused(name: str, program: ModuleType, train: Train, tmp_path: Path) -> None:
    rows = [(f"word{n}", f"a text of {n} words") for n in range(20)]
    forms = {
        "a.csv": "label,text\n" + "".join(f"{label},{text}\n" for label, text in rows),
        "a.jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for label, text in rows),
        "a.txt": "".join(f"__label__{label} {text}\n" for label, text in rows),
    }
    channel(tmp_path / "train", forms[name], name)
    with pytest.raises(program.Problem, match=r"has 20 classes of 20 texts \('word0', 'word1' \.\.\.\): label_column names"):
        train()


@pytest.mark.parametrize(("name", "head"), [("_labelled", "label,text,label"), ("_pairs", "anchor,positive,anchor")])
def test_a_name_that_is_twice_in_a_header_is_refused(module: Any, tmp_path: Path, name: str, head: str) -> None:
    with pytest.raises(module("_common").Problem, match=r"two columns have the name '(label|anchor)' in the header"):
        module(name).load(
            str(channel(tmp_path / "x", f"{head}\na,b,c\nb,c,d\n")), "x", *["", ""][: 2 * (name == "_labelled")]
        )
