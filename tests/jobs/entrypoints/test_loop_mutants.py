"""Data and hyperparameters that nobody has written by hand: the programs on `_epochs` train, or say what is wrong.

`TRAINSHED_MUTANTS=1000` tries as many of each program; a failure names its seed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints import picture_mutants as mutants
from jobs.entrypoints.mutants import file_of, mutated, table
from support import programs
from support.extras import needs
from trainshed.algorithms.declaration import read as declared

pytestmark = pytest.mark.matrix

COUNT = int(os.environ.get("TRAINSHED_MUTANTS") or 40)

Table = list[list[str]]
ODD: list[Any] = [None, True, -1, 0, 1e400, 1.5, "", "NaN", [], {}, [1], "x", "\ud800", 10**400, "é"]


def spoilt(data: bytes, draw: random.Random) -> bytes:
    """The bytes of a file, some of them changed or missing, rarely."""
    if draw.random() < 0.1 and data:
        changed = bytearray(data)
        for _ in range(draw.choice([1, 3])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        data = bytes(changed)
    return data[: draw.randrange(len(data) + 1)] if draw.random() < 0.05 else data


def as_csv(rows: Table) -> bytes:
    held = io.StringIO()
    csv.writer(held).writerows(rows)
    return held.getvalue().encode("utf-8", "replace")


def as_lines(objects: list[dict[str, Any]], draw: random.Random) -> bytes:
    """JSON lines, with odd values and lost fields."""
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        one = draw.choice(objects)
        if one and draw.random() < 0.7:
            one[draw.choice(sorted(one))] = draw.choice(ODD)
        elif one:
            one.pop(draw.choice(sorted(one)))
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


def texts(draw: random.Random) -> tuple[str, bytes]:
    words = ["fine", "dull", "day", "film", "é", "🦊", "__label__x", "", " ", "a" * 300, '"', "\x00", "\n"]
    usual, used = draw.choice([["a", "b"]] * 5 + [["0", "1", "2"], ["a"]]), words[: draw.choice([4, 4, 4, 6, 13])]
    rows = [[draw.choice(usual), " ".join(draw.choices(used, k=4))] for _ in range(draw.choice([2, 20, 30]))]
    kind = draw.choice(["csv", "jsonl", "txt"])
    if kind == "csv":
        named = [["label", "text"], *rows] if draw.random() < 0.5 else rows
        return "a.csv", as_csv(mutated(named, draw) if draw.random() < 0.5 else named)
    if kind == "txt":
        return "a.txt", "".join(f"__label__{row[0]} {row[1]}\n" for row in rows).encode()
    made = [{"text": text, "label": draw.choice([label, [label], int(label, 16)])} for label, text in rows]
    return "a.jsonl", as_lines(made, draw)


def tell_classes(folder: Path, said: dict[str, Any]) -> None:
    """The model gives numbers in the library's own hands."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    logits = model(**tokenizer(["fine day"], return_tensors="pt", truncation=True, max_length=said["max_length"])).logits
    assert logits.shape == (1, len(said["classes"])) and torch.isfinite(logits).all()


def series(draw: random.Random) -> tuple[str, bytes]:
    """Time series, some with categories, features and missing values."""
    made: list[dict[str, Any]] = []
    features, categories = draw.choice([0, 0, 1, 2]), draw.choice([0, 0, 1, 2])
    kind = draw.choice(["real", "count", "part", "huge", "constant"])
    values: dict[str, Callable[[], Any]] = {
        "real": lambda: round(draw.gauss(5, 2), 3),
        "count": lambda: draw.randrange(9),
        "part": lambda: round(draw.uniform(0.01, 0.99), 3),
        "huge": lambda: draw.choice([-1, 1]) * 10.0 ** draw.randrange(19),
        "constant": lambda: draw.choice([0, 0, 0.0]),
    }
    for _ in range(draw.choice([1, 3, 6])):
        target = [values[kind]() for _ in range(draw.choice([3, 12, 30, 60]))]
        if draw.random() < 0.3:
            target = [draw.choice(["NaN", None]) if draw.random() < draw.choice([0.1, 0.9]) else one for one in target]
        one: dict[str, Any] = {"start": draw.choice(["2020-01-31", "2020-01-01 00:00:00", "1999-12-31T23:59:59"])}
        one["target"] = target
        if categories:
            one["cat"] = [draw.randrange(3) for _ in range(categories)]
        if features:
            one["dynamic_feat"] = [[round(draw.random(), 2) for _ in target] for _ in range(features)]
        made.append(one)
    if draw.random() < 0.1:
        one = draw.choice(made)
        name = draw.choice([name for name in one if isinstance(one[name], list)])
        one[name][: draw.randrange(3)] = [draw.choice(ODD)]
    return draw.choice(["a.json", "a.jsonl"]), as_lines(made, draw)


def pairs(draw: random.Random) -> tuple[str, bytes]:
    """Texts that belong together, or with a score."""
    words = ["fine", "dull", "day", "film", "é", "🦊", "", " ", "a" * 300, '"', "\x00", "\n"][
        : draw.choice([4, 4, 4, 6, 12])
    ]

    def text() -> str:
        return " ".join(draw.choices(words, k=4))

    names = draw.choice(
        [["anchor", "positive"]] * 3 + [["anchor", "positive", "negative"]] * 2 + [["sentence1", "sentence2"]]
    )
    made: list[dict[str, Any]] = [{name: text() for name in names} for _ in range(draw.choice([1, 2, 9, 20]))]
    if names[0] == "sentence1":
        made = [{**one, "score": draw.choice([0, 1, round(draw.random(), 2), 0.5])} for one in made]
    if draw.random() < 0.3:
        rows = [list(made[0]), *([str(value) for value in one.values()] for one in made)]
        return "a.csv", as_csv(mutated(rows, draw) if draw.random() < 0.5 else rows)
    return "a.jsonl", as_lines(made, draw)


def embed_with(folder: Path, said: dict[str, Any]) -> None:
    """sentence-transformers itself embeds with the model."""
    import numpy
    from sentence_transformers import SentenceTransformer

    made = SentenceTransformer(str(folder), device="cpu").encode(["fine day", "é" * 400])
    assert made.shape == (2, said["width"]) and numpy.isfinite(made).all()


def ids(draw: random.Random) -> tuple[str, bytes]:
    """A table of ids, or of whatever."""
    rows = table(draw)
    return file_of(mutated(rows, draw) if draw.random() < 0.3 else rows, draw)


def machine_of(folder: Path, said: dict[str, Any]) -> None:
    """The weights are there, and numbers."""
    import torch
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    assert state["factors.weight"].shape == (said["features"] + 1, said["hyperparameters"]["num_factors"])
    assert all(torch.isfinite(weight).all() for weight in state.values())


def forecast_on(folder: Path, said: dict[str, Any]) -> None:
    """GluonTS itself forecasts with the model."""
    import numpy
    from gluonts.dataset.common import ListDataset
    from gluonts.model.predictor import Predictor

    hp = said["hyperparameters"]
    entry: dict[str, Any] = {"start": "2020-01-01", "target": [1.0] * 30, "feat_static_cat": [0] * len(hp["cardinality"])}
    entry["feat_dynamic_real"] = [[0.0] * (30 + hp["prediction_length"])] * hp["num_dynamic_feat"]
    rows = ListDataset([{name: value for name, value in entry.items() if value}], freq=hp["time_freq"])
    [made] = Predictor.deserialize(folder).predict(rows, num_samples=3)
    assert made.samples.shape == (3, hp["prediction_length"]) and numpy.isfinite(made.samples).all()


# By program: a file of data, what to check of a model, hyperparameters that are always given, and those that change.
PROGRAMS: dict[str, tuple[Callable[..., tuple[str, bytes]], Callable[..., None], dict[str, str], dict[str, list[str]]]] = {
    "embeddings": (
        pairs, embed_with,
        {"hidden_size": "8", "num_attention_heads": "2", "num_hidden_layers": "1", "vocab_size": "300", "max_length": "8"},
        {
            "max_length": ["4", "1", "64"],
            "scale": ["0.01", "1000", "0", "20"],
            "hidden_size": ["2", "7", "16"],
            "keep": ["last"],
        },
    ),
    "forecasting": (
        series, forecast_on,
        {"time_freq": "D", "prediction_length": "3", "context_length": "4", "num_batches_per_epoch": "2", "num_cells": "4",
         "mini_batch_size": "4", "num_eval_samples": "3"},
        {
            "time_freq": ["M", "W", "H", "15min", "2H", "B", "Q", "Y", "S", "min", "0D", "x", "D"],
            "prediction_length": ["1", "12", "40"],
            "context_length": ["1", "50"],
            "likelihood": ["gaussian", "negative-binomial", "beta", "deterministic-L1", "normal"],
            "cardinality": ["", "auto", "[3]", "[1]", "3,3", "[]", "[x]"],
            "num_dynamic_feat": ["ignore", "auto", "1", "x", "7"],
            "embedding_dimension": ["1", "200"],
            "num_layers": ["1", "3"],
            "mini_batch_size": ["1", "33"],
            "test_quantiles": ["[0.5]", "0.1,0.9", "[2]", "[]", "[0.5, 0.5]"],
            "early_stopping_patience": ["1"],
            "dropout_rate": ["0", "0.99"],
        },
    ),
    "recommend": (
        ids, machine_of, {"num_factors": "2", "predictor_type": "regressor"},
        {
            "predictor_type": ["binary_classifier", "x"],
            "num_factors": ["1", "8", "0"],
            "model": ["towers", "x"],
            "user_columns": ["a", "b", "a,b", "zzz"],
            "hidden_size": ["1", "0"],
            "feature_dim": ["1", "100"],
            "mini_batch_size": ["1", "7"],
            "factors_lr": ["0", "0.1", "1000"],
            "linear_wd": ["0", "1e30"],
            "factors_init_sigma": ["0", "100"],
            "clip_gradient": ["0", "1"],
            "target": ["t", "b"],
            "ignore_columns": ["a", "a,b"],
            "keep": ["last"],
        },
    ),
    "text_classification": (
        texts, tell_classes,
        {"hidden_size": "8", "num_attention_heads": "2", "num_hidden_layers": "1", "vocab_size": "300", "max_length": "8"},
        {
            "architecture": ["roberta", "electra", "deberta-v2", "modernbert", "gpt2"],
            "max_length": ["4", "1", "64"],
            "class_weights": ["balanced", "none", "x"],
            "multi_label": ["true", "false"],
            "text_column": ["text", "t"],
            "label_column": ["label", "text"],
            "hidden_size": ["2", "7", "16"],
            "vocab_size": ["300", "10000"],
            "num_hidden_layers": ["2"],
            "keep": ["last"],
        },
    ),
}  # fmt: skip
ALWAYS: dict[str, list[str]] = {
    "epochs": ["2", "3", "1.5"],
    "batch_size": ["1", "2", "1000"],
    "learning_rate": ["0", "1", "1000", "nan", "-1"],
    "lr_schedule": ["constant", "cosine"],
    "warmup_ratio": ["0", "1", "0.5"],
    "weight_decay": ["0", "1e30"],
    "max_grad_norm": ["0", "1e-9"],
    "dropout": ["0", "0.99"],
    "validation_fraction": ["0", "0.5", "0.9"],
    "patience": ["1"],
    "seed": ["4294967295", "-1"],
}


def arguments(name: str, draw: random.Random) -> list[str]:
    small, values = PROGRAMS[name][2:]
    takes = declared(str(programs.ENTRYPOINTS / f"{name}.algorithm.yaml")).hyperparameters
    values = {**{each: given for each, given in ALWAYS.items() if each in takes}, **values}
    names = draw.sample(sorted(values), draw.choice([0, 0, 1, 2, 4]))
    given = {"epochs": "1", **small} | {each: draw.choice(values[each]) for each in names}
    return [part for each, value in given.items() for part in (f"--{each}", value)]


def make(name: str, draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """A file of data in each of some channels, and arguments."""
    files = {}
    for channel in draw.choice([["train"], ["train"], ["train", "validation"], ["train", "test"]]):
        file, data = PROGRAMS[name][0](draw)
        files[f"{channel}/{file}"] = spoilt(data, draw)
    given = [part for path in files for channel in [path.partition("/")[0]] for part in (f"--{channel}", channel)]
    return files, ["--device", "cpu", *given, *arguments(name, draw)]


def usable(name: str) -> bool:
    """Whether a library takes the model in ./model; says what is wrong with it."""
    PROGRAMS[name][1](Path("model"), json.loads(Path("model/model.json").read_text()))
    return True


def work(name: str) -> None:
    """What the process of a program does, in a folder of its own."""
    mutants.every(name, partial(make, name), partial(usable, name), "model", range(COUNT))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_mutant_trains_or_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    needs("torch")
    mutants.start("test_loop_mutants", name, tmp_path)
