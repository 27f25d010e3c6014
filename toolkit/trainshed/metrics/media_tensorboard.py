"""Pictures, tables and the like as summaries for TensorBoard, through a writer of tensorboardX.

Source: TensorBoard's summary.proto (`Image`, `Audio`, `HistogramProto`); texts are Markdown there.
"""

from __future__ import annotations

import io
import json
import wave
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .media_reading import Medium


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
