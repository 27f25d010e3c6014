"""What `metrics.log` keeps beside numbers: pictures, figures, tables, histograms, texts and sounds, each as one file.

    metrics.log(image=array, step=10)
    metrics.log(samples=[metrics.Image(one, caption="a cat") for one in batch], step=10)

Libraries of others are used through the objects that they have made: nothing is imported but numpy, for arrays. Formats:
PNG (https://www.w3.org/TR/png-3/), WAV, text, and JSON for tables, histograms and figures of plotly.
"""

from __future__ import annotations

import io
import json
import os
from itertools import islice

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

LARGEST = 4 << 20  # bytes of one file
MOST_AT_ONCE = 16  # things of one name in one call
MOST_SIDE = 1024  # pixels
MOST_ROWS, MOST_COLUMNS, LONGEST_CELL = 1000, 50, 300
LONGEST_TEXT = 1 << 16  # characters
BINS = 64
_CHANNELS = (1, 3, 4)
_PICTURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif", b"RIFF": "webp"}
_SOUNDS = {b"RIFF": "wav", b"ID3": "mp3", b"\xff\xfb": "mp3", b"OggS": "ogg", b"fLaC": "flac"}


class MediaFile(Record):
    """A file to be. ending: of its name. cut: what of the value is not in it, "" for nothing."""

    data: bytes
    ending: str
    cut: str = ""


class WrongKind(TypeError):
    """A value is of a kind that is not kept so."""


class Loggable:
    """Something that is not a number, for `metrics.log`.

    Args:
        value: of the kind that the class names; of pictures, figures, texts and sounds also a list of them.
        caption: shown below it.
    """

    kind = ""
    endings: tuple[str, ...] = ()
    _several = True  # whether a list is several of them

    def __init__(self, value: Any, caption: str = "") -> None:
        self.value, self.caption = value, str(caption)[:LONGEST_CELL]

    def _parts(self) -> list[Loggable]:
        """The single ones that it stands for."""
        if self._several and (isinstance(self.value, (list, tuple)) or getattr(self.value, "ndim", 0) == 4):
            return [one if isinstance(one, Loggable) else self._alike(one) for one in self.value]
        return [self]

    def _content(self) -> MediaFile:
        """The file that keeps it. Raises WrongKind."""
        raise NotImplementedError

    def _alike(self, value: Any) -> Loggable:
        return type(self)(value, self.caption)

    def _wrong(self, wanted: str) -> WrongKind:
        shape = getattr(self.value, "shape", None)
        shown = type(self.value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
        return WrongKind(f"{shown} cannot be kept as {self.kind}: {wanted}")


class Image(Loggable):
    """A picture: an array or tensor [H, W], [H, W, C] or [C, H, W], one of PIL, or a file (its path or its bytes).

    C is 1, 3 or 4. Whole numbers go from 0 to 255, others from 0 to 1; what lies beyond is cut. A batch, with one axis more,
    is several pictures. More than 1024 pixels a side are thinned.
    """

    kind = "image"
    endings = ("png", "jpg", "gif", "webp")

    def _content(self) -> MediaFile:
        """The picture as PNG, a file as it is."""
        if isinstance(self.value, (str, bytes, os.PathLike)):
            return _file(self.value, _PICTURES, self._wrong("neither PNG, JPEG, GIF nor WebP"))
        if hasattr(self.value, "getbands"):
            return MediaFile(_png_of_pil(self.value), "png")
        array = _array(self.value, self._wrong("an array of numbers, an image of PIL, or the path of one"))
        if array.ndim == 2:
            array = array[:, :, None]
        if array.ndim == 3 and array.shape[2] not in _CHANNELS and array.shape[0] in _CHANNELS:
            array = array.transpose(1, 2, 0)
        if array.ndim != 3 or array.shape[2] not in _CHANNELS:
            raise self._wrong("it needs [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels")
        return MediaFile(_png(_pixels(array)), "png")


class Figure(Loggable):
    """A figure of matplotlib (or `pyplot` itself, for its present one), or of plotly (its object, JSON or dictionary)."""

    kind = "figure"
    endings = ("png", "json")

    def _content(self) -> MediaFile:
        """PNG for matplotlib's, JSON for plotly's."""
        drawn = self.value
        if not hasattr(drawn, "savefig") and hasattr(drawn, "get_figure"):  # axes
            drawn = drawn.get_figure()
        if hasattr(drawn, "savefig"):
            file = io.BytesIO()
            drawn.savefig(file, format="png", dpi=100)
            return MediaFile(file.getvalue(), "png")
        wrong = self._wrong("a figure of matplotlib or plotly, or plotly's JSON")
        try:
            text = drawn.to_json() if hasattr(drawn, "to_plotly_json") else drawn
            told = json.loads(text) if isinstance(text, (str, bytes)) else text
            data = json.dumps(told, default=_listed).encode()
        except (ValueError, TypeError) as error:
            raise wrong from error
        if not isinstance(told, dict) or not isinstance(told.get("data"), (list, tuple)):
            raise wrong
        return MediaFile(data, "json")


class Table(Loggable):
    """A table: a DataFrame, a list of rows, a list of dictionaries, or a dictionary of columns.

    Args:
        columns: their names, where the value has none.
    """

    kind = "table"
    endings = ("json",)
    _several = False

    def __init__(self, value: Any, caption: str = "", columns: Iterable[object] = ()) -> None:
        super().__init__(value, caption)
        self.columns = [*columns]

    def _content(self) -> MediaFile:
        """`columns`, `rows` and the `count` of all rows, as JSON."""
        names, rows, count = self._rows()
        try:
            kept = [[_cell(one) for one in islice(row, MOST_COLUMNS)] for row in islice(rows, MOST_ROWS)]
        except TypeError as error:
            raise self._wrong("its rows are not lists") from error
        width = max(map(len, kept), default=0)
        names = [_cell(one) for one in islice(names, MOST_COLUMNS)]
        names += [str(number) for number in range(len(names), width)]
        told = {"columns": [str(one) for one in names], "rows": kept, "count": count}
        return MediaFile(json.dumps(told).encode(), "json", f"{count - len(kept)} rows" if count > len(kept) else "")

    def _rows(self) -> tuple[list[Any], Iterable[Any], int]:
        """Names of the columns, rows, and how many of those there are."""
        value = _listed(self.value) if hasattr(self.value, "ndim") and not hasattr(self.value, "columns") else self.value
        if hasattr(value, "itertuples"):  # pandas
            named = type(value.index).__name__ != "RangeIndex"
            names = [value.index.name or "", *value.columns] if named else [*value.columns]
            return names, value.itertuples(index=named, name=None), len(value)
        if hasattr(value, "iter_rows"):  # polars
            return [*value.columns], value.iter_rows(), len(value)
        if isinstance(value, dict) and all(hasattr(one, "__iter__") and not isinstance(one, str) for one in value.values()):
            columns = [[*one] for one in value.values()]
            return [*value], zip(*columns, strict=False), min(map(len, columns), default=0)
        if not isinstance(value, (list, tuple)):
            raise self._wrong("a DataFrame, a list of rows or of dictionaries, or a dictionary of columns")
        if value and all(isinstance(row, dict) for row in value):
            names = self.columns or [*dict.fromkeys(name for row in value[:MOST_ROWS] for name in row)]
            return names, ([row.get(name) for name in names] for row in value), len(value)
        if any(isinstance(row, str) for row in value[:MOST_ROWS]):
            raise self._wrong("its rows are texts, not lists")
        return self.columns, value, len(value)


class Histogram(Loggable):
    """How numbers are spread: an array, tensor or list of them, of any shape, counted in 64 bins."""

    kind = "histogram"
    endings = ("json",)
    _several = False

    def _content(self) -> MediaFile:
        """`counts` and one more of `edges`, `count` of all, and how many of those are `odd`: not finite."""
        import numpy

        values = _array(self.value, self._wrong("an array or a list of numbers")).astype("float64").ravel()
        finite = values[numpy.isfinite(values)]
        counts, edges = numpy.histogram(finite, BINS) if finite.size else (numpy.zeros(0, int), numpy.zeros(0))
        told = {"counts": counts.tolist(), "edges": edges.tolist(), "count": values.size, "odd": values.size - finite.size}
        return MediaFile(json.dumps(told).encode(), "json")


class Text(Loggable):
    """A text, of which 65,536 characters are kept."""

    kind = "text"
    endings = ("txt",)

    def _content(self) -> MediaFile:
        """It as UTF-8."""
        if not isinstance(self.value, str):
            raise self._wrong("a text")
        beyond = len(self.value) - LONGEST_TEXT
        cut = f"{beyond} characters" if beyond > 0 else ""
        return MediaFile(self.value[:LONGEST_TEXT].encode("utf-8", "replace"), "txt", cut)


class Audio(Loggable):
    """A sound: an array or tensor [N], [N, C] or [C, N], from -1 to 1 or of int16; or a file (its path or its bytes).

    Args:
        sample_rate: values a second.
    """

    kind = "audio"
    endings = ("wav", "mp3", "ogg", "flac")

    def __init__(self, value: Any, sample_rate: int = 44100, caption: str = "") -> None:
        super().__init__(value, caption)
        self.sample_rate = int(sample_rate)

    def _alike(self, value: Any) -> Loggable:
        return Audio(value, self.sample_rate, self.caption)

    def _content(self) -> MediaFile:
        """16 bits a value as WAV, a file as it is."""
        if isinstance(self.value, (str, bytes, os.PathLike)):
            return _file(self.value, _SOUNDS, self._wrong("neither WAV, MP3, Ogg nor FLAC"))
        import wave

        array = _array(self.value, self._wrong("an array of numbers, or the path of a file"))
        array = array[:, None] if array.ndim == 1 else array.T if array.ndim == 2 and len(array) <= 2 else array
        if array.ndim != 2 or array.shape[1] not in (1, 2) or array.dtype.kind not in "fi":
            raise self._wrong("it needs [N], [N, C] or [C, N] with 1 or 2 channels, from -1 to 1 or of int16")
        most = (LARGEST - 64) // (2 * array.shape[1])
        cut = f"{(len(array) - most) / self.sample_rate:.1f} s" if len(array) > most else ""
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(array.shape[1])
            out.setsampwidth(2)
            out.setframerate(self.sample_rate)
            out.writeframes(_waves(array[:most]))
        return MediaFile(file.getvalue(), "wav", cut)


KINDS: dict[str, type[Loggable]] = {one.kind: one for one in (Image, Figure, Table, Histogram, Text, Audio)}


def loggables(name: str, value: Any) -> list[Loggable]:
    """What a value that is not a number stands for, by its name where that is a kind, else by what it is.

    Raises:
        TypeError: nothing of that is kept.
    """
    if isinstance(value, Loggable):
        return value._parts()
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, Loggable) for one in value):
        return [part for one in value for part in one._parts()]
    kind = KINDS.get(name) or _kind_of(value)
    if kind is None:
        known = ", ".join(f"metrics.{one.__name__}" for one in KINDS.values())
        raise TypeError(f"the metric {name!r} is not a number: {type(value).__name__}; other things: {known}")
    return kind(value)._parts()


def content_of(one: Loggable) -> MediaFile:
    """The file that keeps it. Raises WrongKind, and whatever the code of others raises."""
    return one._content()


def _kind_of(value: Any) -> type[Loggable] | None:
    """Of what shows by itself what it is."""
    if hasattr(value, "getbands"):
        return Image
    if hasattr(value, "savefig") or hasattr(value, "to_plotly_json"):
        return Figure
    return Table if hasattr(value, "itertuples") or hasattr(value, "iter_rows") else None


def _file(value: str | bytes | os.PathLike[str], signs: Mapping[bytes, str], wrong: WrongKind) -> MediaFile:
    data = value
    if not isinstance(data, bytes):
        with open(data, "rb") as file:
            data = file.read(LARGEST + 1)
    ending = next((ending for sign, ending in signs.items() if data.startswith(sign)), None)
    if ending is None or (ending in ("webp", "wav") and data[8:12] != {"webp": b"WEBP", "wav": b"WAVE"}[ending]):
        raise wrong
    return MediaFile(data, ending)


def _array(value: Any, wrong: WrongKind) -> Any:
    """Numbers as an array of numpy; a tensor waits for its device."""
    import numpy

    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value  # numpy has no bfloat16
    try:
        array = numpy.asarray(value)
    except ValueError as error:
        raise wrong from error
    if array.dtype.kind == "V":  # bfloat16 of JAX
        array = array.astype("float32")
    if array.dtype.kind not in "biuf":
        raise wrong
    return array


def _pixels(array: Any) -> Any:
    """uint8 [H, W, C], thinned."""
    import numpy

    every = max(1, -(-max(array.shape[:2]) // MOST_SIDE))
    array = array[::every, ::every]
    if array.dtype.kind in "iu":
        return array.clip(0, 255).astype("uint8")
    return (numpy.nan_to_num(array.astype("float32")).clip(0, 1) * 255).round().astype("uint8")


def _png(pixels: Any) -> bytes:
    """A PNG of uint8 [H, W, C]: its rows, each after the number of its filter (0), in one piece."""
    import struct
    import zlib

    import numpy

    height, width, channels = pixels.shape
    if not pixels.size:
        raise ValueError("it has no pixels")
    rows = numpy.zeros((height, 1 + width * channels), "uint8")
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    colour = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _png_of_pil(image: Any) -> bytes:
    clear = "A" in image.getbands() or "transparency" in image.info
    small = image.convert("RGBA" if clear else "L" if image.mode in ("1", "L") else "RGB")
    small.thumbnail((MOST_SIDE, MOST_SIDE))
    file = io.BytesIO()
    small.save(file, "PNG")
    return file.getvalue()


def _waves(array: Any) -> bytes:
    """Little-endian 16 bits of each value."""
    import numpy

    if array.dtype.kind == "f":
        array = (numpy.nan_to_num(array.astype("float32")).clip(-1, 1) * 32767).round()
    return bytes(array.clip(-32768, 32767).astype("<i2").tobytes())


def _listed(value: Any) -> Any:
    """An array within other values, for JSON."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _cell(value: Any) -> Any:
    """A value as a table holds it: a finite number, None, or a text."""
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if value is None or isinstance(value, int) or (isinstance(value, float) and value - value == 0):
        return value
    return str(value)[:LONGEST_CELL]
