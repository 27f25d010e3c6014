"""Writes metrics as an event file for TensorBoard, with tensorboardX (the extra `tensorboard`)."""

from __future__ import annotations

import io
import json
import os
import wave
from itertools import pairwise

from trainshed.base.errors import TrainshedError
from trainshed.base.files import remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from .media_reading import Medium
    from .reading import Curve

_OURS = ".trainshed-export"


def replace(folder: str, series: Iterable[Curve], media: Mapping[str, Sequence[Medium]]) -> tuple[int, int]:
    """As `write`, instead of what an earlier call has put there."""
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    for name in names:
        if name.endswith(_OURS):
            remove(f"{folder}/{name}")
    return write(folder, series, media, _OURS)


def write(folder: str, series: Iterable[Curve], media: Mapping[str, Sequence[Medium]], suffix: str = "") -> tuple[int, int]:
    """Adds an event file to a folder, which is made where it is not there.

    Args:
        series: each becomes the scalars of a tag, over `Curve.whole_steps`, with the times at which they were measured.
        media: pictures, tables and the like, by name.
        suffix: what the file's name ends with.

    Returns:
        How many values, and how many of the others, were written.

    Raises:
        TrainshedError: tensorboardX is not installed, or the folder cannot be written.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise TrainshedError("event files need tensorboardX", hint="pip install 'trainshed[tensorboard]'") from error
    count = 0
    try:
        with SummaryWriter(logdir=folder, write_to_disk=True, filename_suffix=suffix) as writer:
            for one in series:
                for point, step in zip(one.points(), one.whole_steps(), strict=True):
                    writer.add_scalar(one.name, point.value, step, walltime=point.time)
                    count += 1
            others = add_media(writer, media)
    except OSError as error:
        raise TrainshedError(f"{folder} cannot be written: {error.strerror}") from error
    return count, others


# Source: TensorBoard's summary.proto (`Image`, `Audio`, `HistogramProto`); texts are Markdown there.
def add_media(writer: Any, media: Mapping[str, Sequence[Medium]]) -> int:
    """Adds what TensorBoard can show (not: figures of plotly, sounds other than WAV); returns how many.

    Args:
        writer: a `tensorboardX.SummaryWriter`.
        media: each name becomes a tag; of several at one step, those from the second on have their number behind it.
    """
    count, seen = 0, dict[tuple[str, str, int], int]()
    for name, found in media.items():
        for one in found:
            add = _ADDED.get(one.path.rpartition(".")[2] if one.kind in ("figure", "audio") else one.kind)
            place = (name, one.path.rpartition("/")[0], one.call)
            seen[place] = seen.get(place, -1) + 1
            tag = f"{name}/{seen[place]}" if seen[place] else name
            try:
                if add is not None:
                    add(writer, tag, one.read(), (one.call if one.step is None else one.step, one.time))
                    count += 1
            except (OSError, ValueError, KeyError, TypeError, EOFError, wave.Error):
                continue  # somebody else's file, or one that has just been thinned
    return count


def _image(writer: Any, tag: str, data: bytes, where: tuple[int, float]) -> None:
    known = data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[start : start + 4], "big") if known else 0 for start in (16, 20))
    _add(writer, tag, where, image={"width": width, "height": height, "colorspace": 3, "encoded_image_string": data})


def _audio(writer: Any, tag: str, data: bytes, where: tuple[int, float]) -> None:
    with wave.open(io.BytesIO(data)) as file:
        told = {"sample_rate": file.getframerate(), "num_channels": file.getnchannels(), "length_frames": file.getnframes()}
    _add(writer, tag, where, audio={**told, "encoded_audio_string": data, "content_type": "audio/wav"})


def _add(writer: Any, tag: str, where: tuple[int, float], **value: Any) -> None:
    from tensorboardX.proto.summary_pb2 import Summary

    writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, **value)]), *where)


def _text(writer: Any, tag: str, data: bytes, where: tuple[int, float]) -> None:
    writer.add_text(tag, data.decode("utf-8", "replace"), where[0], walltime=where[1])


def _table(writer: Any, tag: str, data: bytes, where: tuple[int, float]) -> None:
    told = json.loads(data)
    rows = [told["columns"], ["---"] * len(told["columns"]), *told["rows"]]
    lines = ["".join(f"|{_cell(one)}" for one in row) + "|\n" for row in rows]
    writer.add_text(tag, "".join(lines), where[0], walltime=where[1])


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def _histogram(writer: Any, tag: str, data: bytes, where: tuple[int, float]) -> None:
    told = json.loads(data)
    counts, edges = told["counts"], told["edges"]
    if not counts:
        return
    middles = [(left + right) / 2 for left, right in pairwise(edges)]
    sums = [sum(count * middle**power for count, middle in zip(counts, middles, strict=True)) for power in (1, 2)]
    writer.add_histogram_raw(tag, edges[0], edges[-1], sum(counts), *sums, edges[1:], counts, where[0], walltime=where[1])


_ADDED: dict[str, Callable[[Any, str, bytes, tuple[int, float]], None]] = {
    "image": _image, "png": _image, "wav": _audio, "text": _text, "table": _table, "histogram": _histogram,
}  # fmt: skip
