"""Trains embeddings of texts, from hyperparameters alone: texts that belong together come near each other.

    python demo_data.py pairs data                                         # a small data set
    python embeddings.py --train data/train --validation data/validation --epochs 5
    python embeddings.py --train data/train --previous_model minilm --epochs 1
    torchrun --nproc-per-node 2 embeddings.py --train data/train
    python embeddings.py --predict texts.txt --model_dir model             # embeddings, one JSON line each

In a training job the hyperparameters come as `--key value` and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_VALIDATION,
SM_CHANNEL_TEST, SM_CHANNEL_MODEL, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR. docs/programs/embeddings.md has the table of
hyperparameters, and the forms of data.

The model folder is one that SentenceTransformer loads. Code that comes with a model is never run. Hyperparameters and data
are checked before torch is loaded.
"""

from __future__ import annotations

from _common import Parser, Problem, in_job, run

from trainshed.checkpoint import listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import sys
from argparse import Namespace
from collections.abc import Sequence

import _from_weights
import _told
from _instructions import split
from _pairs import FORMS, Related, form, load

PARTS = ("train", "validation", "test")
RATES = {"pretrained": 2e-5, "scratch": 1e-3}


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    if hp.hidden_size % hp.num_attention_heads:
        raise Problem(f"hidden_size {hp.hidden_size} does not divide by num_attention_heads {hp.num_attention_heads}")
    if hp.patience and not (hp.validation or hp.validation_fraction or hp.predict):
        raise Problem("patience needs a channel validation, or validation_fraction above 0")
    hp.min_epochs = 0
    return hp


def load_data(hp: Namespace) -> dict[str, list[Related]]:
    """The examples of each part, all of one form; validation and test may be empty. Raises Problem."""
    if not hp.train:
        raise Problem("the job has no channel train" if in_job() else "there is nothing to train on: give --train DIR")
    parts = {
        part: load(path, f"the channel {part}") if path else []
        for part, path in ((part, getattr(hp, part)) for part in PARTS)
    }
    first = form(parts["train"][0])
    for part, rows in parts.items():
        if other := next((row for row in rows if form(row) != first), None):
            raise Problem(f"the channel {part}: {other.where}: is one of {form(other)}, and train begins with {first}")
    if len(parts["train"]) < 2:
        raise Problem("the channel train has one example alone: there is nothing to tell it from")
    _told.say(hp, "the channel train", len(parts["train"]), fields_of(parts["train"]))
    if not parts["validation"]:
        parts["train"], parts["validation"] = split(parts["train"], hp.validation_fraction, hp.seed)
    return parts


def fields_of(rows: Sequence[Related]) -> list[_told.Field]:
    """What examples hold, and what becomes of it."""
    scores = [row.score for row in rows if row.score is not None]
    names = FORMS[bool(scores)]
    each = zip(*(row.texts for row in rows), strict=True)
    made = [_told.texts(name, texts, "tokens") for name, texts in zip(names, each, strict=False)]
    return [*made, _told.numbers("score", scores, "how alike they are to be")] if scores else made


def main() -> None:
    """The command line."""
    _from_weights.start(__file__, hyperparameters(sys.argv[1:]), "_embedder", load_data, RATES)


if __name__ == "__main__":
    run(main)
