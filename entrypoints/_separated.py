"""How a file of separated values is written: its encoding and its separator, found by what it holds, and said."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from _cells import MISSING, number
from _common import Problem, note

SEPARATORS = (",", ";", "\t", "|", " ")
SPOKEN = {"\t": "tabs", " ": "spaces"}
END = "\x1e"  # a line that no file has
MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
WORDS = 1000  # by which an encoding is told
LINES = 50  # that the separator has to fit
BEGINNING = 1 << 16  # bytes that are looked at for them
ENCODINGS = ("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "shift_jis", "gb18030", "euc_kr", "big5")
OTHERS = {  # what a file is that begins so
    b"PK\x03\x04": "an Excel or zip file: save the table as CSV or Parquet",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save the table as CSV or Parquet",
    b"ARROW1": "an Arrow file: write the table as Parquet",
    b"ORC": "an ORC file: write the table as Parquet",
    b"SQLite format 3": "an SQLite database: write the table as CSV or Parquet",
    b"\x89HDF": "an HDF5 file: write the table as CSV or Parquet",
    b"\x80\x04\x95": "a pickle: write the table as CSV or Parquet",
}
LIKE = {  # or like this
    rb"\s*[\[{]\s*[\[{\"]": "JSON: write the table as CSV or Parquet",
    rb"(?i)\s*<(!doctype|html|\?xml)": "HTML or XML, not a table: write the table as CSV or Parquet",
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """How a file is written. skip: lines before the table. line: cells of its first line that has any."""

    encoding: str
    separator: str
    skip: int
    line: tuple[str, ...]


def rows_of(path: str, data: bytes) -> Iterator[tuple[int, list[str]]]:
    """(number of the line, cells) of the rows of a file that have anything in them. Raises Problem and csv.Error."""

    def opened() -> Any:
        return io.BytesIO(data)

    try:
        form = form_of(path, opened)
        text = data.decode(form.encoding)
    except UnicodeDecodeError:
        form = form_of(path, opened, guessed(path, opened))
        text = data.decode(form.encoding)
    lines = list(io.StringIO(text, newline=""))[form.skip :]
    reader = csv.reader(lines, delimiter=form.separator, strict=True)
    try:
        yield from ((reader.line_num + form.skip, cells) for cells in reader if any(cell.strip() for cell in cells))
    except csv.Error:
        require_closed(path, opened, form)
        raise


def form_of(path: str, opened: Callable[[], Any], encoding: str = "") -> Form:
    """How the file is written, said where it is not UTF-8 with commas. opened: gives its bytes as a stream.

    encoding: if it is known. Raises Problem, UnicodeDecodeError and csv.Error.
    """
    with opened() as stream:
        beginning = stream.read(BEGINNING)
    other = next((what for mark, what in OTHERS.items() if beginning.startswith(mark)), None)
    other = other or next((what for like, what in LIKE.items() if re.match(like, beginning)), None)
    if other is not None:
        raise Problem(f"{path} is {other}")
    if b"\0" in beginning and not beginning.startswith(MARKS):
        line = beginning.count(b"\n", 0, beginning.index(b"\0")) + 1
        raise Problem(f"{path} holds zero bytes, the first in line {line}: it is not a file of text")
    encoding = encoding or _marked(path, beginning) or "utf-8-sig"
    text = codecs.getincrementaldecoder(encoding)().decode(beginning)
    separator, skip = _told(text)
    if not separator:
        separator = _separator(text, len(beginning) < BEGINNING)
        if separator != ",":
            note(f"{path}: its cells are separated by {SPOKEN.get(separator, repr(separator))}")
    rows = csv.reader(list(io.StringIO(text, newline=""))[skip:], delimiter=separator, strict=True)
    try:
        line = next((cells for cells in rows if cells), [])
    except csv.Error:
        require_closed(path, opened, Form(encoding, separator, skip, ()))
        raise
    return Form(encoding, separator, skip, tuple(cell.strip() for cell in line))


def require_closed(path: str, opened: Callable[[], Any], form: Form) -> None:
    """Raises Problem for a quote that has no end: all that follows would be one cell. opened: as of `form_of`."""
    with opened() as stream, io.TextIOWrapper(stream, form.encoding, "replace", newline="") as text:
        begun = sum(1 for _ in itertools.islice(text, form.skip))
        rows = csv.reader(itertools.chain(text, [END]), delimiter=form.separator)
        with contextlib.suppress(csv.Error):  # a cell longer than it takes: whoever asks has an error of their own
            for cells in rows:
                if cells and cells[-1].endswith(END) and cells != [END]:
                    raise Problem(f"{path}, line {begun + 1}: a quote is opened here that is never closed")
                begun = form.skip + rows.line_num


def _marked(path: str, beginning: bytes) -> str:
    if not beginning.startswith(MARKS):
        return ""
    note(f"{path}: its encoding is UTF-16")
    return "utf-16"


def guessed(path: str, opened: Callable[[], Any]) -> str:
    """The encoding that charset-normalizer finds. Raises Problem."""
    with opened() as stream:
        found = (word for line in io.BufferedReader(stream) if not line.isascii() for word in re.split(rb'[\s,;"]+', line))
        words = list(itertools.islice(dict.fromkeys(word for word in found if not word.isascii()), WORDS))
    if sum(len(word) < 2 or any(sign in word for sign in b"0123456789") for word in words) > len(words) / 2:
        raise Problem(f"{path} is damaged: it holds {words[0][:40]!r}, which is not text in UTF-8 or another encoding")
    try:
        from charset_normalizer import from_bytes

        best = from_bytes(b" ".join(words), cp_isolation=list(ENCODINGS)).best()
    except ImportError:
        best = None
    if best is None:
        raise Problem(f"{path}: its text is not UTF-8, as in {words[0][:40]!r}: save it as UTF-8")
    note(f"{path}: its encoding is not UTF-8; read as {best.encoding}, as in {str(best).split()[0][:40]!r}")
    return str(best.encoding)


def _told(text: str) -> tuple[str, int]:
    """What Excel's first line `sep=;` says: the separator, and that there is a line to leave out."""
    first = text.partition("\n")[0].strip().strip('"')
    return (first[4], 1) if len(first) == 5 and first.lower().startswith("sep=") else ("", 0)


def _separator(text: str, whole: bool) -> str:
    """The one that gives each line as many cells, more than one, and most of them numbers; else a comma.

    Texts have blanks: these separate numbers alone.
    """
    fitting = {one: part for one in SEPARATORS if (part := _numbers(_rows(text, one, whole))) is not None}
    fitting = {one: part for one, part in fitting.items() if one != " " or part > 0.5}
    return max(fitting, key=lambda one: fitting[one], default=",")


def _rows(text: str, separator: str, whole: bool) -> list[list[str]]:
    lines = list(io.StringIO(text, newline=""))
    cut = not whole or len(lines) > LINES
    try:
        rows = [cells for cells in csv.reader(lines[:LINES], delimiter=separator) if cells]
    except csv.Error:
        return []
    return rows[:-1] if cut else rows


def _numbers(rows: Sequence[Sequence[str]]) -> float | None:
    """The part of all cells that are numbers or missing; None where rows are not as wide as the first one."""
    if not rows or len(rows[0]) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return None
    cells = [cell.strip() for row in rows for cell in row]
    return sum(cell in MISSING or number(cell.replace(",", ".", 1)) is not None for cell in cells) / len(cells)
