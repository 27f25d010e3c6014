"""RecordIO: parts, padding, runs of equal frames, and what is wrong with a file."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import pytest

from support.data_files import frame
from support.properties import given, st
from trainshed.data.formats import format as formats
from trainshed.data.formats import recordio
from trainshed.data.formats.errors import DataError
from trainshed.data.formats.frames import equal_frames
from trainshed.data.formats.recordio import RecordIO

FORM = RecordIO()


def split(content: bytes) -> list[tuple[int, bytes]]:
    return list(FORM.split(io.BytesIO(content), "a.rec"))


def counted(folder: Path, content: bytes) -> formats.Counted:
    path = folder / "a.rec"
    path.write_bytes(content)
    return FORM.count(str(path))


@given(lambda: st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=4), max_size=12), max_examples=60)
def test_parts_are_joined(records: list[list[bytes]]) -> None:
    content, offsets = b"", []
    for parts in records:
        offsets.append(len(content))
        places = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
        content += b"".join(frame(part, place) for part, place in zip(parts, places, strict=True))

    assert split(content) == list(zip(offsets, map(b"".join, records), strict=True))


def test_runs_of_equal_frames_are_found_between_others() -> None:
    chance = random.Random(0)
    payloads = [bytes([number % 251]) * chance.choice([64, 64, 64, 64, 65, 4000]) for number in range(3000)]
    content = b"".join(map(frame, payloads))

    assert [payload for _, payload in split(content)] == payloads


def test_a_payload_that_looks_like_a_frame_is_a_payload() -> None:
    inner = frame(b"x" * 8)
    payloads = [inner + frame(b"")[:4], b"x" * 12, inner * 3, inner * 3]

    assert [payload for _, payload in split(b"".join(map(frame, payloads)))] == payloads


def test_a_run_ends_where_a_header_differs() -> None:
    data = frame(b"abcd") * 5 + frame(b"abcdefgh") + frame(b"abcd") * 2

    assert equal_frames(data, 0, 12, 8) == 5
    assert equal_frames(data, 60, 16, 8) == 1
    assert equal_frames(data + b"\x0a\x23", 76, 12, 8) == 2


@pytest.mark.parametrize("places", [[2], [3], [1, 0], [1, 1], [0, 2], [1, 2, 0], [4], [7]])
def test_parts_in_a_wrong_order_are_refused(places: list[int], tmp_path: Path) -> None:
    content = b"".join(frame(b"abc", place) for place in places)
    for ask in (lambda: split(content), lambda: counted(tmp_path, content)):
        with pytest.raises(DataError, match=r"record \d at byte \d+ has parts in a wrong order"):
            ask()


@pytest.mark.parametrize("places", [[1], [0, 1], [1, 2], [0, 0, 1, 2, 2]])
def test_a_record_whose_last_part_is_missing_is_refused(places: list[int], tmp_path: Path) -> None:
    content = b"".join(frame(b"abc", place) for place in places)
    number = places.count(0)
    for ask in (lambda: split(content), lambda: counted(tmp_path, content)):
        with pytest.raises(DataError, match=f"record {number} at byte {number * 12} is cut short: its last part"):
            ask()


def test_the_place_of_a_wrong_magic_number_is_told(tmp_path: Path) -> None:
    content = frame(b"abc") * 5 + b"\0" * 12
    for ask in (lambda: split(content), lambda: counted(tmp_path, content)):
        with pytest.raises(DataError, match="record 5 at byte 60 begins with 0x00000000 instead of RecordIO's 0xced7230a"):
            ask()


def test_a_length_beyond_the_file_is_told_without_its_memory(tmp_path: Path) -> None:
    content = frame(b"abc") + struct.pack("<II", 0xCED7230A, (1 << 29) - 1) + b"x"
    for ask in (lambda: split(content), lambda: counted(tmp_path, content)):
        with pytest.raises(DataError, match="record 1 at byte 12 is cut short"):
            ask()


def test_parts_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordio, "LARGEST", 20)
    with pytest.raises(DataError, match="record 0 at byte 0 has parts of more than 20 bytes"):
        split(frame(bytes(8), 1) + frame(bytes(8), 2) * 9)
    assert len(split(frame(bytes(8), 1) + frame(bytes(12), 3) + frame(bytes(40)))) == 2


def test_frames_that_are_far_from_each_other_are_counted(tmp_path: Path) -> None:
    content = b"".join(frame(bytes(size)) for size in (5, 200_000, 70_000, 3, 3, 3, 90_000))

    assert counted(tmp_path, content).records == 7
