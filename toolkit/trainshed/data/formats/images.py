"""Folders of images, one folder a class; and the decoding of images."""

from __future__ import annotations

import io
import os

from trainshed.base.errors import did_you_mean

from .errors import DataError, SampleError
from .format import Counted, Format, changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class ImageFolder(Format):
    """Samples are (the image file's bytes, the number of its class); `decode_image` makes arrays of them.

    A "file" of this format is a folder, with a folder in it for each class. Classes are numbered by
    their names' order, as those of torchvision's ImageFolder are. Images lie anywhere below; other
    files and hidden ones are left out.

    Args:
        classes: names of the classes by number; () for those of the folders that are there. Give
            them where hosts see different folders: each would number its own.
    """

    name = "images"
    scattered = True
    content_types = ("application/x-image", "image/jpeg", "image/png")

    def __init__(self, *, classes: tuple[str, ...] = ()) -> None:
        self.classes = classes

    def count(self, path: str) -> Counted:
        """Lists the folders."""
        return Counted(sum(1 for _ in self._found(path)))

    def read(self, path: str, first: int, counted: Counted) -> Iterator[tuple[str, int]]:
        """Records are (path of the image, number of its class)."""
        number = 0
        for number, record in enumerate(self._found(path), 1):
            if number > first:
                yield record
        if number != counted.records:
            raise changed(path, counted, number)

    def sample(self, record: Any) -> tuple[bytes, int]:
        """Reads the image."""
        path, number = record
        with open(path, "rb") as file:
            return file.read(), number

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """A folder that has no files, but folders with images."""
        if not os.path.isdir(path):
            return False
        with os.scandir(path) as entries:
            if any(entry.is_file() and not entry.name.startswith(".") for entry in entries):
                return False
        return next(self._found(path), None) is not None

    def classes_of(self, path: str) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return self.classes or tuple(sorted(_folders(path)))

    def _found(self, path: str) -> Iterator[tuple[str, int]]:
        numbers = {name: number for number, name in enumerate(self.classes_of(path))}
        for name in sorted(_folders(path)):
            if name not in numbers:
                hint = did_you_mean(name, numbers) or f"the classes are {', '.join(numbers)}"
                raise DataError(f"{path}: {name!r} is not one of the classes", hint=hint)
            for place, folders, files in os.walk(os.path.join(path, name), onerror=_raised):
                folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
                for file in sorted(files):
                    if not file.startswith(".") and file.lower().endswith(ENDINGS):
                        yield os.path.join(place, file), numbers[name]


def decode_image(data: bytes) -> Any:
    """An image's pixels: an array uint8 [height, width, 3], red, green and blue. Needs pillow.

    Raises:
        SampleError: it is not an image, is damaged, or is large enough to be an attack (pillow's
        limit). DataError: pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("images are decoded by pillow, which is not installed", hint="pip install pillow") from error
    import numpy as np

    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB")).copy()
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise SampleError(f"is not a whole image: {error}") from error


def _folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _raised(error: OSError) -> None:
    raise error
