"""Lines of text and of JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from support.data_files import samples
from support.extras import needs
from support.properties import given, st
from trainshed.data.formats import format as formats
from trainshed.data.formats import lines
from trainshed.data.formats.errors import DataError, SampleError
from trainshed.data.formats.lines import FilledLines, JsonLines, Lines

needs("numpy")


def written(folder: Path, content: bytes) -> str:
    path = folder / "a.txt"
    path.write_bytes(content)
    return str(path)


@given(lambda: (st.text("ab\n\r \tö\ufeff", max_size=40), st.integers(1, 9)), max_examples=200)
def test_lines_are_counted_and_read_alike(text: str, block: int, *, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written(tmp_path_factory.getbasetemp(), text.encode())
    pieces = text.removeprefix("\ufeff").split("\n")
    pieces = [piece.removesuffix("\r") for piece in (pieces if pieces[-1] else pieces[:-1])]
    if text == "\ufeff":
        pieces = [""]
    filled = [piece for piece in pieces if piece.encode().strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", block)
        patch.setattr(formats, "STRIDE", 2)
        for form, expected in ((Lines(), pieces), (FilledLines(), filled)):
            assert samples(form, path) == expected
            assert form.count(path).records == len(expected)
            for first in range(len(expected)):
                assert samples(form, path, first) == expected[first:]


def test_what_is_not_utf8_is_refused() -> None:
    with pytest.raises(SampleError, match="a record is not UTF-8: its byte 2 is 0xff"):
        Lines().sample(b"ab\xff")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return b"x" * size

    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    with pytest.raises(DataError, match="pipe: the record at byte 0 has no end in 1048576 bytes"):
        list(Lines().split(Endless(), "pipe"))  # type: ignore[arg-type]


def test_lines_much_longer_than_a_block_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 16)
    path = written(tmp_path, b"a" * 1000 + b"\n" + b"b" * 1000)

    assert samples(Lines(), path) == ["a" * 1000, "b" * 1000]


@given(
    lambda: st.lists(st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=5))), max_examples=50
)
def test_what_json_writes_is_read_equal(values: list[dict[str, object]]) -> None:
    stream = io.BytesIO("\n \n".join(json.dumps(value, ensure_ascii=False) for value in values).encode())

    assert [JsonLines().sample(record) for _, record in JsonLines().split(stream, "a")] == values


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 1', "is not JSON: Expecting"),
        (b'{"a": 1} {}', "is not JSON: Extra data"),
        (b"12", "neither a JSON object nor an array: 12"),
        (b'"text"', "neither a JSON object nor an array"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    ],
)
def test_a_line_that_is_not_json_is_refused(line: bytes, words: str) -> None:
    with pytest.raises(SampleError, match=words):
        JsonLines().sample(line)
