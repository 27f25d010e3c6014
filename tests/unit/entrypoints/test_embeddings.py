"""embeddings.py: forms of data, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.programs import TRANSFORMER, Train, channel

needs("sentence_transformers")
pytestmark = pytest.mark.torch

PROGRAM = "embeddings.py"
PAIRS = [{"anchor": f"what is {word}", "positive": f"{word} is a colour"} for word in ("red", "green", "blue")]
SMALL = TRANSFORMER


def test_csv_is_as_json_lines(program: ModuleType, module: Any, tmp_path: Path) -> None:
    load = module("_pairs").load
    lines = load(str(channel(tmp_path / "a", PAIRS, "a.jsonl")), "x")
    text = "positive,anchor\n" + "".join(f"{row['positive']},{row['anchor']}\n" for row in PAIRS)
    assert [row.texts for row in load(str(channel(tmp_path / "b", text)), "x")] == [row.texts for row in lines]


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
    channel(tmp_path / "train", rows, "a.jsonl")
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
    channel(tmp_path / "train", PAIRS, "a.jsonl")
    with pytest.raises(program.Problem, match=words):
        train(**changed)


def test_a_model_that_cannot_be_loaded_is_named(program: ModuleType, train: Train, tmp_path: Path) -> None:
    channel(tmp_path / "train", PAIRS, "a.jsonl")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{}")
    with pytest.raises(program.Problem, match="broken holds no embedding of texts that Transformers loads: "):
        train(previous_model=tmp_path / "broken")
