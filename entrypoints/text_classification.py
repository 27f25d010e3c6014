"""Trains a classifier of texts, from hyperparameters alone: a pretrained transformer, or a small one from scratch.

    python demo_data.py topics data                                        # a small data set
    python text_classification.py --train data/train --validation data/validation --epochs 5
    python text_classification.py --train data/train --previous_model distilbert --epochs 3
    torchrun --nproc-per-node 2 text_classification.py --train data/train
    python text_classification.py --predict texts.csv --model_dir model    # classes, one JSON line each

In a training job the hyperparameters come as `--key value` and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_VALIDATION,
SM_CHANNEL_TEST, SM_CHANNEL_MODEL, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR. docs/programs/text_classification.md has the table of
hyperparameters, and the forms of data.

The model folder is one that AutoModelForSequenceClassification of Transformers loads. Code that comes with a model is never
run. Hyperparameters and data are checked before torch is loaded.
"""

from __future__ import annotations

from _common import Parser, Problem, in_job, run

from trainshed.checkpoint import listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

import _from_weights
import _told
from _instructions import split
from _jsonlines import shortened
from _labelled import AGAIN, Labelled, load

PARTS = ("train", "validation", "test")
FEWEST = 20  # texts, of which one can tell whether there are too many classes
RATES = {"pretrained": 5e-5, "scratch": 1e-3}


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    if hp.hidden_size % hp.num_attention_heads:
        raise Problem(f"hidden_size {hp.hidden_size} does not divide by num_attention_heads {hp.num_attention_heads}")
    if hp.mode and (hp.learning_rate or 0) >= 0.02:
        raise Problem(
            f"learning_rate {hp.learning_rate:g} is one for BlazingText's bag of words; leave it out: this is a transformer"
        )
    if hp.early_stopping is False:
        hp.patience = None
    elif hp.early_stopping and hp.patience is None:
        hp.patience = 4
    if hp.patience and not (hp.validation or hp.validation_fraction or hp.predict):
        raise Problem("patience needs a channel validation, or validation_fraction above 0")
    return hp


@dataclass(frozen=True)
class Data:
    """The texts of each part; validation and test may be empty. classes: in order. many: whether a text has several."""

    parts: dict[str, list[Labelled]]
    classes: tuple[str, ...]
    many: bool


def in_order(labels: set[str]) -> tuple[str, ...]:
    """Labels by the alphabet, or by size if all are whole numbers."""
    whole = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=(lambda label: (int(label), label)) if whole else None))  # type: ignore[arg-type]


def load_data(hp: Namespace) -> Data:
    """The channels. Raises Problem."""
    if not hp.train:
        raise Problem("the job has no channel train" if in_job() else "there is nothing to train on: give --train DIR")
    parts = {
        part: load(path, f"the channel {part}", hp.text_column or "", hp.label_column or "") if path else []
        for part, path in ((part, getattr(hp, part)) for part in PARTS)
    }
    classes = in_order({label for row in parts["train"] for label in row.labels})
    several = any(len(row.labels) > 1 for row in parts["train"])
    many = several if hp.multi_label is None else hp.multi_label
    require_plausible(parts["train"], classes, many)
    if len(classes) < 2:
        raise Problem(f"the channel train has one label alone ({classes[0]}): there is nothing to tell apart")
    for part in PARTS:
        for number, row in enumerate(parts[part], 1):
            if strange := sorted(set(row.labels) - set(classes)):
                raise Problem(f"the channel {part}: text {number} has the label {strange[0]!r}, which train has not")
            if len(row.labels) > 1 and not many:
                why = "multi_label is false" if hp.multi_label is False else "no text of train has"
                raise Problem(f"the channel {part}: text {number} has several labels, and {why}")
    texts = _told.texts("text", [row.text for row in parts["train"]], "tokens")
    every = [label for row in parts["train"] for label in row.labels]
    label = _told.labels("label", every, f"{len(classes)} classes" + ", several a text" * many)
    _told.say(hp, "the channel train", len(parts["train"]), [texts, label])
    if not parts["validation"]:
        parts["train"], parts["validation"] = split(parts["train"], hp.validation_fraction, hp.seed)
    return Data(parts, classes, many)


def require_plausible(rows: list[Labelled], classes: Sequence[str], many: bool) -> None:
    """Raises Problem where there are nearly as many classes as texts: another column or field has the labels."""
    if not many and len(rows) >= FEWEST and len(classes) > AGAIN * len(rows):
        shown = ", ".join(map(shortened, classes[:2]))
        raise Problem(
            f"the channel train has {len(classes)} classes of {len(rows)} texts ({shown} ...): label_column names the "
            "column or field with labels, and text_column that with texts"
        )


def main() -> None:
    """The command line."""
    _from_weights.start(__file__, hyperparameters(sys.argv[1:]), "_classifier", load_data, RATES)


if __name__ == "__main__":
    run(main)
