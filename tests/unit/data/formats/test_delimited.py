"""CSV: quotes, headers, numbers; against Python's own reader."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from support.data_files import plain, samples
from support.extras import needs
from support.properties import given, st
from trainshed.data.formats import format as formats
from trainshed.data.formats import lines
from trainshed.data.formats.delimited import Csv, Tsv
from trainshed.data.formats.errors import DataError, SampleError

needs("numpy")


def written(folder: Path, content: bytes) -> str:
    path = folder / "a.csv"
    path.write_bytes(content)
    return str(path)


def read(folder: Path, text: str, **how: Any) -> list[Any]:
    path = written(folder, text.encode())
    found = samples(Csv(**how), path)
    assert Csv(**how).count(path).records == len(found)
    return found


@given(
    lambda: (
        st.lists(st.lists(st.text('a1",\n\r ', max_size=5), min_size=1, max_size=4), max_size=6),
        st.integers(1, 9),
    ),
    max_examples=200,
)
def test_what_python_writes_is_read_equal(
    rows: list[list[str]], block: int, *, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([*rows, ["x"]])
    path = written(tmp_path_factory.getbasetemp(), stream.getvalue().encode())
    form = Csv(header=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", block)
        patch.setattr(formats, "STRIDE", 2)
        counted = form.count(path)
        records = [record for record in form.read(path, 0, counted)]

        assert counted.records == len(rows) + 1
        for first in range(len(rows) + 1):
            assert list(form.read(path, first, counted)) == records[first:]
    found = [form.sample(record) for record in records]
    for row, sample in zip(rows, found, strict=False):
        if isinstance(sample, tuple):
            assert [text for text in row if not isinstance(text, float)] == [
                text if isinstance(value, float) else value for text, value in zip(row, sample, strict=True)
            ]
        else:
            assert len(sample) == len(row)


@pytest.mark.parametrize(
    "text", ["1,2.5,-3e2\n", "1,2.5,-3e2", "\n1,2.5,-3e2\r\n\n", '"1",2.5,"-3e2"\n', "\ufeff1,2.5,-3e2"]
)
def test_numbers_are_an_array(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text) == [[1, 2.5, -300]]


def test_text_stays_text_and_nothing_is_nan_among_numbers(tmp_path: Path) -> None:
    (first, second, third) = read(tmp_path, "1,,x\n1_0,2,inf\n1,,3\n")

    assert first == [1, "", "x"] and second == ["1_0", 2, float("inf")]
    assert third[0] == 1 and third[1] != third[1] and third[2] == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n3,4\n", [{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        ("a,b\r\n\r\n1,x", [{"a": 1, "b": "x"}]),
        ('\ufeff"a ""1""","b\n2"\n1,2\n', [{'a "1"': 1, "b\n2": 2}]),
        ("a,b\n", [["a", "b"]]),  # a second row would tell
        ("a,a\n1,2\n", [["a", "a"], [1, 2]]),
        ("a,\n1,2\n", [["a", ""], [1, 2]]),
        ("a,1\n1,2\n", [["a", 1], [1, 2]]),
        ("a,b\nc,d\n", [["a", "b"], ["c", "d"]]),
        ("a,b\n1,2,3\n", [["a", "b"], [1, 2, 3]]),
    ],
)
def test_a_header_is_found(text: str, expected: list[Any], tmp_path: Path) -> None:
    assert read(tmp_path, text) == expected


def test_a_header_that_comes_again_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "STRIDE", 1)
    monkeypatch.setattr(lines, "BLOCK", 8)
    text = "a,b\n1,2\n3,4\r\n\ufeffa,b\r\n5,6\na,b\na,bb\na,b"  # as files come through a pipe
    expected = [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": 6}, {"a": "a", "b": "bb"}]
    assert read(tmp_path, text) == expected

    path = str(tmp_path / "a.csv")
    for first in range(5):
        assert samples(Csv(), path, first) == expected[first:]
    assert len(read(tmp_path, text, header=False)) == 8


def test_a_header_is_told(tmp_path: Path) -> None:
    assert read(tmp_path, "a,b\nc,d\n", header=True) == [{"a": "c", "b": "d"}]
    assert read(tmp_path, "a,b\n", header=True) == []
    assert read(tmp_path, "a,b\n1,2\n", header=False) == [["a", "b"], [1, 2]]
    with pytest.raises(DataError, match=r"a\.csv: record 0 at byte 0 is a header in which names occur twice: a, a"):
        read(tmp_path, "a,a\n1,2\n", header=True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'"a"b,c', "has something behind its quoted field 1"),
        (b'5" pipe,3\n4" pipe,2', "a quotation mark in a field that does not begin with one"),
        (b'a,"b', "a quoted field without an end"),
        (b"a,\xff", "not UTF-8"),
    ],
)
def test_a_damaged_row_is_refused(line: bytes, words: str) -> None:
    with pytest.raises(SampleError, match=words):
        Csv().sample((None, line))


def test_a_row_of_another_length_than_the_header_is_refused() -> None:
    with pytest.raises(SampleError, match="has 3 fields, and the header has 2"):
        Csv().sample((("a", "b"), b"1,2,3"))


def test_quotation_marks_that_do_not_end_are_refused_wherever_they_begin(tmp_path: Path) -> None:
    path = written(tmp_path, b'1,2\n3,"4\n' + b"5,6\n" * 9)
    form = Csv()
    for ask in (lambda: form.count(path), lambda: list(form.split(open(path, "rb"), path))):  # noqa: SIM115
        with pytest.raises(DataError, match=r"a\.csv: the record at byte 4 has a quoted field without an end"):
            ask()


def test_a_mark_within_a_field_does_not_join_rows_without_a_word(tmp_path: Path) -> None:
    assert read(tmp_path, '5" x 3",1\n2,3\n', header=False) == [['5" x 3"', 1], [2, 3]]
    with pytest.raises(SampleError, match="quotation mark"):
        read(tmp_path, '5" x,1\n4" x,3\n', header=False)


def test_long_fields_are_read(tmp_path: Path) -> None:
    long = "x" * 200_000  # more than Python's csv takes by default

    assert read(tmp_path, f'1,"{long}"\n') == [[1, long]]


def test_tabs_separate_where_they_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\tb\n1\t\n\t\n2\t3,4\n")

    assert samples(Tsv(), path)[2] == {"a": 2, "b": "3,4"}
    assert samples(Tsv(), path)[1].keys() == {"a", "b"}  # a row of nothing is a row


def test_rows_of_numbers_are_parsed_at_once(tmp_path: Path) -> None:
    form = Csv()
    path = written(tmp_path, b"a,b\n" + b"".join(b"%d,0.5\n" % number for number in range(9)))
    records = list(form.read(path, 0, form.count(path)))

    assert plain(form.batch(records)) == {"a": list(range(9)), "b": [0.5] * 9}
    assert form.batch([*records, (("a", "b"), b"1,x")]) is None
    assert form.batch([*records, (("a", "b"), b"1,")]) is None
    assert form.batch([*records, (None, b"1,2")]) is None
    assert form.batch([(None, b"1,2"), (None, b"1,2,3")]) is None
    assert form.batch([(None, b"1,1_0")]) is None
    assert plain(form.batch([(None, b"1,2"), (None, b"#3,4")])) is None
    assert plain(form.batch([(None, b"1"), (None, b"2")])) == [[1], [2]]
