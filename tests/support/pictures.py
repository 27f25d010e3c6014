"""Small pictures to train on, and a small network for them; a conftest names the fixtures that its folder uses."""

from __future__ import annotations

import json
import shutil
import signal
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.lazy import Lazy
from support.programs import Module

numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")


def dark_and_bright(count: int) -> Any:
    """uint8 [count, 8, 8, 3]: every second one is brighter."""
    pixels = numpy.random.default_rng(1).integers(0, 60, (count, 8, 8, 3))
    return (pixels + 150 * (numpy.arange(count) % 2)[:, None, None, None]).astype(numpy.uint8)


def state(path: Path) -> dict[str, Any]:
    """The weights in a folder, by name."""
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(path / "model.safetensors")
    return found


def trained_here(program: ModuleType, hp: Namespace) -> Any:
    """The image classifier's job of these hyperparameters, after it has run in this process."""
    job = program.Training(hp, program.World(0, 1, 0, torch.device("cpu")))
    job.run()
    return job


def stop_at(step: int, program: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Sends this process SIGTERM during a step of the image classifier; the Checkpointer handles it."""
    own = program.Training.step

    def interrupted(job: Any, *batch: Any) -> None:
        own(job, *batch)
        if job.at.step == step:
            signal.raise_signal(signal.SIGTERM)

    patch.setattr(program.Training, "step", interrupted)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory, module: Module) -> Path:
    """Some of the demo data: pictures with masks in shapes, and with boxes in boxes. Not to be written to."""
    root = tmp_path_factory.mktemp("pictures")
    module("demo_data").write_shapes(root / "shapes")
    module("demo_data").write_boxes(root / "boxes")
    for channel, count in {"train": 44, "test": 10}.items():
        for folder in (f"shapes/{channel}", f"shapes/{channel}_annotation", f"boxes/{channel}"):
            for path in sorted((root / folder).iterdir())[count:]:
                path.unlink()
        path = root / f"boxes/{channel}_annotation/instances.json"
        content = json.loads(path.read_text())
        content["images"] = content["images"][:count]
        content["annotations"] = [one for one in content["annotations"] if one["image_id"] < count]
        path.write_text(json.dumps(content))
    return root


@pytest.fixture
def shapes(tmp_path: Path, drawn: Path) -> Path:
    """A folder with channels of pictures with masks."""
    return shutil.copytree(drawn / "shapes", tmp_path, dirs_exist_ok=True)


@pytest.fixture
def boxes(tmp_path: Path, drawn: Path) -> Path:
    """A folder with channels of pictures with boxes."""
    return shutil.copytree(drawn / "boxes", tmp_path, dirs_exist_ok=True)


@pytest.fixture
def transformer(tmp_path: Path) -> Path:
    """A small vision transformer of three classes, with dropout."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        hidden_dropout_prob=0.2, num_labels=3,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(tmp_path / "trained")
    return tmp_path / "trained"
