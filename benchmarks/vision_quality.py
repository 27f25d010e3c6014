"""Is image_classification.py as good on a trained network as the library's own example, on the same data?

    python benchmarks/vision_quality.py [SEEDS]

A small vision transformer (Transformers), as others would have trained it: on scikit-learn's digits 0 to 4. Then it learns
5 to 9 (300 pictures), by our program and by the Trainer with the settings of Transformers' `run_image_classification.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
from transformers.utils import logging

PROGRAM = Path(__file__).parents[1] / "entrypoints" / "image_classification.py"
EPOCHS, BATCH, RATE = 12, 16, 0.002
logging.set_verbosity_error()


def learnt(model, pixels, labels, where: Path, seed: int, epochs: int, rate: float):
    """The Trainer, as the example has it."""
    seen = (torch.from_numpy(pixels).float()[:, None].expand(-1, 3, -1, -1) - 127.5) / 127.5
    rows = [{"pixel_values": image, "labels": int(label)} for image, label in zip(seen, labels, strict=True)]
    settings = TrainingArguments(
        str(where), num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=rate, seed=seed,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, logging_strategy="no", weight_decay=0.01,
    )  # fmt: skip
    Trainer(model, settings, train_dataset=rows).train()
    return model.eval(), seen


def main() -> None:
    data = load_digits()
    pixels, labels = (data.images * 15).astype(numpy.uint8), data.target
    order = numpy.random.default_rng(0).permutation(len(labels))
    pixels, labels = pixels[order], labels[order]
    old, new = labels < 5, labels >= 5
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=8,
        patch_size=2,
        num_labels=5,
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        torch.manual_seed(0)
        start, _ = learnt(ViTForImageClassification(config), pixels[old], labels[old], root, 0, 20, 0.002)
        start.save_pretrained(root / "start")
        about = {
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "size": {"height": 8, "width": 8},
            "image_processor_type": "ViTImageProcessor",
        }
        (root / "start" / "preprocessor_config.json").write_text(json.dumps(about))
        x, y = pixels[new], labels[new] - 5
        for channel, part in (("train", slice(300)), ("test", slice(300, None))):
            (root / channel).mkdir()
            numpy.savez(root / channel / "data.npz", x=x[part], y=y[part])
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
            again = ViTForImageClassification.from_pretrained(root / "start")
            theirs, _ = learnt(again, x[:300], y[:300], root, seed, EPOCHS, RATE)
            with torch.no_grad():
                seen = (torch.from_numpy(x[300:]).float()[:, None].expand(-1, 3, -1, -1) - 127.5) / 127.5
                accuracy = (theirs(seen).logits.argmax(1).numpy() == y[300:]).mean()
            command = [
                sys.executable,
                PROGRAM,
                "--train",
                "train",
                "--test",
                "test",
                "--previous_model",
                "start",
                "--epochs",
                EPOCHS,
            ]
            command += [
                "--batch_size",
                BATCH,
                "--learning_rate",
                RATE,
                "--seed",
                seed,
                "--lr_schedule",
                "linear",
                "--warmup_epochs",
                0,
            ]
            subprocess.run(
                [*map(str, command), "--validation_fraction", "0", "--model_dir", "model"], cwd=root, check=True,
                stdout=subprocess.DEVNULL, env={**os.environ, "SM_CHECKPOINT_DIR": "absent"},
            )  # fmt: skip
            ours = json.loads((root / "output" / "metrics.json").read_text())["test_accuracy"]
            print(
                f"seed {seed}: accuracy on {len(y) - 300} unseen pictures: ours {ours:.4f}, the Trainer's {accuracy:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
