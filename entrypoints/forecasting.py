"""Forecasts time series with one model for all of them (DeepAR of GluonTS), from hyperparameters alone.

    python demo_data.py series data                                        # a small data set
    python forecasting.py --train data/train --test data/test --time_freq H --prediction_length 24 --context_length 48 \
        --epochs 10
    torchrun --nproc-per-node 2 forecasting.py --train data/train ...
    python forecasting.py --predict series.jsonl --model_dir model         # what comes next, one JSON line each

In a training job the hyperparameters come as `--key value` and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_VALIDATION,
SM_CHANNEL_TEST, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR. docs/programs/forecasting.md has the table of hyperparameters: their
names, the form of data and the measures are those of the platform's DeepAR.

The model folder is one that `Predictor.deserialize` of GluonTS loads. Hyperparameters and data are checked before torch is
loaded.
"""

from __future__ import annotations

from _common import Parser, Problem, World, in_job, looked, require_libraries, run

from trainshed.checkpoint import listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import json
import math
import signal
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import _told
from _series import Series, frequency, load

PARTS = ("train", "validation", "test")
LONGEST = 100_000  # steps of a window


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    parser = Parser.declared(__file__)
    hp = parser.read(argv)
    if not hp.predict:
        for name in ("time_freq", "context_length", "prediction_length", "epochs"):
            if getattr(hp, name) is None:
                raise Problem(f"hyperparameter {name} is missing")
        hp.time_freq = frequency(hp.time_freq)
        hp.cardinality = numbers(hp.cardinality, "cardinality", 1, 2**31)
        hp.num_dynamic_feat = features(hp.num_dynamic_feat)
        hp.test_quantiles = numbers(hp.test_quantiles, "test_quantiles", 0.0, 1.0)
        if not hp.test_quantiles or isinstance(hp.test_quantiles, str) or not all(0 < q < 1 for q in hp.test_quantiles):
            raise Problem("test_quantiles must be a list of numbers between 0 and 1: [0.1, 0.5, 0.9]")
        if hp.context_length + hp.prediction_length > LONGEST:
            raise Problem(f"context_length and prediction_length are more than {LONGEST} together")
    # By the names of the loop.
    hp.batch_size, hp.patience = hp.mini_batch_size, hp.early_stopping_patience
    hp.lr_schedule, hp.warmup_ratio, hp.log_interval, hp.min_epochs, hp.keep = "constant", 0.0, 0, 0, "best"
    return hp


def numbers(text: str | None, name: str, least: float, most: float) -> Any:
    """A list of numbers as requests write it, `[2, 3]` or `2,3`, or the word auto, or none of them. Raises Problem."""
    text = (text or "").strip().strip('"')
    if text in ("", "auto"):
        return text
    try:
        made = json.loads(text if text.startswith("[") else f"[{text}]")
    except (ValueError, RecursionError) as error:
        raise Problem(f"{name} {text!r} is not a list of numbers: [2, 3]") from error
    if not all(isinstance(one, (int, float)) and not isinstance(one, bool) and least <= one <= most for one in made):
        raise Problem(f"{name} {text!r} is not a list of numbers from {least:g} to {most:g}")
    return made


def features(text: str | None) -> Any:
    """How many features of time series have: a number, `auto`, or 0 to leave them out. Raises Problem."""
    text = (text or "").strip().strip('"')
    if text in ("auto", "", "ignore"):
        return "auto" if text == "auto" else 0
    if not text.isdecimal() or len(text) > 6:
        raise Problem(f"num_dynamic_feat {text!r} is neither auto, ignore nor a whole number")
    return int(text)


def load_data(hp: Namespace) -> dict[str, list[Series]]:
    """The series of each part; of train, those that are long enough. Raises Problem."""
    if not hp.train:
        raise Problem("the job has no channel train" if in_job() else "there is nothing to train on: give --train DIR")
    parts = {
        part: load(path, f"the channel {part}") if path else []
        for part, path in ((part, getattr(hp, part)) for part in PARTS)
    }
    settle(hp, parts["train"])
    for part, rows in parts.items():
        for row in rows:
            if wrong := misfit(hp, row):
                raise Problem(f"the channel {part}: {row.where}: {wrong}")
        long = [row for row in rows if len(row.target) > hp.prediction_length and known(row.target)]
        if rows and not long:
            few = f"no series has more than prediction_length ({hp.prediction_length}) values, one of them known"
            raise Problem(f"the channel {part}: {few}")
        if len(long) < len(rows):
            print(f"{part}: {len(rows) - len(long)} of {len(rows)} series have too few values and are left out", flush=True)
        parts[part] = long
    return parts


def fields_of(rows: Sequence[Series]) -> list[_told.Field]:
    """What series hold, and what becomes of it."""
    starts = [row.start for row in rows]
    span = f"{min(starts):%Y-%m-%d %H:%M} to {max(starts):%Y-%m-%d %H:%M}"
    steps = [len(row.target) for row in rows]
    length = f"what is forecast, {min(steps):,} to {max(steps):,} steps a series"
    made = [
        _told.Field("start", "date", len(starts), len(set(starts)), 0, span, "time features"),
        _told.numbers("target", (value for row in rows for value in row.target), length),
    ]
    sizes = max(len(row.cat) for row in rows)
    made += [
        _told.numbers(f"cat[{at}]", (row.cat[at] for row in rows if at < len(row.cat)), "category") for at in range(sizes)
    ]
    wide = max(len(row.features) for row in rows)
    for at in range(wide):
        values = (value for row in rows if at < len(row.features) for value in row.features[at])
        made.append(_told.numbers(f"dynamic_feat[{at}]", values, "number at each step"))
    return made


def known(values: Sequence[float]) -> bool:
    """Whether a value is not missing."""
    return any(not math.isnan(value) for value in values)


def settle(hp: Namespace, rows: Sequence[Series]) -> None:
    """What `auto` stands for in these series: the number of categories, and of features."""
    if hp.cardinality == "auto":
        sizes = [row.cat for row in rows]
        hp.cardinality = [max(column) + 1 for column in zip(*sizes, strict=False)] if all(sizes) else []
    hp.cardinality = [int(size) for size in hp.cardinality or []]
    if hp.num_dynamic_feat == "auto":
        hp.num_dynamic_feat = len(rows[0].features)


def misfit(hp: Namespace, row: Series) -> str:
    """What of a series is not as the job has it; "" if nothing is."""
    if hp.cardinality and len(row.cat) != len(hp.cardinality):
        return f"cat has {len(row.cat)} values, and the job has {len(hp.cardinality)} (cardinality)"
    for at, (category, size) in enumerate(zip(row.cat, hp.cardinality, strict=False)):
        if category >= size:
            return f"cat[{at}] is {category}, and cardinality says that it is below {size}"
    if hp.num_dynamic_feat and len(row.features) != hp.num_dynamic_feat:
        return f"dynamic_feat has {len(row.features)} features, and the job has {hp.num_dynamic_feat}"
    for at, value in enumerate(row.target):
        if hp.likelihood == "negative-binomial" and (value < 0 or value != int(value) if not math.isnan(value) else False):
            return f"target[{at}] is {value:g}, and likelihood negative-binomial takes whole numbers of 0 or more"
        if hp.likelihood == "beta" and (value <= 0 or value >= 1):
            return f"target[{at}] is {value:g}, and likelihood beta takes numbers between 0 and 1"
    return ""


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    require_libraries(__file__)
    warnings.simplefilter("ignore")  # before GluonTS is imported, which has many of them
    if hp.predict:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing to save
        import _forecaster

        _forecaster.predict(hp)
        return
    parts = load_data(hp)
    _told.say(hp, "the channel train", len(parts["train"]), fields_of(parts["train"]))
    looked(hp)
    import _forecaster

    world = World.join(hp.device)
    _forecaster.train(hp, parts, world)
    world.leave()


if __name__ == "__main__":
    run(main)
