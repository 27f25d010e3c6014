"""Trains with a ready program and with its library's own loop, on the same data, and compares what they measure.

    python benchmarks/ready_quality.py text_classification [--seeds 3]

Prints a line a seed: the measure of the test data by the program, and by the library.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "toolkit"), str(ROOT / "entrypoints")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
warnings.simplefilter("ignore")

import demo_data  # noqa: E402 (after the path is set)

# A comparison: data and a folder to work in, and the seed -> what is measured, of ours and of the library's, by name.
Compare = Callable[[Path, Path, int], dict[str, tuple[float, float]]]


def ours(program: str, data: Path, folder: Path, **given: object) -> dict[str, float]:
    """The measures of a program's run."""
    import importlib

    channels = {channel.name: channel for channel in data.iterdir() if channel.is_dir()}
    given = {**channels, "model_dir": folder / "model", "output_data_dir": folder / "output", "device": "cpu", **given}
    sys.argv = [f"{program}.py", *(part for name, value in given.items() for part in (f"--{name}", str(value)))]
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module(program).main()
    return dict(json.loads((folder / "output/metrics.json").read_text()))


def text_classification(data: Path, folder: Path, seed: int) -> dict[str, tuple[float, float]]:
    """The Trainer of Transformers, from the same first weights, with the same tokenizer."""
    import torch
    from _labelled import load
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    settings: dict[str, Any] = {"epochs": 12, "seed": seed, "keep": "last", "batch_size": 32, "learning_rate": 0.001}
    ours("text_classification", data, folder / "first", **{**settings, "epochs": 1, "learning_rate": 0})
    measured = ours("text_classification", data, folder, **settings, previous_model=folder / "first/model")

    tokenizer = AutoTokenizer.from_pretrained(folder / "first/model")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "first/model")

    def rows(part: str) -> list[dict[str, Any]]:
        return [
            {**tokenizer(row.text, truncation=True, max_length=128), "label": model.config.label2id[row.labels[0]]}
            for row in load(str(data / part), part, "", "")
        ]

    args = TrainingArguments(
        output_dir=str(folder / "trainer"), num_train_epochs=12, per_device_train_batch_size=32, learning_rate=0.001,
        warmup_steps=round(0.1 * 12 * -(-len(rows("train")) // 32)), weight_decay=0.01, seed=seed, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=rows("train"), processing_class=tokenizer)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    test = trainer.predict(rows("test"))
    logits, labels = torch.from_numpy(test.predictions), torch.from_numpy(test.label_ids)
    theirs = {
        "accuracy": (logits.argmax(1) == labels).double().mean().item(),
        "loss": torch.nn.functional.cross_entropy(logits, labels).item(),
    }
    return {name: (measured[f"test_{name}"], value) for name, value in theirs.items()}


def forecasting(data: Path, folder: Path, seed: int) -> dict[str, tuple[float, float]]:
    """DeepAREstimator of GluonTS, with Lightning's Trainer, the same sizes and number of steps."""
    import logging

    import numpy
    import torch
    from gluonts.dataset.common import ListDataset
    from gluonts.torch import DeepAREstimator

    sizes = {"prediction_length": 12, "context_length": 24}
    settings: dict[str, Any] = {"time_freq": "M", "epochs": 10, "mini_batch_size": 32, "seed": seed, **sizes}
    measured = ours("forecasting", data, folder, **settings)

    from _forecaster import measured as measures_of
    from _series import load

    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    quiet = {"max_epochs": 10, "accelerator": "cpu", "enable_progress_bar": False, "logger": False}
    estimator = DeepAREstimator(
        freq="M", num_layers=2, hidden_size=40, batch_size=32, num_batches_per_epoch=50, num_feat_static_cat=1,
        cardinality=[2], embedding_dimension=[10],
        trainer_kwargs={**quiet, "enable_model_summary": False, "default_root_dir": str(folder)},
        **sizes,
    )  # fmt: skip

    def rows(part: str, cut: int | None) -> ListDataset:
        found = load(str(data / part), part)
        return ListDataset(
            [{"start": row.start, "target": row.target[:cut], "feat_static_cat": row.cat} for row in found], freq="M"
        )

    predictor = estimator.train(rows("train", None))
    made = [
        numpy.stack([one.mean, *(one.quantile(q / 10) for q in range(1, 10))])
        for one in predictor.predict(rows("test", -12), num_samples=100)
    ]
    truth = numpy.stack([row.target[-12:] for row in load(str(data / "test"), "test")])
    theirs = measures_of(numpy.stack(made), truth, [q / 10 for q in range(1, 10)])
    return {name: (measured[f"test_{name}"], theirs[name]) for name in ("mean_wQuantileLoss", "RMSE")}


COMPARISONS: dict[str, tuple[str, Compare]] = {
    "text_classification": ("topics", text_classification),
    "forecasting": ("series", forecasting),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=COMPARISONS)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    kind, compare = COMPARISONS[asked.program]
    for seed in range(asked.seeds):
        with tempfile.TemporaryDirectory() as place:
            data = Path(place, "data")
            getattr(demo_data, f"write_{kind}")(data)
            for name, (first, second) in compare(data, Path(place), seed).items():
                print(f"{asked.program} seed {seed}: {name}: ours {first:.4g}, the library's {second:.4g}", flush=True)


if __name__ == "__main__":
    main()
