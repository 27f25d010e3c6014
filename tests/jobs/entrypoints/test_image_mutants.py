"""Pictures and hyperparameters that nobody has made by hand: image_classification.py trains, or says what is wrong."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import pytest

from jobs.entrypoints import picture_mutants as mutants
from support.extras import needs

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

VALUES: dict[str, list[str]] = {
    "learning_rate": ["0", "0.01", "1e30", "1e-30", "nan"],
    "optimizer": ["adam", "adamw", "sgd", "nag", "rmsprop", "lion"],
    "lr_schedule": ["cosine", "linear", "constant", "steps"],
    "lr_scheduler_step": ["1", "0", "1,x", "-3", "99999999999"],
    "lr_scheduler_factor": ["0", "1", "2"],
    "weight_decay": ["0", "1e30", "0.1"],
    "batch_size": ["1", "3", "1000", "0"],
    "mini_batch_size": ["2", "x"],
    "image_shape": ["3,8,8", "1,8,8", "3,8,9", "8", "3,0,0"],
    "image_size": ["8", "4", "3"],
    "channels": ["1", "3", "2"],
    "num_classes": ["2", "3", "1", "200"],
    "num_layers": ["18", "19"],
    "validation_fraction": ["0", "0.5", "0.9", "1"],
    "augment": ["none", "shift", "flip"],
    "target_accuracy": ["0.1", "1", "0"],
    "width": ["1", "3"],
    "depth": ["2"],
    "top_k": ["1", "5"],
    "warmup_epochs": ["0", "5"],
    "momentum": ["0", "1"],
    "beta_1": ["0", "0.5", "1"],
    "eps": ["1", "0"],
    "use_pretrained_model": ["0", "1"],
    "seed": ["0", "4294967295"],
}


def make(draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """Files of one of the kinds that the program reads, and arguments."""
    kind = draw.choice(["folders", "folders", "npz", "lst", "rec"])
    size = draw.choice([(8, 8), (8, 8), (9, 8), (4, 4), (40, 40), (3, 3)])
    mode, form = draw.choice([("RGB", "PNG"), ("L", "PNG"), ("RGB", "JPEG"), ("RGBA", "PNG")])
    count, classes = draw.choice([2, 5, 12]), draw.choice([1, 2, 2, 3])
    labels = [number % classes for number in range(count)]
    images = [mutants.picture(draw, size, mode, form) for _ in labels]
    if draw.random() < 0.1:
        images[-1] = mutants.picture(draw, (7, 8), mode, form)
    more: list[str] = []
    if kind == "folders":
        files = {
            f"train/{label}/{at}.{form.lower()}": image for at, (label, image) in enumerate(zip(labels, images, strict=True))
        }
    elif kind == "npz":
        import numpy

        held = io.BytesIO()
        shape = (count, size[1], size[0], draw.choice([1, 3, 2]))
        pixels = numpy.random.default_rng(draw.randrange(99)).random(shape[: draw.choice([3, 4, 4])])
        if draw.random() < 0.2:
            pixels.flat[0] = draw.choice([float("nan"), float("inf"), 1e38, -1e38])
        kinds = [numpy.uint8, numpy.float32, numpy.float64, numpy.int64]
        with numpy.errstate(all="ignore"):
            numpy.savez(
                held, x=(pixels * 200).astype(draw.choice(kinds)), y=numpy.array(labels[: draw.choice([count, count, 1])])
            )
        files = {"train/data.npz": held.getvalue()}
    elif kind == "lst":
        files = {f"train/{at}.png": image for at, image in enumerate(images)}
        lines = [f"{at}\t{draw.choice([label, label, label, 'x', -1, 1e300]) if draw.random() < 0.1 else label}\t{at}.png"
                 for at, label in enumerate(labels)]  # fmt: skip
        files["lists/train.lst"] = "\n".join(lines).encode()
        more = ["--train_lst", "lists"]
    else:
        frames = [
            struct.pack("<IfQQ", 0, label, at, 0) + image
            for at, (label, image) in enumerate(zip(labels, images, strict=True))
        ]
        joined = b"".join(struct.pack("<II", 0xCED7230A, len(body)) + body + bytes(-len(body) % 4) for body in frames)
        files = {"train/data.rec": joined}
    return mutants.spoil(files, draw), [
        "--train",
        "train",
        "--epochs",
        "1",
        "--device",
        "cpu",
        *more,
        *mutants.chosen(VALUES, draw),
    ]


def finite() -> bool:
    """Whether the model in ./model gives numbers."""
    import image_classification  # type: ignore[import-not-found]
    import torch

    network, made = image_classification.load("model")
    with torch.no_grad():
        return bool(torch.isfinite(network(torch.zeros(1, *made.shape))).all())


def work(group: int) -> None:
    """What the process of a group does, in a folder of its own."""
    mutants.each("image_classification", group, make, finite)


@pytest.mark.parametrize("group", range(mutants.GROUPS))
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    needs("torch", "numpy", "PIL", "transformers")
    mutants.start("test_image_mutants", group, tmp_path)
