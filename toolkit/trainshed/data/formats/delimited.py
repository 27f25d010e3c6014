"""Tables as text: values between commas or tabs, one row a line, as RFC 4180 defines them.

A quoted field may have line ends and separators within it; a quotation mark in it is written twice.
"""

from __future__ import annotations

from itertools import chain, islice, pairwise

from .errors import SampleError, placed
from .format import Counted, Marks, enterable, opened
from .lines import MARK, FilledLines, is_head, is_text, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import IO, Any

    Names = tuple[str, ...] | None
    Row = tuple[int, bytes]

_QUOTE, _LINE_END = b'"', 10


class Csv(FilledLines):
    """Rows: an array float64 [fields] where all fields are numbers, else a tuple of numbers and text.

    With a header, a dictionary by its names; where the header comes again, files were joined, and it
    is left out. Among numbers an empty field is nan; among text it is
    "". Blank lines are left out.

    Args:
        header: whether each file's first row has the columns' names. None to look: it has, where
            all of its fields are different texts, and the second row has a number and as many
            fields. Tables of text alone need to be told.
        separator: one character.
        head: the header's bytes, where it is known (`of_channel`): files with and without it have its columns.
    """

    name = "csv"
    content_types: tuple[str, ...] = ("text/csv", "application/csv")
    endings: tuple[str, ...] = (".csv",)

    def __init__(self, *, header: bool | None = None, separator: str = ",", head: bytes = b"") -> None:
        self.header = header
        self.separator = separator
        self.head = head

    def of_channel(self, paths: Sequence[str]) -> Csv:
        """The same for files of one channel: what the first of them with two rows shows holds for all.

        A part may be empty but for its header, and often the first part alone has one.
        """
        if self.header is not None or self.head:
            return self
        for path in paths:
            with opened(path) as stream:
                two = list(islice(super().split(stream, path), 2))
            if len(two) == 2:
                return type(self)(header=False) if self._found(two) is None else type(self)(head=two[0][1])
        return self

    def split(self, stream: IO[bytes], path: str, record: int = 0, offset: int = 0) -> Iterator[tuple[int, Any]]:
        """Records are (names or None, the row's bytes)."""
        rows = super().split(stream, path, record, offset)
        if offset:
            names, head = self._header(path)
        else:
            names, head, rows = self._headed(rows, path)
        for place, row in rows:
            if names is None or not is_head(row, head):
                yield place, (names, row)

    def count(self, path: str) -> Counted:
        """Looks for line ends that are not within quotes, a block at a time."""
        marks = Marks()
        _, head = self._header(path)
        with opened(path) as stream:
            for begins in self._begins(stream, path, head):
                marks.extend(begins)
        return enterable(path, marks.counted())

    def sample(self, record: Any) -> Any:
        """Parses a row."""
        names, line = record
        values = _values(_fields(text_of(line), self.separator))
        if names is None:
            return values
        if len(values) != len(names):
            raise SampleError(f"has {len(values)} fields, and the header has {len(names)}")
        return dict(zip(names, values if isinstance(values, tuple) else values.tolist(), strict=True))

    def batch(self, records: Sequence[Any]) -> Any | None:
        """Parses rows of numbers alone, all at once; None where there is text, or something missing."""
        import numpy as np

        names = records[0][0]
        lines = [line for _, line in records]
        if any(b'"' in line for line in lines) or any(other != names for other, _ in records):
            return None
        try:
            table = np.loadtxt(
                [text_of(line) for line in lines], delimiter=self.separator, comments=None, ndmin=2, dtype=np.float64
            )
        except (ValueError, SampleError):
            return None  # `sample` says which
        if len(table) != len(records) or (names is not None and table.shape[1] != len(names)):
            return None
        return table if names is None else {name: table[:, column] for column, name in enumerate(names)}

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """Text in which all whole rows have the same number of fields, more than one, and one has a number."""
        whole = beginning[: self._cut(beginning, False)[0]] or beginning
        lines = [line for line in self._pieces(whole.removeprefix(MARK)) if line.strip()][:20]
        if not lines or not is_text(beginning):
            return False
        try:
            rows = [_fields(text_of(line), self.separator) for line in lines]
        except SampleError:
            return False
        return len(rows[0]) > 1 and len(set(map(len, rows))) == 1 and any(_has_number(row) for row in rows)

    def _headed(self, rows: Iterator[Row], path: str) -> tuple[Names, bytes, Iterator[Row]]:
        """The names and the header's bytes, if there is one; and all rows."""
        if self.header is False:
            return None, b"", rows
        if self.head:
            return tuple(_fields(text_of(self.head), self.separator)), self.head, rows
        two = list(islice(rows, 1 if self.header else 2))
        try:
            names = self._found(two) if two else None
        except SampleError as error:
            raise placed(error, path, 0, two[0][0]) from error
        return names, two[0][1] if names is not None else b"", chain(two, rows)

    def _found(self, two: list[Row]) -> Names:
        try:
            first, *second = (_fields(text_of(row), self.separator) for _, row in two)
        except SampleError:
            if self.header:
                raise
            return None
        if self.header:
            if len(set(first)) != len(first):
                raise SampleError(f"is a header in which names occur twice: {', '.join(first)}")
            return tuple(first)
        told = bool(second) and len(second[0]) == len(first) and _has_number(second[0])
        alone = len(set(first)) == len(first) and not any(not field.strip() or _is_number(field) for field in first)
        return tuple(first) if told and alone else None

    def _header(self, path: str) -> tuple[Names, bytes]:
        with opened(path) as stream:
            return self._headed(super().split(stream, path), path)[:2]

    def _cut(self, data: bytes, within: bool) -> tuple[int, bool]:
        """`within`: whether the piece begins in quotes."""
        import numpy as np

        if not within and _QUOTE not in data:
            return data.rfind(b"\n") + 1, False
        quotes = np.count_nonzero(np.frombuffer(data, np.uint8) == _QUOTE[0])  # faster than bytes.count
        odd = within ^ bool(quotes & 1)
        end, open_ = len(data), odd
        while (cut := data.rfind(b"\n", 0, end)) >= 0:
            open_ ^= bool(data.count(_QUOTE, cut, end) & 1)
            if not open_:
                break
            end = cut
        return cut + 1, odd

    def _ends(self, block: bytes) -> Any:
        import numpy as np

        if _QUOTE not in block:
            return super()._ends(block)
        raw = np.frombuffer(block, np.uint8)
        within = np.bitwise_xor.accumulate((raw == _QUOTE[0]).view(np.uint8))
        return np.flatnonzero((raw == _LINE_END).view(np.uint8) > within)

    def _pieces(self, block: bytes) -> list[bytes]:
        if _QUOTE not in block:
            return super()._pieces(block)
        ends = [-1, *self._ends(block).tolist(), len(block)]
        pieces = [block[before + 1 : end] for before, end in pairwise(ends)]
        return pieces if pieces[-1] else pieces[:-1]

    def _is_blank(self, line: bytes) -> bool:
        return not line.strip(b" ")


class Tsv(Csv):
    """Rows whose fields are separated by tabs."""

    name = "tsv"
    content_types: tuple[str, ...] = ("text/tab-separated-values",)
    endings: tuple[str, ...] = (".tsv",)

    def __init__(self, *, header: bool | None = None, head: bytes = b"") -> None:
        super().__init__(header=header, separator="\t", head=head)


def _fields(text: str, separator: str) -> list[str]:
    if '"' not in text:
        return text.split(separator)
    fields, at = [], 0
    while True:
        if text.startswith('"', at):
            close = text.find('"', at + 1)
            while close >= 0 and text.startswith('"', close + 1):
                close = text.find('"', close + 2)
            if close < 0:
                raise SampleError("has a quoted field without an end")
            fields.append(text[at + 1 : close].replace('""', '"'))
            at = close + 1
            if at < len(text) and text[at] != separator:
                raise SampleError(f"has something behind its quoted field {len(fields)}")
        else:
            end = text.find(separator, at)
            end = len(text) if end < 0 else end
            if "\n" in text[at:end]:
                raise SampleError("has a quotation mark in a field that does not begin with one")
            fields.append(text[at:end])
            at = end
        if at >= len(text):
            return fields
        at += 1


def _values(fields: list[str]) -> Any:
    import numpy as np

    try:
        if any("_" in field for field in fields):  # of which float() allows one between digits
            raise ValueError
        return np.array([float(field) for field in fields])
    except ValueError:
        numbers = [_is_number(field) or not field.strip() for field in fields]
    if all(numbers):
        return np.array([float(field) if field.strip() else np.nan for field in fields])
    return tuple(float(field) if _is_number(field) else field for field in fields)


def _has_number(fields: list[str]) -> bool:
    return any(map(_is_number, fields))


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field
