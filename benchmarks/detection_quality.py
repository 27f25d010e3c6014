"""Does object_detection.py learn a network of Transformers as well as the library's own example, on the same data?

    python benchmarks/detection_quality.py [SEEDS]

A small RT-DETR on the drawn shapes of `demo_data.py` (160 to learn from, 40 unseen), by our program and by the Trainer as
Transformers' `run_object_detection.py` has it: the same beginning (which the Trainer has trained: it has learnt statistics
of batches, which stay as they are in our program), AdamW, linear, the whole network. What both have learnt
is measured by our program's `load` and its mean average precision (which is pycocotools' to 1e-6: its tests).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig, Trainer, TrainingArguments
from transformers.utils import logging

ENTRYPOINTS = Path(__file__).parents[1] / "entrypoints"
sys.path.insert(0, str(ENTRYPOINTS))
import _boxes  # noqa: E402
import object_detection  # noqa: E402

BEFORE, EPOCHS, BATCH, RATE = 60, 40, 16, 0.001
logging.set_verbosity_error()


def start(folder: Path) -> None:
    """Random weights."""
    torch.manual_seed(0)
    stages = {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [1] * 4}
    backbone = RTDetrResNetConfig(**stages, out_features=["stage2", "stage3", "stage4"])
    sizes = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "encoder_attention_heads": 2,
             "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_hidden_dim": 32, "dropout": 0.0}  # fmt: skip
    RTDetrForObjectDetection(
        RTDetrConfig(
            backbone_config=backbone, num_queries=20, num_labels=2, num_denoising=10, encoder_in_channels=[16, 32, 64],
            decoder_in_channels=[32] * 3, **sizes,
        )
    ).save_pretrained(folder)  # fmt: skip


def trained(root: Path, data: Any, epochs: int, seed: int) -> Any:
    """What the Trainer makes of the network in `root`/start, as `run_object_detection.py` has it."""
    network, _ = object_detection.borrowed(root / "start", ["disc", "square"], (3, 32, 32))
    pixels, marks = data[list(range(len(data)))]
    rows = [
        {"pixel_values": one, "labels": {"class_labels": mark.classes, "boxes": mark.boxes}}
        for one, mark in zip(network.normal(pixels), marks, strict=True)
    ]
    settings = TrainingArguments(
        str(root / "trainer"), num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=RATE, seed=seed,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, weight_decay=0.01, remove_unused_columns=False,
        logging_strategy="no",
    )  # fmt: skip

    def together(rows: list[Any]) -> dict[str, Any]:
        return {
            "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
            "labels": [row["labels"] for row in rows],
        }

    Trainer(network.body, settings, train_dataset=rows, data_collator=together).train()
    return network


def precision(network: Any, data: Any) -> tuple[float, float]:
    """Mean average precision over overlaps, and at 0.5."""
    task = object_detection.Detection.__new__(object_detection.Detection)
    task.network, task.amp, task.of_part = network.eval(), False, {"test": data}
    task.world, task.data = Namespace(device=torch.device("cpu")), Namespace(classes=["disc", "square"])
    with torch.no_grad():
        scores = task.scores("test", task.outputs("test", range(len(data))))
    return scores["map"], scores["map_50"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        subprocess.run([sys.executable, ENTRYPOINTS / "demo_data.py", "boxes", root], check=True, stdout=subprocess.DEVNULL)
        start(root / "start")
        read = {
            part: _boxes.read_channel(str(root / part), str(root / f"{part}_annotation"), part, None, None, None)[0]
            for part in ("train", "test")
        }
        trained(root, read["train"], BEFORE, 99).body.save_pretrained(root / "start")
        every: list[tuple[float, ...]] = []
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
            network = trained(root, read["train"], EPOCHS, seed)
            theirs = precision(network, read["test"])
            given = {"previous_model": "start", "epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE, "seed": seed}
            given |= {"lr_schedule": "linear", "warmup_ratio": 0, "validation_fraction": 0}
            folders = [
                part for one in ("train", "test") for part in (f"--{one}", one, f"--{one}_annotation", f"{one}_annotation")
            ]
            subprocess.run(
                [sys.executable, str(ENTRYPOINTS / "object_detection.py"), *folders,
                 *(str(part) for name, value in given.items() for part in (f"--{name}", value))],
                cwd=root, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SM_CHECKPOINT_DIR": "absent"},
            )  # fmt: skip
            said = json.loads((root / "output" / "metrics.json").read_text())
            ours = said["test_map"], said["test_map_50"]
            shown = "; ".join(f"{who} {one:.3f}, at 0.5 {half:.3f}" for who, (one, half) in
                              (("ours", ours), ("the Trainer's", theirs)))  # fmt: skip
            every.append((*ours, *theirs))
            print(f"seed {seed}: mean average precision on unseen pictures: {shown}", flush=True)
        one, half, other, its = (sum(column) / len(every) for column in zip(*every, strict=True))
        print(f"means: ours {one:.3f}, at 0.5 {half:.3f}; the Trainer's {other:.3f}, at 0.5 {its:.3f}")


if __name__ == "__main__":
    main()
