"""object_detection.py: what boxes say, how precision is measured, and what is wrong with boxes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Train

needs("numpy", "torch", "PIL")
pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")

PROGRAM = "object_detection.py"
CHANNELS = ("--train", "train", "--train_annotation", "train_annotation")

SMALL = (*CHANNELS, "--width", "4", "--epochs", "2", "--device", "cpu")

FILE = "train_annotation/instances.json"


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
    program: ModuleType, started_here: Train, boxes: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(boxes)
    with pytest.raises(program.Problem, match=message):
        started_here(PROGRAM, *SMALL)
    assert not (boxes / "model").exists()


def test_boxes_without_a_size_are_left_out_and_counted(
    program: ModuleType, boxes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read() -> Any:
        return program._boxes.read_channel(str(boxes / "train"), str(boxes / "train_annotation"), "train", None, None, None)

    total = sum(len(one.classes) for one in read()[0].marks)
    change(["annotations", 2, "bbox"], [3, 3, 0, 5])(boxes)
    change(["annotations", 3, "bbox"], [3, 3, 5, 0.0])(boxes)
    assert sum(len(one.classes) for one in read()[0].marks) == total - 2
    assert f"train_annotation: 2 of {total} boxes have no width or no height, and are left out" in capsys.readouterr().err
    for at in range(total):
        change(["annotations", at, "bbox"], [3, 3, 0, 5])(boxes)
    with pytest.raises(program.Problem, match=f"{total} of {total} boxes have no width or no height: is a box left, top"):
        read()


@pytest.mark.parametrize("path", ["./{}", "images/{}", "images\\{}", "data/train/../train/{}"])
def test_pictures_are_found_as_other_tools_write_their_paths(program: ModuleType, boxes: Path, path: str) -> None:
    def read() -> Any:
        return program._boxes.read_channel(str(boxes / "train"), str(boxes / "train_annotation"), "train", None, None, None)

    before = read()
    content = json.loads((boxes / FILE).read_text())
    for one in content["images"]:
        one["file_name"] = path.format(one["file_name"])
    (boxes / FILE).write_text(json.dumps(content))
    assert (read()[2], read()[0].paths) == (before[2], before[0].paths)
    change(["images", 1, "file_name"], content["images"][0]["file_name"].replace("0000", "elsewhere/0000"))(boxes)
    with pytest.raises(program.Problem, match="two pictures of the annotations are one file of the channel"):
        read()
