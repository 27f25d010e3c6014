"""semantic_segmentation.py: learns the class of each pixel, from scratch and further; the same after any kill."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.entrypoints import picture_mutants as mutants
from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.pictures import state
from support.programs import Module, Train

pytestmark = pytest.mark.torch
needs("numpy", "torch", "PIL")
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")

PROGRAM = "semantic_segmentation.py"
CHANNELS = ("--train", "train", "--train_annotation", "train_annotation")
SMALL = (*CHANNELS, "--width", "4", "--epochs", "2", "--device", "cpu")


@pytest.mark.timeout(300)  # 25 epochs of a deep network on two busy CPUs
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("fcn", marks=pytest.mark.heavy),
        *(pytest.param(one, marks=pytest.mark.matrix) for one in ("psp", "deeplab")),
    ],
)
def test_it_learns_the_shapes(tmp_path: Path, module: Module, algorithm: str) -> None:
    module("demo_data").write_shapes(tmp_path)
    test = ("--test", "test", "--test_annotation", "test_annotation")
    how = ("--epochs", "25", "--batch_size", "8", "--learning_rate", "0.02", "--algorithm", algorithm)
    output = programs.run(PROGRAM, *CHANNELS, *test, *how, cwd=tmp_path)
    [(miou, _)] = programs.metrics(output, "test_miou")
    assert miou > 0.75


@pytest.mark.spine
def test_masks_are_written_that_are_as_good_as_was_measured(program: ModuleType, started_here: Train, shapes: Path) -> None:
    from PIL import Image

    test = ("--test", "test", "--test_annotation", "test_annotation")
    started_here(PROGRAM, *SMALL, *test, "--epochs", "5", "--learning_rate", "0.02", "--augment", "flip")
    said = json.loads((shapes / "model" / "model.json").read_text())
    masks = started_here(PROGRAM, "--predict", "test", "--output_data_dir", "masks")
    lines = [json.loads(line) for line in masks.splitlines()]
    right = pixels = 0
    for line in lines:
        mask = numpy.asarray(Image.open(line["mask"]))
        truth = numpy.asarray(Image.open(shapes / "test_annotation" / Path(line["input"]).name))
        right, pixels = right + (mask == truth)[truth != 255].sum(), pixels + (truth != 255).sum()
    assert len(lines) == 10 and right / pixels == pytest.approx(said["metrics"]["test_pixel_accuracy"], abs=1e-6)
    network, made = program.load(shapes / "model")
    assert network(torch.zeros(1, *made.shape)).shape == (1, 3, 32, 32)


@pytest.mark.exact
def test_killed_and_resumed_it_ends_as_if_nothing_had_been(shapes: Path) -> None:
    arguments = (*SMALL, "--checkpoint_steps", "2", "--log_interval", "1", "--augment", "flip", "--epochs", "4")
    programs.kill_and_go_on(PROGRAM, *arguments, cwd=shapes, line="^metric train_loss=.* step=7$")
    through, resumed = state(shapes / "through"), state(shapes / "model")
    assert all(torch.equal(through[name], resumed[name]) for name in through)


def test_two_ranks_learn_what_one_does(shapes: Path) -> None:
    one = programs.run(PROGRAM, *SMALL, "--model_dir", "one", cwd=shapes)
    two = programs.run(PROGRAM, *SMALL, cwd=shapes, ranks=2)
    for name in ("train_loss", "validation_loss", "validation_pixel_accuracy"):
        alone, together = (programs.metrics(output, name)[-1][0] for output in (one, two))
        assert together == pytest.approx(alone, rel=1e-2)


def test_a_trained_network_of_transformers_learns_other_classes(
    program: ModuleType, started_here: Train, shapes: Path
) -> None:
    needs("transformers")
    from transformers import AutoModelForSemanticSegmentation, SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8, 8, 8, 16], "depths": [1] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 16}
    config = SegformerConfig(**sizes, num_labels=7)
    SegformerForSemanticSegmentation(config).save_pretrained(shapes / "trained")
    started_here(PROGRAM, *CHANNELS, "--device", "cpu", "--epochs", "1", "--previous_model", "trained")
    plain = AutoModelForSemanticSegmentation.from_pretrained(shapes / "model")
    assert plain.config.num_labels == 3
    network, made = program.load(shapes / "model")
    assert made.library == "transformers" and network(torch.zeros(1, 3, 32, 32)).shape == (1, 3, 32, 32)
    (shapes / "trained" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(program.Problem, match="holds no network for segmentation"):
        started_here(PROGRAM, *CHANNELS, "--device", "cpu", "--previous_model", "trained")


# --- mutants ----------------------------------------------------------------------------------------------------------

VALUES: dict[str, list[str]] = {
    "learning_rate": ["0", "0.01", "1e30", "1000", "nan"],
    "optimizer": ["adamw", "lion"],
    "lr_schedule": ["cosine", "linear", "constant", "steps"],
    "weight_decay": ["0", "1e30", "0.1"],
    "batch_size": ["1", "3", "1000", "0"],
    "mini_batch_size": ["2", "x"],
    "crop_size": ["8", "16", "4"],
    "image_size": ["8", "16", "3"],
    "channels": ["1", "3", "2"],
    "num_classes": ["2", "3", "1", "255", "256"],
    "validation_fraction": ["0", "0.5", "0.9", "1"],
    "augment": ["none", "flip", "crop"],
    "algorithm": ["fcn", "psp", "deeplab", "unet"],
    "max_grad_norm": ["0", "1", "1e-30"],
    "warmup_ratio": ["0", "1"],
    "patience": ["1", "0"],
    "keep": ["best", "last"],
    "use_pretrained_model": ["0", "1"],
    "seed": ["0", "4294967295"],
}


def make(draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """Pictures and masks, some of which do not fit."""
    import io

    from PIL import Image

    size = draw.choice([(8, 8), (16, 12), (9, 8), (8, 8), (4, 4)])
    mode, form = draw.choice([("RGB", "PNG"), ("L", "PNG"), ("RGB", "JPEG"), ("RGBA", "PNG")])
    files = {}
    for at in range(draw.choice([1, 2, 5, 9])):
        files[f"train/{at}.{form.lower()}"] = mutants.picture(draw, size, mode, form)
        other = draw.random() < 0.03
        kind = draw.choice(["RGB", "I;16", "1"]) if draw.random() < 0.02 else "L"
        mask = Image.new(kind, (7, 8) if other else size, 0)
        if kind == "L":
            mask.paste(draw.choice([1, 1, 1, 2, 255, 200 if other else 1]), (0, 0, size[0] // 2, size[1] // 2))
        held = io.BytesIO()
        mask.save(held, "PNG")
        files[f"train_annotation/{at}.png"] = held.getvalue()
    few = ("--epochs", "1", "--width", "2", "--device", "cpu")
    return mutants.spoil(files, draw), [*CHANNELS, *few, *mutants.chosen(VALUES, draw)]


def finite() -> bool:
    """Whether the model in ./model gives numbers."""
    import semantic_segmentation  # type: ignore[import-not-found]

    network, made = semantic_segmentation.load("model")
    with torch.no_grad():
        return bool(torch.isfinite(network(torch.zeros(1, *made.shape))).all())


def work(group: int) -> None:
    """What the process of a group does, in a folder of its own."""
    mutants.each("semantic_segmentation", group, make, finite)


@pytest.mark.matrix
@pytest.mark.parametrize("group", range(mutants.GROUPS))
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    mutants.start("test_segmentation", group, tmp_path)
