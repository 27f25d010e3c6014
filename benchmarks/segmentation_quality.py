"""Does semantic_segmentation.py learn a network of Transformers as well as the library's own example, on the same data?

    python benchmarks/segmentation_quality.py [SEEDS]

A small SegFormer on the drawn shapes of `demo_data.py` (160 to learn from, 40 unseen), by our program and by the Trainer as
Transformers' `run_semantic_segmentation.py` has it: the same beginning, AdamW, linear, the whole network.
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
from torch.nn import functional
from transformers import SegformerConfig, SegformerForSemanticSegmentation, Trainer, TrainingArguments
from transformers.utils import logging

ENTRYPOINTS = Path(__file__).parents[1] / "entrypoints"
EPOCHS, BATCH, RATE = 12, 16, 0.003
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
logging.set_verbosity_error()


def rows(root: Path, channel: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures as the network takes them, and masks."""
    from PIL import Image

    def read(folder: str) -> torch.Tensor:
        return torch.from_numpy(numpy.stack([numpy.asarray(Image.open(path)) for path in sorted((root / folder).iterdir())]))

    return ((read(channel) / 255 - MEAN) / STD).permute(0, 3, 1, 2), read(f"{channel}_annotation").long()


def main() -> None:
    program = [sys.executable, str(ENTRYPOINTS / "semantic_segmentation.py")]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        subprocess.run([sys.executable, ENTRYPOINTS / "demo_data.py", "shapes", root], check=True, stdout=subprocess.DEVNULL)
        torch.manual_seed(0)
        sizes = {"hidden_sizes": [16, 16, 32, 32], "depths": [1] * 4, "decoder_hidden_size": 32, "strides": [2, 2, 2, 2]}
        config = SegformerConfig(**sizes, num_attention_heads=[1] * 4, num_labels=3, patch_sizes=[3, 3, 3, 3])
        SegformerForSemanticSegmentation(config).save_pretrained(root / "start")
        pixels, masks = rows(root, "train")
        unseen, truth = rows(root, "test")
        known = truth != 255
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
            theirs = SegformerForSemanticSegmentation.from_pretrained(root / "start")
            settings = TrainingArguments(
                str(root / "trainer"), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=RATE,
                seed=seed, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, weight_decay=0.01,
            )  # fmt: skip
            data = [{"pixel_values": one, "labels": mask} for one, mask in zip(pixels, masks, strict=True)]
            Trainer(theirs, settings, train_dataset=data).train()
            with torch.no_grad():
                logits = functional.interpolate(theirs.eval()(unseen).logits, truth.shape[-2:], mode="bilinear")
            accuracy = float((logits.argmax(1) == truth)[known].float().mean())
            given = {"previous_model": "start", "epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE, "seed": seed}
            given |= {"lr_schedule": "linear", "warmup_ratio": 0, "validation_fraction": 0}
            folders = [
                part for one in ("train", "test") for part in (f"--{one}", one, f"--{one}_annotation", f"{one}_annotation")
            ]
            subprocess.run(
                [*program, *folders, *(str(part) for name, value in given.items() for part in (f"--{name}", value))],
                cwd=root, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SM_CHECKPOINT_DIR": "absent"},
            )  # fmt: skip
            ours = json.loads((root / "output" / "metrics.json").read_text())["test_pixel_accuracy"]
            print(f"seed {seed}: right pixels of unseen pictures: ours {ours:.4f}, the Trainer's {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
