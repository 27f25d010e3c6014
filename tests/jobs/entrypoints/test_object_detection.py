"""object_detection.py: learns what is where, from scratch and further; the same after any kill."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.entrypoints import picture_mutants as mutants
from jobs.entrypoints import programs
from support.extras import needs

pytestmark = pytest.mark.torch
needs("numpy", "torch", "PIL")
import numpy  # noqa: E402
import torch  # noqa: E402

PROGRAM = "object_detection.py"
CHANNELS = ("--train", "train", "--train_annotation", "train_annotation")
TEST = ("--test", "test", "--test_annotation", "test_annotation")
SMALL = (*CHANNELS, "--width", "4", "--epochs", "2", "--device", "cpu")
FILE = "train_annotation/instances.json"


@pytest.fixture
def boxes(tmp_path: Path, module: Callable[[str], ModuleType]) -> Path:
    """A folder with the demo data as channels, 44 and 10 pictures of it."""
    module("demo_data").write_boxes(tmp_path)
    for channel, count in (("train", 44), ("test", 10)):
        for path in sorted((tmp_path / channel).iterdir())[count:]:
            path.unlink()
        path = tmp_path / f"{channel}_annotation" / "instances.json"
        content = json.loads(path.read_text())
        content["images"] = content["images"][:count]
        content["annotations"] = [one for one in content["annotations"] if one["image_id"] < count]
        path.write_text(json.dumps(content))
    return tmp_path


def run_here(program: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", [PROGRAM, *arguments])
    program.main()


@pytest.mark.heavy
def test_it_learns_where_the_shapes_are(tmp_path: Path, module: Callable[[str], ModuleType]) -> None:
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


def test_killed_and_resumed_it_ends_as_if_nothing_had_been(boxes: Path) -> None:
    arguments = (*SMALL, "--checkpoint_steps", "2", "--log_interval", "1", "--augment", "flip", "--epochs", "4")
    programs.run(PROGRAM, *arguments, "--model_dir", "through", cwd=boxes)
    kept = {"SM_CHECKPOINT_DIR": str(boxes / "checkpoints")}
    (boxes / "checkpoints").mkdir()
    with programs.started(PROGRAM, *arguments, cwd=boxes, **kept) as job:
        job.wait_for("^metric train_loss=.* step=7$")
        os.kill(job.processes[0].pid, signal.SIGKILL)
        job.finish()
    with programs.started(PROGRAM, *arguments, cwd=boxes, **kept) as job:
        job.succeed()
    assert "resumed from" in job.errors[0]
    through, resumed = (torch.load(boxes / name / "model.pt", weights_only=True) for name in ("through", "model"))
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
    "kind", ["detr", pytest.param("rt_detr", marks=pytest.mark.heavy), pytest.param("yolos", marks=pytest.mark.heavy)]
)
def test_a_trained_network_of_transformers_learns_other_classes(
    program: ModuleType, outside_a_job: None, boxes: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    needs("transformers", "scipy")
    from transformers import AutoModelForObjectDetection

    trained(boxes / "trained", kind)
    monkeypatch.chdir(boxes)
    run_here(program, monkeypatch, *CHANNELS, "--device", "cpu", "--epochs", "1", "--previous_model", "trained")
    plain = AutoModelForObjectDetection.from_pretrained(boxes / "model")
    assert plain.config.id2label == {0: "disc", 1: "square"}
    network, made = program.load(boxes / "model")
    assert made.library == "transformers"
    [found] = network.found(network(torch.zeros(1, *made.shape)), 2)
    assert found.shape[1] == 6 and torch.isfinite(found).all()
    (boxes / "trained" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(program.Problem, match="holds no network for detection"):
        run_here(program, monkeypatch, *CHANNELS, "--device", "cpu", "--previous_model", "trained")


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
    programs.run(PROGRAM, *arguments, "--model_dir", "through", cwd=boxes, ranks=ranks)
    kept = {"SM_CHECKPOINT_DIR": str(boxes / "checkpoints")}
    (boxes / "checkpoints").mkdir()
    with programs.started(PROGRAM, *arguments, cwd=boxes, ranks=ranks, **kept) as job:
        job.wait_for("^metric train_loss=.* step=17$")
        for process in job.processes:
            os.kill(process.pid, signal.SIGKILL)
        job.finish()
    with programs.started(PROGRAM, *arguments, cwd=boxes, ranks=ranks, **kept) as job:
        job.succeed()
    assert "resumed from" in job.errors[0]
    through, resumed = (load_file(boxes / name / "model.safetensors") for name in ("through", "model"))
    assert all(torch.equal(through[name], resumed[name]) for name in through)


def test_a_file_a_picture_says_what_cocos_one_file_says(program: ModuleType, boxes: Path) -> None:
    content = json.loads((boxes / FILE).read_text())
    (boxes / "each").mkdir()
    for image in content["images"]:
        own = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        said = {
            "file": image["file_name"],
            "image_size": [{"width": 32, "height": 32, "depth": 3}],
            "annotations": [
                {
                    "class_id": one["category_id"] - 1,
                    **dict(zip(("left", "top", "width", "height"), one["bbox"], strict=True)),
                }
                for one in own
            ],
            "categories": [{"class_id": 0, "name": "disc"}, {"class_id": 1, "name": "square"}],
        }
        (boxes / "each" / Path(image["file_name"]).with_suffix(".json")).write_text(json.dumps(said))
    read = program._boxes.read_channel
    one, classes, checksum = read(str(boxes / "train"), str(boxes / "train_annotation"), "train", None, None, None)
    two, others, other = read(str(boxes / "train"), str(boxes / "each"), "train", None, None, None)
    assert classes == others == ["disc", "square"] and (checksum, one.paths) == (other, two.paths)
    assert read(str(boxes / "train"), str(boxes / "each"), "train", None, None, 4)[1] == ["disc", "square", "2", "3"]


def test_precision_is_what_coco_says_it_is(program: ModuleType) -> None:
    """Worked out by hand: the better of two boxes is wrong, and another finds one of the two things there are."""
    there = [numpy.array([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])]
    found = [numpy.array([[0.9, 0.0, 0.5, 0.4, 1.0], [0.8, 0.0, 0.0, 0.5, 0.4], [0.7, 0.0, 0.0, 0.5, 0.5]])]
    precision = program._boxes.average_precision(found, there)
    # The second box overlaps by 0.8: up to there it is right and the third is one too many, above the third is.
    assert precision[:7] == pytest.approx([51 / 101 / 2] * 7)
    assert precision[7:] == pytest.approx([51 / 101 / 3] * 3)
    nothing = numpy.zeros((0, 5))
    assert numpy.isnan(program._boxes.average_precision([nothing], [numpy.zeros((0, 4))])).all()
    assert (program._boxes.average_precision([nothing], there) == 0).all()


def test_precision_is_what_pycocotools_measures(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    needs("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    draw = numpy.random.default_rng(0)
    truth, found, told, said = [], [], [], []
    for picture in range(30):
        corner, size = draw.uniform(0, 60, (3, 2)), draw.uniform(5, 40, (3, 2))
        there = numpy.concatenate([corner, size], axis=1)[: draw.integers(0, 4)]
        near = numpy.concatenate([there + draw.normal(0, 2, there.shape), draw.uniform(5, 40, (2, 4))])
        scores = draw.uniform(0, 1, len(near)).round(6)
        truth.append(numpy.concatenate([there[:, :2], there[:, :2] + there[:, 2:]], axis=1))
        found.append(numpy.concatenate([scores[:, None], near[:, :2], near[:, :2] + near[:, 2:]], axis=1))
        for box in there:
            area = float(box[2:].prod())
            one = {"id": len(told) + 1, "image_id": picture, "category_id": 1, "bbox": box.tolist(), "area": area}
            told.append({**one, "iscrowd": 0})
        said += [
            {"image_id": picture, "category_id": 1, "bbox": box.tolist(), "score": float(score)}
            for box, score in zip(near, scores, strict=True)
        ]
    data = COCO()
    data.dataset = {"images": [{"id": at} for at in range(30)], "categories": [{"id": 1}], "annotations": told}
    data.createIndex()
    judge = COCOeval(data, data.loadRes(said), "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    ours = program._boxes.average_precision(found, truth)
    assert ours.mean() == pytest.approx(judge.stats[0], abs=1e-6) and ours[0] == pytest.approx(judge.stats[1], abs=1e-6)


def change(place: list[Any], value: Any) -> Callable[[Path], None]:
    """Sets a value in the file of boxes, or takes it out (None)."""

    def made(root: Path) -> None:
        content = at = json.loads((root / FILE).read_text())
        for step in place[:-1]:
            at = at[step]
        if value is None:
            del at[place[-1]]
        else:
            at[place[-1]] = value
        (root / FILE).write_text(json.dumps(content))

    return made


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda root: (root / "train" / "0003.png").unlink(),
            r"0003\.png, which has boxes, is missing in the channel train",
        ),
        (lambda root: (root / FILE).write_text("[1, 2"), "cannot be read as JSON"),
        (lambda root: (root / FILE).rename(root / "train_annotation" / "boxes.txt"), "holds no JSON files"),
        (change(["annotations", 2, "bbox"], [1, 2, 3]), r"annotations\[2\]: a box is four numbers"),
        (change(["annotations", 2, "bbox"], [1, 2, 3, 10**400]), r"annotations\[2\]: a box is four numbers"),
        (change(["annotations", 2, "bbox"], [40, 2, 3, 4]), r"annotations\[2\]: the box .* has nothing of its picture"),
        (change(["annotations", 2, "category_id"], 9), r"annotations\[2\]: there is no category with the id 9"),
        (change(["annotations", 2, "image_id"], 999), r"annotations\[2\]: there is no picture with the id 999"),
        (change(["categories", 1, "name"], "disc"), "calls several classes 'disc'"),
        (change(["annotations"], []), "has no box in any picture"),
        (change(["images", 1, "file_name"], None), r"images\[1\] has no valid 'file_name'"),
        (change(["images", 1, "file_name"], "0000.png"), r"images\[1\]: the picture 0000.png or its id 1 is there twice"),
    ],
)
def test_what_is_wrong_with_boxes_is_said(
    program: ModuleType,
    outside_a_job: None,
    boxes: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
    message: str,
) -> None:
    spoil(boxes)
    monkeypatch.chdir(boxes)
    with pytest.raises(program.Problem, match=message):
        run_here(program, monkeypatch, *SMALL)
    assert not (boxes / "model").exists()


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


@pytest.mark.parametrize("group", range(mutants.GROUPS))
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    mutants.start("test_object_detection", group, tmp_path)
