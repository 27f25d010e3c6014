"""Reads labelled images from tar shards in webdataset's layout, in the order of the archives. Raises Problem."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _images
import torch
from _common import Problem, World
from torch import Tensor

from trainshed.data import folder
from trainshed.data.dataset import Files
from trainshed.data.errors import SampleError
from trainshed.data.loader import Loader

IMAGE_KEYS = tuple(ending.removeprefix(".") for ending in _images.IMAGE_FILES)
ALONE = World(0, 1, 0, torch.device("cpu"))


class Shards:
    """Labelled images of one shape in tar archives.

    classes: their names.   shape: (channels, height, width)
    """

    def __init__(self, files: Files, classes: list[str], shape: tuple[int, int, int], resized: bool) -> None:
        self.files, self.classes, self.shape = files, classes, shape
        self.decode = Decode({name: number for number, name in enumerate(classes)}, shape, resized)

    def __len__(self) -> int:
        return len(self.files)

    def summary(self) -> object:
        """Facts that differ if the data do."""
        return self.loader(1, ALONE).state_dict()["data"]

    def loader(self, share: int, world: World, **options: Any) -> Loader:
        """Batches of this rank, images (N, C, H, W) and labels (N): at most `share` in each, equally many on each rank."""
        place = {"rank": world.rank, "world_size": world.size}
        return self.files.loader(share, transform=self.decode, **place, **options)

    def some(self, seed: int) -> Iterator[Tensor]:
        """Images of a sample of the data, as batches (N, C, H, W)."""
        batches = self.loader(_images.STATISTICS_BATCH, ALONE, shuffle=True, seed=seed)
        for images, _ in itertools.islice(batches, _images.STATISTICS_SAMPLE // _images.STATISTICS_BATCH):
            yield images

    def without_end(self, fraction: float) -> tuple[Shards, Shards | None]:
        """The first shards, and the last ones, which have about that fraction of the archives; None with one archive."""
        count = min(max(round(len(self.files.paths) * fraction), 1), len(self.files.paths) - 1) if fraction else 0
        if not count:
            return self, None
        return self._of(self.files.paths[:-count]), self._of(self.files.paths[-count:])

    def _of(self, paths: tuple[str, ...]) -> Shards:
        return Shards(self.files.only(paths), self.classes, self.shape, self.decode.resized)


class Decode:
    """Makes an image (C, H, W), uint8, and the number of its class of a sample of a shard.

    resized: whether images of another size are brought to it.
    """

    def __init__(self, numbers: dict[str, int], shape: tuple[int, int, int], resized: bool) -> None:
        self.numbers, self.shape, self.resized = numbers, shape, resized

    def __call__(self, sample: dict[str, Any]) -> tuple[Tensor, int]:
        name = str(label_of(sample))
        if name not in self.numbers:
            raise SampleError(f"has the class {name!r}, which is not one of the {len(self.numbers)} classes of the training")
        _, height, width = self.shape
        with image_of(sample) as image:
            if image.size != (width, height) and not self.resized:
                size = f"{image.size[0]} x {image.size[1]}"
                raise SampleError(f"has an image of {size}, others have {width} x {height}: give image_size to resize them")
            pixels = _images.array_of(image, self.shape)
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), self.numbers[name]


@contextlib.contextmanager
def image_of(sample: dict[str, Any]) -> Iterator[Any]:
    """The image of a sample, as `_images.opened` gives it; raises SampleError."""
    key = next((key for key in sample if key.rpartition(".")[2] in IMAGE_KEYS), None)
    if key is None:
        raise SampleError(f"has no image: its files are {', '.join(name for name in sample if name != '__key__')}")
    try:
        with _images.opened(io.BytesIO(sample[key]), f"{sample['__key__']}.{key}") as image:
            yield image
    except Problem as problem:
        raise SampleError(f"is not usable: {problem}") from problem


def label_of(sample: dict[str, Any]) -> int | str:
    """The class of a sample: its file .cls, or `label` or `class` of its file .json."""
    facts = sample.get("json")
    found = sample.get("cls")
    if found is None and isinstance(facts, dict):
        found = facts.get("label", facts.get("class"))
    if not isinstance(found, (int, str)):
        key = sample["__key__"]
        raise SampleError(f"has no class: {key} needs a file .cls with a number, or a file .json with a label")
    return found


def are_shards(root: Path) -> bool:
    """Whether there are tar archives below a folder."""
    return any(not path.name.startswith(".") for ending in ("*.tar", "*.tar.gz") for path in root.rglob(ending))


def read_shards(
    root: Path,
    name: str,
    world: World,
    image_size: int | None = None,
    channels: int | None = None,
    classes: int | None = None,
    like: tuple[list[str], tuple[int, int, int]] | None = None,
) -> Shards:
    """The shards below `root`; `name` names the channel in errors.

    classes: how many there are, numbered from 0; None: those that are there, for which rank 0 reads everything once.
    image_size, channels, like: as for `_images.read_channel`.
    Raises Problem: no images, one class only, an image that cannot be read. DataError: a damaged archive.
    """
    files = folder(str(root), format="tar")
    if not len(files):
        raise Problem(f"{name} holds no images: its archives are empty")
    if like:
        names, shape = like
    else:
        names = [str(number) for number in range(classes)] if classes else world.from_first(classes_of(files, name, world))
        shape = shape_of(files, image_size, channels)
    return Shards(files, names, shape, bool(image_size) or bool(like))


def classes_of(files: Files, name: str, world: World) -> list[str]:
    """The classes in order, on rank 0."""
    if world.rank:
        return []
    found = sorted({label_of(sample) for sample in files}, key=lambda label: (isinstance(label, str), label))
    if len(found) < 2:
        raise Problem(f"{name} has one class only ({found[0]}): a classifier needs two or more")
    return [str(label) for label in found]


def shape_of(files: Files, image_size: int | None, channels: int | None) -> tuple[int, int, int]:
    """The shape that the images are brought to: as asked for, else that of the first one."""
    try:
        with image_of(files[0]) as image:
            width, height = (image_size, image_size) if image_size else image.size
            return channels or (1 if image.mode in _images.GREY else 3), height, width
    except SampleError as error:
        raise Problem(f"{files.paths[0]}: record 0 {error.what}") from error
