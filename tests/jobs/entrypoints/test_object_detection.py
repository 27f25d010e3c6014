"""object_detection.py: learns what is where, from scratch and further; the same after any kill."""

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

PROGRAM = "object_detection.py"
CHANNELS = ("--train", "train", "--train_annotation", "train_annotation")
TEST = ("--test", "test", "--test_annotation", "test_annotation")
SMALL = (*CHANNELS, "--width", "4", "--epochs", "2", "--device", "cpu")
FILE = "train_annotation/instances.json"


@pytest.mark.heavy
def test_it_learns_where_the_shapes_are(tmp_path: Path, module: Module) -> None:
    module("demo_data").write_boxes(tmp_path)
    how = ("--epochs", "30", "--batch_size", "8", "--augment", "flip")
    output = programs.run(PROGRAM, *CHANNELS, *TEST, *how, cwd=tmp_path)
    [(precision, _)] = programs.metrics(output, "test_map_50")
    assert precision > 0.7
    printed = programs.run(PROGRAM, "--predict", "test", "--model_dir", "model", cwd=tmp_path)
    found = {Path(line["input"]).name: line["boxes"] for line in map(json.loads, printed.splitlines())}
    content = json.loads((tmp_path / "test_annotation" / "instances.json").read_text())
    near = 0
    for one in content["annotations"]:
        sides = numpy.array(one["bbox"])
        around = [numpy.abs(numpy.array(box["box"]) - sides).max() for box in found[f"{one['image_id']:04d}.png"]]
        near += min(around, default=99) <= 3
    assert near > 0.7 * len(content["annotations"])


@pytest.mark.exact
def test_killed_and_resumed_it_ends_as_if_nothing_had_been(boxes: Path) -> None:
    arguments = (*SMALL, "--checkpoint_steps", "2", "--log_interval", "1", "--augment", "flip", "--epochs", "4")
    programs.kill_and_go_on(PROGRAM, *arguments, cwd=boxes, line="^metric train_loss=.* step=7$")
    through, resumed = (state(boxes / name) for name in ("through", "model"))
    assert all(torch.equal(through[name], resumed[name]) for name in through)


@pytest.mark.heavy
def test_two_ranks_learn_what_one_does(boxes: Path) -> None:
    one = programs.run(PROGRAM, *SMALL, "--model_dir", "one", cwd=boxes)
    two = programs.run(PROGRAM, *SMALL, cwd=boxes, ranks=2)
    for name in ("train_loss", "validation_loss"):
        alone, together = (programs.metrics(output, name)[-1][0] for output in (one, two))
        assert together == pytest.approx(alone, rel=1e-2)


def trained(folder: Path, kind: str) -> None:
    """A detector of Transformers with random weights, which knew seven classes."""
    from transformers import (
        DetrConfig,
        DetrForObjectDetection,
        ResNetConfig,
        RTDetrConfig,
        RTDetrForObjectDetection,
        RTDetrResNetConfig,
        YolosConfig,
        YolosForObjectDetection,
    )

    torch.manual_seed(0)
    stages: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [1] * 4}
    sizes = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "encoder_attention_heads": 2,
             "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_labels": 7}  # fmt: skip
    if kind == "detr":
        backbone = ResNetConfig(**stages, out_features=["stage4"])
        own = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
        made: Any = DetrForObjectDetection(
            DetrConfig(**own, backbone_config=backbone, encoder_layers=1, num_queries=10, **sizes)
        )
    elif kind == "rt_detr":
        backbone = RTDetrResNetConfig(**stages, out_features=["stage2", "stage3", "stage4"])
        widths = {"encoder_hidden_dim": 32, "encoder_in_channels": [16, 32, 64], "decoder_in_channels": [32] * 3}
        made = RTDetrForObjectDetection(RTDetrConfig(backbone_config=backbone, num_queries=20, **widths, **sizes))
    else:
        few = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = YolosConfig(**few, image_size=[32, 32], patch_size=8, num_detection_tokens=10, num_labels=7)
        made = YolosForObjectDetection(config)
    made.save_pretrained(folder)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("detr", marks=pytest.mark.spine),
        *(pytest.param(one, marks=pytest.mark.matrix) for one in ("rt_detr", "yolos")),
    ],
)
def test_a_trained_network_of_transformers_learns_other_classes(
    program: ModuleType, started_here: Train, boxes: Path, kind: str
) -> None:
    needs("transformers", "scipy")
    from transformers import AutoModelForObjectDetection

    trained(boxes / "trained", kind)
    started_here(PROGRAM, *CHANNELS, "--device", "cpu", "--epochs", "1", "--previous_model", "trained")
    plain = AutoModelForObjectDetection.from_pretrained(boxes / "model")
    assert plain.config.id2label == {0: "disc", 1: "square"}
    network, made = program.load(boxes / "model")
    assert made.library == "transformers"
    [found] = network.found(network(torch.zeros(1, *made.shape)), 2)
    assert found.shape[1] == 6 and torch.isfinite(found).all()
    (boxes / "trained" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(program.Problem, match="holds no network for detection"):
        started_here(PROGRAM, *CHANNELS, "--device", "cpu", "--previous_model", "trained")


@pytest.mark.exact
@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "ranks"), [("rt_detr", 1), ("detr", 2), ("rt_detr", 2)])
def test_a_network_of_transformers_is_gone_on_with_exactly(boxes: Path, kind: str, ranks: int) -> None:
    from safetensors.torch import load_file

    trained(boxes / "trained", kind)
    content = json.loads((boxes / FILE).read_text())
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] > 20]  # batches without a box
    (boxes / FILE).write_text(json.dumps(content))
    arguments = (*CHANNELS, "--device", "cpu", "--epochs", "3", "--batch_size", "4", "--previous_model", "trained")
    arguments = (*arguments, "--checkpoint_steps", "5", "--log_interval", "1", "--keep", "last")
    programs.kill_and_go_on(PROGRAM, *arguments, cwd=boxes, line="^metric train_loss=.* step=17$", ranks=ranks)
    through, resumed = (load_file(boxes / name / "model.safetensors") for name in ("through", "model"))
    assert all(torch.equal(through[name], resumed[name]) for name in through)


# --- mutants ----------------------------------------------------------------------------------------------------------

VALUES: dict[str, list[str]] = {
    "learning_rate": ["0", "0.01", "1e30", "1000", "nan"],
    "lr_schedule": ["cosine", "linear", "constant", "steps"],
    "weight_decay": ["0", "1e30", "0.1"],
    "batch_size": ["1", "3", "1000", "0"],
    "mini_batch_size": ["2", "x"],
    "image_shape": ["16", "24", "4"],
    "channels": ["1", "3", "2"],
    "num_classes": ["1", "2", "5", "10001"],
    "validation_fraction": ["0", "0.5", "0.9", "1"],
    "augment": ["none", "flip", "crop"],
    "max_grad_norm": ["0", "1", "1e-30"],
    "warmup_ratio": ["0", "1"],
    "patience": ["1", "0"],
    "keep": ["best", "last"],
    "use_pretrained_model": ["0", "1"],
    "score_threshold": ["0", "1", "2"],
    "seed": ["0", "4294967295"],
}
ODD: list[Any] = [None, True, -1, 0, 1.5, 1e308, 10**400, "", "x", [], {}, [[]], float("nan"), float("inf")]


def make(draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """Pictures and boxes, some of which do not fit."""
    size = draw.choice([(16, 16), (16, 20), (17, 16), (24, 24), (8, 8)])
    mode, form = draw.choice([("RGB", "PNG"), ("L", "PNG"), ("RGB", "JPEG"), ("RGBA", "PNG")])
    files, images, found = {}, [], []
    for at in range(draw.choice([1, 2, 5, 9])):
        name = f"{at}.{form.lower()}"
        files[f"train/{name}"] = mutants.picture(draw, size, mode, form)
        images.append({"id": at, "file_name": name})
        for _ in range(draw.choice([0, 1, 1, 2])):
            box = [0, 0, size[0] // 2, size[1] // 2] if draw.random() < 0.95 else [draw.randrange(-9, 30) for _ in range(4)]
            found.append({"image_id": at, "category_id": draw.choice([1, 1, 2]), "bbox": box, "iscrowd": 0})
    content: Any = {"images": images, "annotations": found, "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]}
    if draw.random() < 0.4:
        for one in images:
            own = [box for box in found if box["image_id"] == one["id"]]
            sides = ("left", "top", "width", "height")
            said: Any = [{"class_id": box["category_id"], **dict(zip(sides, box["bbox"], strict=True))} for box in own]
            changed = _changed({"file": one["file_name"], "annotations": said}, draw)
            files[f"train_annotation/{one['id']}.json"] = json.dumps(changed).encode()
    else:
        files["train_annotation/all.json"] = json.dumps(_changed(content, draw)).encode()
    few = ("--epochs", "1", "--width", "2", "--device", "cpu")
    return mutants.spoil(files, draw), [*CHANNELS, *few, *mutants.chosen(VALUES, draw)]


def _changed(content: Any, draw: random.Random) -> Any:
    """With some value somewhere that does not belong there."""
    if draw.random() < 0.7:
        return content
    places: list[tuple[Any, Any]] = []

    def walk(at: Any) -> None:
        for key in range(len(at)) if isinstance(at, list) else list(at):
            places.append((at, key))
            if isinstance(at[key], (list, dict)):
                walk(at[key])

    walk(content)
    at, key = draw.choice(places)
    at[key] = draw.choice(ODD)
    return content


def finite() -> bool:
    """Whether the model in ./model gives numbers."""
    import object_detection  # type: ignore[import-not-found]

    network, made = object_detection.load("model")
    with torch.no_grad():
        [found] = network.found(network(torch.zeros(1, *made.shape)), len(made.classes))
    return bool(torch.isfinite(found).all())


def work(group: int) -> None:
    """What the process of a group does, in a folder of its own."""
    mutants.each("object_detection", group, make, finite)


@pytest.mark.matrix
@pytest.mark.parametrize("group", range(mutants.GROUPS))
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    mutants.start("test_object_detection", group, tmp_path)
