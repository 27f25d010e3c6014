"""Reads pictures with boxes around what is in them, by COCO's JSON or by one JSON file a picture. Raises Problem.

COCO's format: https://cocodataset.org/#format-data ("Object Detection"); a file a picture: "Input/Output Interface for the
Object Detection Algorithm" of SageMaker's developer guide.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import _images
import numpy
import torch
from _common import Problem, folder, note
from torch import Tensor

SMALLEST = 16  # pixels of a side
SHOWN = 5
MOST_EMPTY = 0.5  # part of all boxes that may have no size; with more of them they are written otherwise


@dataclass(frozen=True)
class Marks:
    """What is in a picture: int64 classes (n), and boxes float32 (n, 4) as middle and size, parts of width and height."""

    classes: Tensor
    boxes: Tensor


class Boxed(_images.FileImages):
    """Pictures and what is in them. A batch: pixels uint8 (N, C, H, W), and a list of N `Marks`."""

    def __init__(self, paths: list[Path], marks: list[Marks], shape: tuple[int, int, int]) -> None:
        super().__init__(paths, torch.zeros(len(paths), dtype=torch.int64), shape)
        self.marks = marks

    def __getitem__(self, positions: list[int]) -> tuple[Tensor, list[Marks]]:  # type: ignore[override]
        return self.pixels(positions), [self.marks[position] for position in positions]


@dataclass
class _Found:
    """What annotations say: of each picture (by its path in the channel) its boxes, and the names of classes by number.

    A box is (number of the class, left, top, width, height in pixels, where it is written). sizes: of pictures, where said.
    """

    boxes: dict[str, list[tuple[int, list[float], str]]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)


def read_channel(
    pictures: str,
    annotation: str | None,
    what: str,
    image_size: int | None,
    channels: int | None,
    num_classes: int | None,
    like: tuple[list[str], tuple[int, int, int]] | None = None,
    skip: float = 0.0,
) -> tuple[Boxed, list[str], str]:
    """The pictures of a channel with their boxes, the names of classes, and a checksum of all boxes.

    like: classes and shape of the training data, which the other channels must keep to. skip: the share of pictures that may
    be damaged.
    """
    if not annotation:
        raise Problem(f"{what} has pictures without boxes: give a channel {what.split()[-1]}_annotation")
    root = folder(pictures, what)
    every = _images.image_files(root)
    if not every:
        raise Problem(f"{what} {pictures} holds no images ({' '.join(_images.IMAGE_FILES)})")
    found = _annotations(folder(annotation, f"{what}_annotation"), every, root, f"{what}_annotation")
    _images.note_left_out(root, what)
    here = {path.relative_to(root).as_posix(): path for path in every}
    _rename(found, here)
    if missing := sorted(set(found.boxes) - set(here)):
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Problem(f"{missing[0]}, which has boxes, is missing in {what} {pictures}{more}")
    whole = set(_images.undamaged([path for name, path in here.items() if name in found.boxes], what, skip))
    kept = [(name, path) for name, path in here.items() if name in found.boxes and path in whole]
    classes = like[0] if like else _classes(found, num_classes, what)
    place = {number: _place(name or str(number), classes, what) for number, name in found.names.items()}
    _leave_out_empty(found, f"{what}_annotation")
    marks, crc, count = [], 0, 0
    for name, path in kept:
        with _images.opened(path) as image:
            size = image.size
        if (told := found.sizes.get(name, size)) != size:
            raise Problem(f"{path} is {size[0]} x {size[1]}, shown upright, but {told[0]} x {told[1]} in {what}_annotation")
        one = _marks(found.boxes[name], place, size)
        marks.append(one)
        count += len(one.classes)
        crc = zlib.crc32(one.boxes.numpy().tobytes() + one.classes.numpy().tobytes(), crc)
    if not count:
        raise Problem(f"{what}_annotation has no box in any picture")
    shape = like[1] if like else _images.shape_of(((path, str(path)) for _, path in kept), image_size, channels)
    if min(shape[1:]) < SMALLEST:
        raise Problem(f"{what} has images of {_images.shown(shape)}; the smallest possible is {SMALLEST} x {SMALLEST}")
    return Boxed([path for _, path in kept], marks, shape), classes, f"{crc:08x}"


def _below(name: str, here: dict[str, Path]) -> str:
    """The picture in the channel that a path means: as other tools write it (`./a.png`, `images/a.png`, `images\\a.png`)."""
    parts = PurePosixPath(name if name in here else name.replace("\\", "/")).parts
    ends = ("/".join(parts[at:]) for at in range(len(parts)))
    return next((end for end in ends if end in here), name)


def _rename(found: _Found, here: dict[str, Path]) -> None:
    """Calls pictures as the channel does. Raises Problem where two are one."""
    names = {name: _below(name, here) for name in found.boxes}
    if len(set(names.values())) < len(names):
        raise Problem(f"{sorted(names)[0]}: two pictures of the annotations are one file of the channel")
    found.boxes = {names[name]: boxes for name, boxes in found.boxes.items()}
    found.sizes = {names[name]: size for name, size in found.sizes.items()}


def _leave_out_empty(found: _Found, what: str) -> None:
    """Takes out boxes without width or height, of which COCO's own data has some, and says so. Raises Problem for most."""
    empty, total = 0, sum(map(len, found.boxes.values()))
    for name, boxes in found.boxes.items():
        found.boxes[name] = [one for one in boxes if not _is_empty(one[1])]
        empty += len(boxes) - len(found.boxes[name])
    if empty > MOST_EMPTY * total:
        raise Problem(f"{what}: {empty} of {total} boxes have no width or no height: is a box left, top, width, height?")
    if empty:
        note(f"{what}: {empty} of {total} boxes have no width or no height, and are left out")


def _is_empty(box: list[Any]) -> bool:
    return len(box) == 4 and all(map(_finite, box)) and 0 in box[2:]


def _annotations(root: Path, pictures: list[Path], beside: Path, what: str) -> _Found:
    files = sorted(path for path in root.rglob("*.json") if not path.name.startswith("."))
    if not files:
        raise Problem(f"{what} {root} holds no JSON files")
    found = _Found()
    if "images" in _json(files[0]):
        for path in files:
            _of_coco(path, found)
        return found
    for picture in pictures:
        name = picture.relative_to(beside)
        path = (root / name).with_suffix(".json")
        if not path.is_file():
            raise Problem(f"{path} is missing: the boxes of {picture}")
        _of_picture(path, name.as_posix(), found)
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Problem(f"{path} cannot be read as JSON: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise Problem(f"{path} holds no JSON object")
    return content


def _of_coco(path: Path, found: _Found) -> None:
    content = _json(path)
    images: dict[Any, str] = {}
    for at, one in enumerate(_list(content, "images", path)):
        where = f"{path}: images[{at}]"
        name, number = _get(one, "file_name", str, where), _get(one, "id", (int, str), where)
        if number in images or name in found.boxes:
            raise Problem(f"{where}: the picture {name} or its id {number} is there twice")
        images[number] = name
        found.boxes[name] = []
        _size(found, name, one)
    for at, one in enumerate(_list(content, "categories", path)):
        where = f"{path}: categories[{at}]"
        _name(found, _get(one, "id", int, where), _get(one, "name", str, where), where)
    for at, one in enumerate(_list(content, "annotations", path)):
        where = f"{path}: annotations[{at}]"
        if _get(one, "image_id", (int, str), where) not in images:
            raise Problem(f"{where}: there is no picture with the id {one['image_id']}")
        number, box = _get(one, "category_id", int, where), _get(one, "bbox", list, where)
        if number not in found.names:
            raise Problem(f"{where}: there is no category with the id {number}")
        if not one.get("iscrowd"):
            found.boxes[images[one["image_id"]]].append((number, box, where))


def _of_picture(path: Path, name: str, found: _Found) -> None:
    content = _json(path)
    for at, one in enumerate(_list(content, "categories", path) if "categories" in content else []):
        where = f"{path}: categories[{at}]"
        _name(found, _get(one, "class_id", int, where), _get(one, "name", str, where), where)
    boxes = []
    for at, one in enumerate(_list(content, "annotations", path)):
        where = f"{path}: annotations[{at}]"
        number = _get(one, "class_id", int, where)
        found.names.setdefault(number, "")
        sides = [_get(one, side, (int, float), where) for side in ("left", "top", "width", "height")]
        boxes.append((number, sides, where))
    found.boxes[name] = boxes
    sizes = content.get("image_size")
    _size(found, name, sizes[0] if isinstance(sizes, list) and sizes else None)


def _size(found: _Found, name: str, said: Any) -> None:
    """Keeps what annotations say of a picture's size, if they do: some write 0."""
    size: tuple[Any, Any] = (said.get("width"), said.get("height")) if isinstance(said, dict) else (0, 0)
    if all(isinstance(side, int) and side > 0 for side in size):
        found.sizes[name] = size


def _list(content: dict[str, Any], name: str, path: Path) -> list[Any]:
    value = content.get(name)
    if not isinstance(value, list):
        raise Problem(f"{path} has no list {name!r}")
    return value


def _get(one: Any, name: str, kind: Any, where: str) -> Any:
    value = one.get(name) if isinstance(one, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Problem(f"{where} has no valid {name!r}: {str(value)[:50]}")
    return value


def _name(found: _Found, number: int, name: str, where: str) -> None:
    if found.names.get(number) not in (None, "", name):
        raise Problem(f"{where}: the class {number} is {name!r} here, {found.names[number]!r} elsewhere")
    found.names[number] = name


def _classes(found: _Found, num_classes: int | None, what: str) -> list[str]:
    """In the order of their numbers; those without a name are called by it. With `num_classes`, all from 0 on."""
    negative = [number for number in found.names if number < 0]
    if negative:
        raise Problem(f"{what}_annotation has the class {negative[0]}: classes are 0 or more")
    numbers = sorted(found.names)
    if num_classes:
        if len(numbers) > num_classes:
            raise Problem(f"{what}_annotation has {len(numbers)} classes, num_classes is {num_classes}")
        numbers += [number for number in range(num_classes) if number not in found.names][: num_classes - len(numbers)]
        numbers.sort()
    names = [found.names.get(number) or str(number) for number in numbers]
    for number in numbers:
        found.names[number] = found.names.get(number) or str(number)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Problem(f"{what}_annotation calls several classes {twice[0]!r}")
    return names


def _place(name: str, classes: list[str], what: str) -> int:
    if name not in classes:
        shown = ", ".join(classes[:SHOWN])
        raise Problem(f"{what}_annotation has the class {name!r}, which the training data lack: {shown}")
    return classes.index(name)


def _marks(boxes: list[tuple[int, list[float], str]], place: dict[int, int], size: tuple[int, int]) -> Marks:
    """Boxes are cut to the picture."""
    made, classes = [], []
    for number, box, where in boxes:
        if len(box) != 4 or not all(map(_finite, box)):
            raise Problem(f"{where}: a box is four numbers (left, top, width, height), not {str(box)[:60]}")
        left, top, width, height = box
        edges = [
            min(max(edge, 0), most) for edge, most in zip((left, top, left + width, top + height), size * 2, strict=True)
        ]
        if edges[2] <= edges[0] or edges[3] <= edges[1]:
            raise Problem(f"{where}: the box {box} has nothing of its picture of {size[0]} x {size[1]}")
        x0, x1, y0, y1 = edges[0] / size[0], edges[2] / size[0], edges[1] / size[1], edges[3] / size[1]
        made.append(((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0))
        classes.append(place[number])
    return Marks(torch.tensor(classes, dtype=torch.int64), torch.tensor(made, dtype=torch.float32).reshape(-1, 4))


def _finite(side: Any) -> bool:
    try:
        return isinstance(side, (int, float)) and math.isfinite(side)
    except OverflowError:  # of an int
        return False


# --- how good found boxes are -----------------------------------------------------------------------------------------

THRESHOLDS = numpy.arange(0.5, 1.0, 0.05)
RECALLS = numpy.linspace(0, 1, 101)


def overlaps(first: Any, second: Any) -> Any:
    """Of boxes [n, 4] and [m, 4], as left, top, right, bottom: what they share, as a part of what either covers: [n, m]."""
    low = numpy.maximum(first[:, None, :2], second[None, :, :2])
    high = numpy.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clip(0).prod(2)
    area: Callable[[Any], Any] = lambda boxes: (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)  # noqa: E731
    either = area(first)[:, None] + area(second)[None] - shared
    return numpy.divide(shared, either, out=numpy.zeros_like(shared), where=either > 0)


def average_precision(found: list[Any], truth: list[Any]) -> Any:
    """Of one class: the average precision at each of `THRESHOLDS`, [10], nan where there is nothing to find.

    As COCO has it: a box finds the one of the truth that it overlaps most and that no better box has found; precision is
    the best at any recall not lower, and averaged over 101 recalls (https://cocodataset.org/#detection-eval).

    Args:
        found: of each picture [n, 5]: score, left, top, right, bottom.
        truth: of each picture [m, 4].
    """
    total = sum(map(len, truth))
    if not total:
        return numpy.full(len(THRESHOLDS), numpy.nan)
    scores: list[float] = []
    right: list[Any] = []
    for boxes, there in zip(found, truth, strict=True):
        ordered = boxes[numpy.argsort(-boxes[:, 0], kind="stable")]
        shared = overlaps(ordered[:, 1:], there)
        hits = numpy.zeros((len(ordered), len(THRESHOLDS)), bool)
        for at, least in enumerate(THRESHOLDS):
            free = numpy.ones(len(there), bool)
            for box in range(len(ordered)):
                open_ = numpy.where(free, shared[box], -1.0)
                if len(there) and open_.max() >= least - 1e-10:
                    free[open_.argmax()] = False
                    hits[box, at] = True
        scores += ordered[:, 0].tolist()
        right.append(hits)
    order = numpy.argsort(-numpy.array(scores), kind="stable")
    every = numpy.concatenate(right)[order].cumsum(0) if scores else numpy.zeros((0, len(THRESHOLDS)))
    made = numpy.zeros(len(THRESHOLDS))
    for at in range(len(THRESHOLDS)):
        precision = every[:, at] / numpy.arange(1, len(every) + 1)
        best = numpy.maximum.accumulate(precision[::-1])[::-1]
        places = numpy.searchsorted(every[:, at] / total, RECALLS - 1e-12)
        made[at] = sum(best[place] for place in places if place < len(best)) / len(RECALLS)
    return made
