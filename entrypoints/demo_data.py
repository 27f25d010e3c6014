"""Small real data sets that need no network, laid out as the channels of a training job.

    python demo_data.py digits DIR              DIR/train/digits.npz, DIR/test/digits.npz  (image_classification.py)
    python demo_data.py digits DIR --format png DIR/train/0/0001.png ..., a folder of images a class
    python demo_data.py digits DIR --format tar DIR/train/digits-000.tar ..., tar shards in webdataset's layout
    python demo_data.py text DIR                DIR/train/*.txt, DIR/validation/*.txt      (language_model.py)
    python demo_data.py instructions DIR        DIR/train/questions.jsonl, validation, test, and DIR/model (fine_tune.py)
    python demo_data.py preferences DIR         the same for objective dpo
    python demo_data.py topics DIR              DIR/train/topics.csv, validation, test     (text_classification.py)
    python demo_data.py series DIR              DIR/train/series.jsonl, DIR/test/series.jsonl (forecasting.py)
    python demo_data.py pairs DIR               DIR/train/pairs.jsonl, validation, test    (embeddings.py)
    python demo_data.py ratings DIR             DIR/train/ratings.csv, validation, test    (recommend.py)
    python demo_data.py shapes DIR              DIR/train/*.png, train_annotation, test ...  (semantic_segmentation.py)
    python demo_data.py boxes DIR               DIR/train/*.png, train_annotation, test ...  (object_detection.py)
    python demo_data.py table DIR               DIR/train/*.csv, validation, test          (tabular.py)

digits: 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn; every fifth is for testing.
table: 569 tumours by 30 measures of their cells, which come with scikit-learn; the first column says which kind it is.
shapes: 200 drawn pictures of discs and squares of 32 x 32 pixels, and the class of each pixel; every fifth is for testing.
boxes: these pictures, and COCO's JSON with a box around each shape.
text: the reference topics of Python's own `help()`, 460 kB of English and code; every tenth is for validation.
pairs: the questions of `instructions` as anchors, with their answers.
ratings: 3,000 of 40 items by 60 users, drawn by numbers of a fixed seed from tastes of three numbers each.
series: 24 monthly series of 160 values, drawn by numbers of a fixed seed: trend, season and noise, some values missing;
the last 12 are in test alone.
topics: sentences of the reference topics of Python's `help()`, each with the topic that it is of, of the 8 longest.
instructions: what the functions and methods of Python's own types do, by their docstrings: some 300 questions; every tenth
is for validation, and every tenth for testing. preferences: the same; rejected is the answer with its words in reverse.
The model is a Llama of 300,000 random weights, and its tokenizer is trained on the questions and answers.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import random
import re
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _common
from _common import Problem

if TYPE_CHECKING:
    import numpy

TEXT_HELD_OUT = 10
SHARD = 300  # images
SHAPES = (("train", 160, 0), ("test", 40, 1))  # channels, their pictures, seeds


def digits() -> dict[str, tuple[numpy.ndarray, numpy.ndarray]]:
    """(images, labels) for `train` and `test`: uint8 of shape (N, 8, 8) from 0 to 240, and int64 from 0 to 9.

    Shuffled with a fixed seed before the split, since neighbours were written by the same hand.
    """
    try:
        import numpy
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise Problem(f"the digits come with scikit-learn: pip install scikit-learn ({error})") from error
    data = load_digits()
    images, labels = (data.images * 15).astype(numpy.uint8), data.target.astype(numpy.int64)
    order = numpy.random.default_rng(0).permutation(len(labels))
    cut = len(labels) // 5
    return {"train": (images[order[cut:]], labels[order[cut:]]), "test": (images[order[:cut]], labels[order[:cut]])}


def text() -> dict[str, dict[str, str]]:
    """Topic name -> text, for `train` and `validation`."""
    from pydoc_data import topics

    names = sorted(topics.topics)
    held_out = names[::TEXT_HELD_OUT]
    return {
        "train": {name: topics.topics[name] for name in names if name not in held_out},
        "validation": {name: topics.topics[name] for name in held_out},
    }


def write_digits(root: Path, form: str = "npz") -> None:
    """The digits as `root`/train and `root`/test."""
    import numpy

    for channel, (images, labels) in digits().items():
        target = root / channel
        target.mkdir(parents=True, exist_ok=True)
        if form == "npz":
            with _common.whole_file(target / "digits.npz") as path, path.open("wb") as file:
                numpy.savez_compressed(file, x=images, y=labels)
            continue
        if form == "tar":
            write_shards(target, images, labels)
            continue
        from PIL import Image

        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            (target / str(label)).mkdir(exist_ok=True)
            Image.fromarray(image).save(target / str(label) / f"{index:04d}.png")


def write_shards(target: Path, images: numpy.ndarray, labels: numpy.ndarray) -> None:
    """The digits as tar archives of SHARD images each: 0001.png and 0001.cls, the number of its class."""
    from PIL import Image

    for first in range(0, len(images), SHARD):
        with (
            _common.whole_file(target / f"digits-{first // SHARD:03d}.tar") as path,
            tarfile.open(path, "w") as archive,
        ):
            for index in range(first, min(first + SHARD, len(images))):
                picture = io.BytesIO()
                Image.fromarray(images[index]).save(picture, "png")
                for ending, data in (("png", picture.getvalue()), ("cls", str(labels[index]).encode())):
                    info = tarfile.TarInfo(f"{index:04d}.{ending}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def write_table(root: Path) -> None:
    """The tumours as `root`/train, validation and test: CSV with names of columns, `diagnosis` first."""
    try:
        import numpy
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise Problem(f"the table comes with scikit-learn: pip install scikit-learn ({error})") from error
    data = load_breast_cancer()
    names = ["diagnosis", *(name.replace(" ", "_") for name in data.feature_names)]
    order = numpy.random.default_rng(0).permutation(len(data.target))
    ends = (len(order) * 3 // 5, len(order) * 4 // 5)
    for channel, rows in zip(("train", "validation", "test"), numpy.split(order, ends), strict=True):
        with _common.whole_file(root / channel / "tumours.csv") as path:
            lines = [[data.target_names[data.target[row]], *(f"{value:.6g}" for value in data.data[row])] for row in rows]
            path.write_text("".join(",".join(line) + "\n" for line in [names, *lines]), encoding="utf-8")


def write_pairs(root: Path) -> None:
    """The questions and answers as `root`/train, validation and test: JSON lines with anchor and positive."""
    for channel, pairs in instructions().items():
        with _common.whole_file(root / channel / "pairs.jsonl") as path:
            lines = (json.dumps({"anchor": question, "positive": answer}) for question, answer in pairs)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_ratings(root: Path) -> None:
    """The ratings as `root`/train, validation and test: CSV with the columns rating, user and item."""
    draw = random.Random(0)
    users, items = ([[draw.gauss(0, 1) for _ in range(3)] for _ in range(count)] for count in (60, 40))
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for number in range(3000):
        user, item = draw.randrange(60), draw.randrange(40)
        rating = 3 + sum(one * other for one, other in zip(users[user], items[item], strict=True)) + draw.gauss(0, 0.1)
        part = {0: "validation", 5: "test"}.get(number % TEXT_HELD_OUT, "train")
        parts[part].append(f"{rating:.3f},user-{user},item-{item}\n")
    for part, lines in parts.items():
        with _common.whole_file(root / part / "ratings.csv") as path:
            path.write_text("rating,user,item\n" + "".join(lines), encoding="utf-8")


def write_series(root: Path) -> None:
    """Monthly series as `root`/train and test: JSON lines with start, target, cat; test has the last 12 values, too."""
    draw = random.Random(0)
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for number in range(24):
        level, swing, shift = draw.uniform(20, 200), draw.uniform(0.1, 0.4), draw.randrange(12)
        target: list[object] = []
        for month in range(160):
            season = swing * math.sin(2 * math.pi * (month + shift) / 12) * (1 if number % 2 else -1)
            value = level * (1 + 0.003 * month + season + draw.gauss(0, 0.04))
            target.append("NaN" if month > 20 and draw.random() < 0.01 else round(value, 3))
        for part, values in (("train", target[:-12]), ("test", target)):
            lines[part].append(json.dumps({"start": "2010-01-01 00:00:00", "target": values, "cat": [number % 2]}))
    for part, rows in lines.items():
        with _common.whole_file(root / part / "series.jsonl") as path:
            path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def write_topics(root: Path) -> None:
    """Paragraphs of the longest topics as `root`/train, validation and test: CSV with the columns text and label."""
    from pydoc_data import topics

    longest = sorted(topics.topics, key=lambda name: (-len(topics.topics[name]), name))[:8]
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    rows = [
        (" ".join(text.split()), name)
        for name in sorted(longest)
        for text in topics.topics[name].split("\n\n")
        if len(text.split()) >= 8
    ]
    for index, row in enumerate(rows):
        parts[{0: "validation", 5: "test"}.get(index % TEXT_HELD_OUT, "train")].append(row)
    for channel, kept in parts.items():
        with _common.whole_file(root / channel / "topics.csv") as path, path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *kept])


def write_text(root: Path) -> None:
    """The topics as `root`/train and `root`/validation."""
    for channel, files in text().items():
        (root / channel).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / channel / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.txt").write_text(content, encoding="utf-8")


def instructions() -> dict[str, list[tuple[str, str]]]:
    """(question, answer) for `train`, `validation` and `test`."""
    import builtins

    found = {}
    for kind in (str, bytes, list, dict, set, int, float):
        for name in sorted(vars(kind)):
            if not name.startswith("_"):
                found[f"{kind.__name__}.{name}"] = getattr(vars(kind)[name], "__doc__", None)
    for name in sorted(vars(builtins)):
        if name[0].islower():
            found[name] = getattr(builtins, name).__doc__
    # A docstring may begin with the call, as in "dir([object]) -> list of strings": the first sentence comes after it.
    pairs = []
    for name, text in sorted(found.items()):
        lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
        if lines and re.match(r"[\w.]+\(.*->", lines[0]):
            del lines[0]
        if lines and " " in lines[0]:
            pairs.append((f"What does {name} do?", lines[0]))
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    for index, pair in enumerate(pairs):
        parts[{0: "validation", 5: "test"}.get(index % TEXT_HELD_OUT, "train")].append(pair)
    return parts


def shapes(count: int, seed: int, size: int = 32) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """Pictures uint8 [size, size, 3] of discs and squares on noise, and masks: 0 ground, 1 disc, 2 square; 255 at edges."""
    import numpy

    draw = numpy.random.default_rng(seed)
    rows, columns = numpy.mgrid[:size, :size]
    made = []
    for _ in range(count):
        picture = draw.integers(0, 90, (size, size, 3))
        mask = numpy.zeros((size, size), numpy.uint8)
        for kind in draw.permutation([1, 2])[: draw.integers(1, 3)]:
            half, middle = draw.integers(4, size // 4), draw.integers(6, size - 6, 2)
            away = numpy.hypot(rows - middle[0], columns - middle[1]) if kind == 1 else numpy.maximum(
                abs(rows - middle[0]), abs(columns - middle[1])
            )  # fmt: skip
            picture[away <= half] = draw.integers(120, 256, 3)
            mask[away <= half] = kind
            mask[(away > half) & (away <= half + 1)] = 255
        made.append((picture.astype(numpy.uint8), mask))
    return made


def write_shapes(root: Path) -> None:
    """The shapes as `root`/train, test, and their masks in train_annotation, test_annotation."""
    try:
        from PIL import Image
    except ImportError as error:
        raise Problem("image files need Pillow: pip install pillow") from error
    for channel, count, seed in SHAPES:
        for at, (picture, mask) in enumerate(shapes(count, seed)):
            for name, content in ((channel, picture), (f"{channel}_annotation", mask)):
                with _common.whole_file(root / name / f"{at:04d}.png") as path:
                    Image.fromarray(content).save(path, "PNG")


def write_boxes(root: Path) -> None:
    """The shapes as `root`/train, test, and their boxes as COCO's JSON in train_annotation, test_annotation."""
    import numpy

    write_shapes(root)
    for channel, count, seed in SHAPES:
        images, boxes = list[Any](), list[Any]()
        for at, (_, mask) in enumerate(shapes(count, seed)):
            (root / f"{channel}_annotation" / f"{at:04d}.png").unlink()
            images.append({"id": at, "file_name": f"{at:04d}.png", "width": mask.shape[1], "height": mask.shape[0]})
            for kind in (1, 2):
                rows, columns = numpy.nonzero(mask == kind)
                if len(rows):
                    low, high = (int(columns.min()), int(rows.min())), (int(columns.max()) + 1, int(rows.max()) + 1)
                    box = [*low, high[0] - low[0], high[1] - low[1]]
                    one = {"id": len(boxes), "image_id": at, "category_id": kind, "bbox": box, "area": box[2] * box[3]}
                    boxes.append({**one, "iscrowd": 0})
        content = {
            "images": images,
            "annotations": boxes,
            "categories": [{"id": 1, "name": "disc"}, {"id": 2, "name": "square"}],
        }
        _common.write_json(root / f"{channel}_annotation" / "instances.json", content)


def write_instructions(root: Path, preferences: bool = False) -> None:
    """The questions as `root`/train, `root`/validation and `root`/test, and `root`/model."""
    parts = instructions()
    every = [pair for pairs in parts.values() for pair in pairs]
    for channel, pairs in parts.items():
        lines: list[dict[str, Any]] = []
        for question, answer in pairs:
            if preferences:
                lines.append({"prompt": question, "chosen": answer, "rejected": " ".join(reversed(answer.split()))})
            else:
                turns = (("user", question), ("assistant", answer))
                lines.append({"messages": [{"role": role, "content": content} for role, content in turns]})
        with _common.whole_file(root / channel / "questions.jsonl") as path:
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_model(root / "model", [text for pair in every for text in pair])


def write_model(target: Path, texts: list[str], width: int = 64) -> None:
    """A Llama with random weights, and a tokenizer that was trained on the texts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(target)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        initializer_range=0.1,  # five times the usual: an adapter can do little with an output of next to nothing
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(target)


WRITERS: dict[str, Callable[[Path], None]] = {
    "digits": write_digits,
    "table": write_table,
    "text": write_text,
    "topics": write_topics,
    "series": write_series,
    "pairs": write_pairs,
    "ratings": write_ratings,
    "instructions": write_instructions,
    "preferences": partial(write_instructions, preferences=True),
    "shapes": write_shapes,
    "boxes": write_boxes,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(WRITERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", choices=("npz", "png", "tar"), default="npz", help="of the digits")
    arguments = parser.parse_args(sys.argv[1:])
    if arguments.what == "digits":
        write_digits(arguments.folder, arguments.format)
    else:
        WRITERS[arguments.what](arguments.folder)
    print(f"{arguments.what}: {', '.join(str(path) for path in sorted(arguments.folder.iterdir()))}")


if __name__ == "__main__":
    _common.run(main)
