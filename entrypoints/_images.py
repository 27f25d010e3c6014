"""Reads labelled images: folders of image files, one folder a class, or npz files of arrays. Raises Problem."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy
import torch
from _common import Problem, note
from _predicting import Answers
from torch import Tensor
from torch.utils.data import Dataset

IMAGE_FILES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
GREY = ("1", "L", "LA")
HIDDEN = (".", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini")  # of macOS, Synology's NAS and Windows
UNSUPPORTED_PREFIXES = ("I", "F")  # 16 and 32 bits a pixel: Pillow would clip them to 8
SMALLEST = 4
STATISTICS_SAMPLE = 1024
STATISTICS_BATCH = 64


class Images(Dataset):
    """Labelled images of one shape. Indexed with a list of positions it gives a batch: pixels (N, C, H, W), labels (N).

    labels: int64 positions in the list of classes.   shape: (channels, height, width)
    """

    labels: Tensor
    shape: tuple[int, int, int]

    def pixels(self, positions: list[int]) -> Tensor:
        """Raw pixel values, uint8 or float32."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        return self.pixels(positions), self.labels[positions]


class ArrayImages(Images):
    """Images in memory, (N, H, W, C)."""

    def __init__(self, images: numpy.ndarray, labels: Tensor) -> None:
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        self.labels = labels
        self.shape = tuple(self.images.shape[1:])  # type: ignore[assignment]

    def pixels(self, positions: list[int]) -> Tensor:
        return self.images[positions]


class FileImages(Images):
    """Image files, decoded when they are asked for, and resized to `shape`."""

    def __init__(self, paths: list[Path], labels: Tensor, shape: tuple[int, int, int]) -> None:
        self.paths = paths
        self.labels = labels
        self.shape = shape

    def pixels(self, positions: list[int]) -> Tensor:
        return decoded([(self.paths[position], str(self.paths[position])) for position in positions], self.shape)


Named = tuple["Path | IO[bytes]", str]  # an image file, and what messages call it


def decoded(files: list[Named], shape: tuple[int, int, int]) -> Tensor:
    """The pixels of image files, uint8 (N, C, H, W), each resized to the shape (C, H, W). Raises Problem."""
    channels, height, width = shape
    batch = numpy.empty((len(files), height, width, channels), numpy.uint8)
    for row, (file, name) in enumerate(files):
        with opened(file, name) as image:
            batch[row] = array_of(image, shape)
    return torch.from_numpy(batch).permute(0, 3, 1, 2)


def array_of(image: Any, shape: tuple[int, int, int]) -> numpy.ndarray:
    """An image as people see it, what is transparent on white, resized to a shape (C, H, W): uint8 (H, W, C)."""
    from PIL import Image

    channels, height, width = shape
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    picture = image.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height))
    return numpy.asarray(picture).reshape(height, width, channels)


@contextlib.contextmanager
def opened(file: Path | IO[bytes], name: str = "") -> Iterator[Any]:
    """A Pillow image of 8 bits a channel, upright; raises Problem, also for what goes wrong while it is decoded.

    name: for messages, where `file` is not a path.
    """
    path = name or file
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise Problem("image files need Pillow: pip install pillow") from error
    try:
        with Image.open(file) as image:
            if image.mode.startswith(UNSUPPORTED_PREFIXES):
                raise Problem(f"{path} has more than 8 bits a pixel (mode {image.mode}): write such images as npz")
            yield ImageOps.exif_transpose(image) if is_turned(image) else image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Problem(f"{path} cannot be read as an image: {error}") from error


def is_turned(image: Any) -> bool:
    """Whether an image is stored otherwise than it is shown, as photographs of telephones are, by its EXIF or XMP."""
    from PIL import ExifTags, Image

    try:
        # Not the PNG reader's own, which decodes the whole picture to look for EXIF behind it.
        return Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # of damaged EXIF, about which there is no list; nobody turns such a picture
        return False


def read_channel(
    root: Path,
    what: str,
    image_size: int | None = None,
    channels: int | None = None,
    like: tuple[list[str], tuple[int, int, int]] | None = None,
    skip: float = 0.0,
) -> tuple[Images, list[str]]:
    """The labelled images below `root` and their classes; `what` names the channel in errors.

    skip: the share of image files that may be damaged.

    image_size, channels: what image files are brought to; None: as they are.
    like: classes and shape of the training data, which the other channels must keep to.
    Raises Problem: nothing there, unreadable, one class only, unknown classes, another size.
    """
    arrays = sorted(path for path in root.rglob("*.npz") if not path.name.startswith("."))
    if arrays:
        images, names = read_arrays(arrays, what)
        classes, labels = numbered(names, what, like)
        data: Images = ArrayImages(images, labels)
    else:
        every, of_each = labelled_files(root, what)
        paths = undamaged(every, what, skip)
        names = [name for path, name in zip(every, of_each, strict=True) if path in set(paths)] if skip else of_each
        note_left_out(root, what)
        classes, labels = numbered(names, what, like)
        files: list[Named] = [(path, str(path)) for path in paths]
        data = FileImages(paths, labels, shape_of(files, image_size, like[1][0] if like else channels))
    if like and data.shape != like[1]:
        raise Problem(f"{what} has images of {shown(data.shape)}, the training data have {shown(like[1])}")
    if min(data.shape[1:]) < SMALLEST:
        raise Problem(f"{what} has images of {shown(data.shape)}; the smallest possible is {SMALLEST} x {SMALLEST}")
    return data, classes


def numbered(names: list[Any], what: str, like: tuple[list[str], Any] | None) -> tuple[list[str], Tensor]:
    """The classes in order and each example's position among them; `names` are class names or numbers."""
    found = sorted(set(names), key=lambda name: (isinstance(name, str), name))
    classes = like[0] if like else [str(name) for name in found]
    if unknown := [str(name) for name in found if str(name) not in classes]:
        raise Problem(f"{what} has classes that the training data lack: {', '.join(unknown[:5])}")
    if len(classes) < 2:
        raise Problem(f"{what} has one class only ({classes[0]}): a classifier needs two or more")
    place = {name: classes.index(str(name)) for name in found}
    return classes, torch.tensor([place[name] for name in names])


def read_arrays(paths: list[Path], what: str, labelled: bool = True) -> tuple[numpy.ndarray, list[Any]]:
    """Images (N, H, W, C), uint8 or float32, and the labels of all npz files together (no labels unless `labelled`)."""
    parts: list[numpy.ndarray] = []
    names: list[Any] = []
    for path in paths:
        images, labels = read_npz(path, labelled)
        if parts and images.shape[1:] != parts[0].shape[1:]:
            raise Problem(f"{path} has images of {images.shape[1:]}, {paths[0].name} has {parts[0].shape[1:]}")
        parts.append(images)
        names += labels
    if sum(map(len, parts)) == 0:
        raise Problem(f"{what} holds no images: the arrays in {paths[0].name} are empty")
    return numpy.concatenate(parts), names


def read_npz(path: Path, labelled: bool) -> tuple[numpy.ndarray, list[Any]]:
    """One npz file: `x` or `images` of shape (N, H, W) or (N, H, W, 1 or 3), and `y` or `labels` of shape (N)."""
    try:
        with numpy.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key in ("x", "images", "y", "labels")}
    except Exception as error:  # numpy raises ValueError, BadZipFile, EOFError, zlib.error, AttributeError and more
        raise Problem(f"{path} is not an npz file of plain arrays ({type(error).__name__})") from error
    images, labels = arrays.get("x", arrays.get("images")), arrays.get("y", arrays.get("labels"))
    if images is None or (labels is None and labelled):
        raise Problem(f"{path} lacks {'x (or images)' if images is None else 'y (or labels)'}: it needs arrays x and y")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise Problem(f"{path} has images of shape {images.shape}; it must be (N, H, W), (N, H, W, 1) or (N, H, W, 3)")
    if images.dtype != numpy.uint8:
        if images.dtype.kind not in "fiub":
            raise Problem(f"{path} has images of type {images.dtype}; they must be numbers")
        images = images.astype(numpy.float32)
        if not numpy.isfinite(images).all():
            raise Problem(f"{path} has pixels that are not finite numbers")
    if labels is None or not labelled:
        return images, []
    if labels.shape != (len(images),):
        raise Problem(f"{path} has {len(images)} images and labels of shape {labels.shape}; that must be ({len(images)},)")
    if labels.dtype.kind == "f" and (labels == numpy.round(labels)).all():
        labels = labels.astype(numpy.int64)
    if labels.dtype.kind not in "iubU":
        raise Problem(f"{path} has labels of type {labels.dtype}; they must be whole numbers or strings")
    return images, labels.tolist()


def labelled_files(root: Path, what: str) -> tuple[list[Path], list[str]]:
    """Image files below `root`, whose first folder is the class, and their classes."""
    paths: list[Path] = []
    names: list[str] = []
    for group in sorted(path for path in root.iterdir() if path.is_dir() and not _of_a_system(path, root)):
        files = image_files(group)
        if not files:
            raise Problem(f"{what}: the class folder {group} holds no images ({' '.join(IMAGE_FILES)})")
        paths += files
        names += [group.name] * len(files)
    if not paths:
        raise Problem(f"{what} {root} holds neither folders of images (one a class) nor npz files")
    return paths, names


def image_files(root: Path) -> list[Path]:
    """The image files below `root`, in order, without hidden ones and those that a system has made."""
    return sorted(path for path in root.rglob("*") if path.suffix.lower() in IMAGE_FILES and not _of_a_system(path, root))


def undamaged(paths: list[Path], what: str, share: float) -> list[Path]:
    """Without the pictures that cannot be read, which are named. Raises Problem for more than this share of all of them.

    With 0 nothing is looked at: the first one that is damaged is a Problem when it is read.
    """
    damaged = {path: problem for path in paths if (problem := _damage(path))} if share else {}
    if not damaged:
        return paths
    first = next(iter(damaged.values()))
    counted = f"{what}: {len(damaged)} of {len(paths)} pictures are damaged"
    if len(damaged) > share * len(paths):
        raise Problem(f"{counted}, more than skip_damaged ({share:g}) allows: {first}")
    note(f"{counted} and left out: {', '.join(path.name for path in list(damaged)[:5])}{' ...' * (len(damaged) > 5)}")
    return [path for path in paths if path not in damaged]


def _damage(path: Path) -> str:
    try:
        with opened(path) as image:
            image.load()
    except Problem as problem:
        return str(problem)
    return ""


def note_left_out(root: Path, what: str) -> None:
    """Says which files below `root` are none that are read, by their endings."""
    files = [path for path in root.rglob("*") if path.is_file() and not _of_a_system(path, root)]
    endings = Counter(path.suffix.lower() or "(none)" for path in files)
    if left := [f"{count} {ending}" for ending, count in sorted(endings.items()) if ending not in (*IMAGE_FILES, ".json")]:
        note(f"{what} {root}: files left out, by ending: {', '.join(left)}; what is read: {' '.join(IMAGE_FILES)}")


def _of_a_system(path: Path, root: Path) -> bool:
    return any(part.startswith(HIDDEN) for part in path.relative_to(root).parts)


def to_predict(source: str, shape: tuple[int, int, int], answers: Answers) -> Iterator[tuple[Path, Any, Tensor]]:
    """(path, (width, height), pixels (1, C, H, W)) of an image file, or of those in a folder. Raises Problem.

    answers: is told which files are no images.
    """
    root = Path(source)
    paths = image_files(root) if root.is_dir() else [root]
    if not paths:
        raise Problem(f"{source} holds no images")
    for path in paths:
        if (found := answers.tried({"input": str(path)}, partial(_sized, path, shape))) is not None:
            yield path, *found


def _sized(path: Path, shape: tuple[int, int, int]) -> tuple[tuple[int, int], Tensor]:
    with opened(path) as image:
        pixels = numpy.array(array_of(image, shape))
        return image.size, torch.from_numpy(pixels).permute(2, 0, 1)[None]


def shape_of(files: Iterable[Named], image_size: int | None, channels: int | None) -> tuple[int, int, int]:
    """The shape that the images are brought to: as asked for, else theirs. Looks at every file unless all is asked for.

    Raises Problem for an image of another size than the first, unless `image_size` says what to do about it.
    """
    if image_size and channels:
        return channels, image_size, image_size
    modes, size, first = set(), (0, 0), ""
    for file, name in files:
        with opened(file, name) as image:
            modes.add(image.mode in GREY)
            if not first:
                size, first = image.size, name
            if image.size != size and not image_size:
                raise Problem(
                    f"{name} is {image.size[0]} x {image.size[1]}, {Path(first).name} is {size[0]} x {size[1]}: "
                    "images must have one size, or give image_size to resize them"
                )
    width, height = size
    if image_size:
        width = height = image_size
    return channels or (1 if modes == {True} else 3), height, width


def shown(shape: tuple[int, int, int]) -> str:
    """A shape for people."""
    return f"{shape[2]} x {shape[1]} with {shape[0]} channel{'s' * (shape[0] > 1)}"


def split(labels: Tensor, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions to train on and to hold out: of every class the same fraction, at least one and never all."""
    generator = numpy.random.default_rng(seed)
    kept: list[int] = []
    held_out: list[int] = []
    for label in range(int(labels.max()) + 1):
        positions = generator.permutation(numpy.flatnonzero(labels.numpy() == label)).tolist()
        count = min(max(round(len(positions) * fraction), 1), len(positions) - 1) if fraction and positions else 0
        held_out += positions[:count]
        kept += positions[count:]
    return sorted(kept), sorted(held_out)


def some(data: Dataset, seed: int) -> Iterator[Tensor]:
    """Images of a sample of the data, as batches (N, C, H, W)."""
    sample = numpy.random.default_rng(seed).permutation(len(data))[:STATISTICS_SAMPLE].tolist()  # type: ignore[arg-type]
    for start in range(0, len(sample), STATISTICS_BATCH):
        yield data[sample[start : start + STATISTICS_BATCH]][0]


def statistics(batches: Iterable[Tensor]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of some images (N, C, H, W); a constant channel has deviation 1."""
    count, total, squares = 0, torch.tensor(0.0), torch.tensor(0.0)
    for batch in batches:
        pixels = batch.double()
        count += pixels.numel() // pixels.shape[1]
        total = total + pixels.sum(dim=(0, 2, 3))
        squares = squares + pixels.square().sum(dim=(0, 2, 3))
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    return mean.tolist(), torch.where(std > 1e-6 * mean.abs(), std, 1.0).tolist()
