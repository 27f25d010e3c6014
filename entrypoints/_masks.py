"""Reads pictures with a class for each pixel: a mask of the same name and size beside each. Raises Problem."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import _images
import numpy
import torch
from _common import Problem, folder
from torch import Tensor

IGNORED = 255  # pixels of no class, as in Pascal VOC
MODES = ("L", "P", "1")


class Masked(_images.FileImages):
    """Pictures and their masks, both brought to `shape`. A batch: pixels uint8 (N, C, H, W), classes int64 (N, H, W)."""

    def __init__(self, paths: list[Path], masks: list[Path], shape: tuple[int, int, int]) -> None:
        super().__init__(paths, torch.zeros(len(paths), dtype=torch.int64), shape)
        self.masks = masks

    def __getitem__(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        size = (self.shape[2], self.shape[1])
        classes = numpy.stack([pixels_of(self.masks[position], size) for position in positions])
        return self.pixels(positions), torch.from_numpy(classes.astype(numpy.int64))


def pixels_of(path: Path, size: tuple[int, int] | None = None) -> Any:
    """The classes in a mask, uint8 [height, width]; of another size than asked for, each pixel is its nearest one."""
    with _images.opened(path) as image:
        if image.mode not in MODES:
            raise Problem(
                f"{path} is no mask: it has the mode {image.mode}; a mask is a PNG with one number a pixel, its class"
            )
        if size and image.size != size:
            image = image.resize(size, resample=0)
        return numpy.asarray(image, dtype=numpy.uint8)


def read_channel(
    pictures: str,
    masks: str | None,
    what: str,
    image_size: int | None,
    channels: int | None,
    num_classes: int | None,
    like: tuple[int, tuple[int, int, int]] | None = None,
    skip: float = 0.0,
) -> tuple[Masked, int, str]:
    """The pictures of a channel with their masks, how many classes there are, and a checksum of all masks.

    like: classes and shape of the training data, which the other channels must keep to. skip: the share of pictures that may
    be damaged.
    """
    if not masks:
        raise Problem(f"{what} has pictures without masks: give a channel {what.split()[-1]}_annotation")
    paths = _images.image_files(folder(pictures, what))
    if not paths:
        raise Problem(f"{what} {pictures} holds no images ({' '.join(_images.IMAGE_FILES)})")
    _images.note_left_out(Path(pictures), what)
    beside = folder(masks, f"{what}_annotation")
    root = Path(pictures)
    paths = _images.undamaged(paths, what, skip)
    found = [(beside / path.relative_to(root)).with_suffix(".png") for path in paths]
    if missing := [path for path in found if not path.is_file()]:
        raise Problem(f"{missing[0]} is missing: the mask of {paths[found.index(missing[0])]}" + _and(len(missing) - 1))
    highest, crc = -1, 0
    for path, mask in zip(paths, found, strict=True):
        classes = pixels_of(mask)
        with _images.opened(path) as image:
            if image.size != (classes.shape[1], classes.shape[0]):
                shown = f"{classes.shape[1]} x {classes.shape[0]}"
                raise Problem(f"{mask} is {shown}, and its picture {image.size[0]} x {image.size[1]}")
        inside = classes[classes != IGNORED]
        crc = zlib.crc32(classes.tobytes(), crc)
        highest = max(highest, int(inside.max()) if inside.size else -1)
        known = like[0] if like else num_classes
        if known and highest >= known:
            raise Problem(f"{mask} has the class {highest}; there are {known}, 0 to {known - 1} ({IGNORED}: of no class)")
    if highest < 0:
        raise Problem(f"the masks of {what} have no pixel with a class: all are {IGNORED}")
    count = like[0] if like else num_classes or highest + 1
    if count < 2:
        raise Problem(f"the masks of {what} have one class only: give num_classes, or other masks")
    named = ((path, str(path)) for path in paths)
    shape = like[1] if like else _images.shape_of(named, image_size, channels)
    if min(shape[1:]) < 8:
        raise Problem(f"{what} has images of {_images.shown(shape)}; the smallest possible is 8 x 8")
    return Masked(paths, found, shape), count, f"{crc:08x}"


def _and(more: int) -> str:
    return f", and {more} more" if more else ""
