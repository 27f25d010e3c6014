"""Text by lines: as it is, and with JSON on each line. `delimited` has tables.

A line ends with \\n or \\r\\n; the last one may end with the file. So a last line that was cut
cannot be told from a whole one in plain text: JSON lines are told by their missing bracket.
"""

from __future__ import annotations

import codecs
import json

from trainshed.base.errors import shorten

from .errors import DataError, SampleError
from .format import BLOCK, Counted, Marks, StreamFormat, enterable, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_BLANK = frozenset({b"", b" ", b"\t", b"\r", b"\x0b", b"\x0c"})  # how a line begins that bytes.strip() may take away
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
LONGEST = 1 << 28  # bytes of a line; what is longer is hardly text
MARK = b"\xef\xbb\xbf"  # with which some editors begin UTF-8


class Lines(StreamFormat):
    """Lines as text, without their ends; an empty line is an empty text."""

    name = "lines"
    content_types: tuple[str, ...] = ("text/plain",)
    endings: tuple[str, ...] = (".txt", ".text")
    needs: tuple[str, ...] = ("numpy",)

    def split(self, stream: IO[bytes], path: str, record: int = 0, offset: int = 0) -> Iterator[tuple[int, Any]]:
        """Records are bytes, without line ends."""
        for block, place in self._blocks(stream, path, offset):
            pieces = self._pieces(block)
            if place and self._is_plain(block, pieces):
                for line in pieces:
                    yield place, line
                    place += len(line) + 1
                continue
            for line in pieces:
                bare = _bare(line, place)
                if not self._is_blank(bare):
                    yield place, bare
                place += len(line) + 1

    def count(self, path: str) -> Counted:
        """Looks for the lines' ends, a block at a time."""
        marks = Marks()
        with opened(path) as stream:
            for begins in self._begins(stream, path):
                marks.extend(begins)
        return enterable(path, marks.counted())

    def sample(self, record: Any) -> Any:
        """The line as text."""
        return text_of(record)

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """Text without control characters."""
        return is_text(beginning)

    def _begins(self, stream: IO[bytes], path: str, head: bytes = b"") -> Iterator[Any]:
        """Where records begin that are not like `head`: an array for each block."""
        import numpy as np

        for block, offset in self._blocks(stream, path, 0):
            begins = np.concatenate(([0], self._ends(block) + 1))
            if begins[-1] == len(block):
                begins = begins[:-1]
            yield self._filled(block, begins, offset, head) + offset

    def _blocks(self, stream: IO[bytes], path: str, offset: int) -> Iterator[tuple[bytes, int]]:
        """(whole records, where they begin), a few at a time; never none at all. The end of the last may be missing."""
        rest: list[bytes] = []
        size, within = 0, False
        while data := stream.read(BLOCK):
            cut, within = self._cut(data, within)
            if not cut:
                rest.append(data)
                size += len(data)
                if size > LONGEST:
                    what = f"{path}: the record at byte {offset} has no end in {LONGEST} bytes"
                    raise DataError(what, hint="this is hardly text: name the format of the channel")
                continue
            block = b"".join([*rest, data[:cut]])
            yield block, offset
            offset += len(block)
            rest, size = [data[cut:]], len(data) - cut
        if within:
            raise DataError(f"{path}: the record at byte {offset} has a quoted field without an end")
        if block := b"".join(rest):
            yield block, offset

    def _cut(self, data: bytes, within: bool) -> tuple[int, bool]:
        """Where the last record in a piece of the stream ends, 0 for nowhere; and what it says of the next piece."""
        return data.rfind(b"\n") + 1, False

    def _pieces(self, block: bytes) -> list[bytes]:
        """The records of a block, with their \\r."""
        pieces = block.split(b"\n")
        if not pieces[-1]:
            pieces.pop()
        return pieces

    def _ends(self, block: bytes) -> Any:
        """Places of the \\n that end records."""
        import numpy as np

        return np.flatnonzero(np.frombuffer(block, np.uint8) == 10)

    def _filled(self, block: bytes, begins: Any, offset: int, head: bytes) -> Any:
        """The beginnings of those records that are not blank, and not like `head`."""
        return begins

    def _is_plain(self, block: bytes, pieces: list[bytes]) -> bool:
        """Whether its lines are records as they are: none is blank, or ends with \\r."""
        return b"\r" not in block

    def _is_blank(self, line: bytes) -> bool:
        return False


class FilledLines(Lines):
    """Lines, but those that have only white space."""

    name = ""
    content_types: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()

    def _is_plain(self, block: bytes, pieces: list[bytes]) -> bool:
        return _BLANK.isdisjoint({piece[:1] for piece in pieces}) and super()._is_plain(block, pieces)

    def _is_blank(self, line: bytes) -> bool:
        return not line.strip()

    def _filled(self, block: bytes, begins: Any, offset: int, head: bytes) -> Any:
        """Looks closely at those alone whose first byte may be that of a blank one or a header."""
        import numpy as np

        first = np.frombuffer(block, np.uint8)[begins]
        doubtful = np.flatnonzero((first <= 32) | (first == MARK[0]) | (first == (head or MARK)[0]))
        if not len(doubtful):
            return begins
        filled = np.ones(len(begins), bool)
        bounds = np.append(begins, len(block))
        for number in doubtful.tolist():
            begin, end = int(bounds[number]), int(bounds[number + 1])
            bare = _bare(block[begin:end].removesuffix(b"\n"), offset + begin)
            filled[number] = not (self._is_blank(bare) or (head and is_head(bare, head)))
        return begins[filled]


class JsonLines(FilledLines):
    """A JSON object (a dictionary) or array (a list) on each line; blank lines are left out.

    Numbers and text alone are refused: a cut one could not be told from a whole one.
    """

    name = "jsonlines"
    content_types: tuple[str, ...] = (
        "application/jsonlines",
        "application/x-jsonlines",
        "application/jsonl",
        "application/x-ndjson",
    )
    endings: tuple[str, ...] = (".jsonl", ".ndjson", ".jsonlines")

    def sample(self, record: Any) -> Any:
        """Decodes the line."""
        text = text_of(record)
        if text[:1] in ("{", "["):
            try:
                value, end = _scan(text, 0)
                if end == len(text):
                    return value
            except (StopIteration, ValueError, RecursionError):
                pass
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SampleError(f"is not JSON: {error}") from error
        if not isinstance(value, (dict, list)):
            raise SampleError(f"is neither a JSON object nor an array: {shorten(text)}")
        return value

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By its first filled line, which is an object."""
        line = beginning.removeprefix(MARK).lstrip().partition(b"\n")[0]
        if not line.startswith(b"{") or not is_text(beginning):
            return False
        try:
            return isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            return line == beginning.removeprefix(MARK).lstrip() and line.lstrip(b"{ \t")[:1] == b'"'  # cut by who looks


def text_of(line: bytes) -> str:
    """A line's text. Raises SampleError with the first byte that is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise SampleError(f"is not UTF-8: its byte {error.start} is 0x{line[error.start]:02x}") from error


def is_head(line: bytes, head: bytes) -> bool:
    """Returns whether a line is a header again: files were joined, each with its own, and maybe its byte order mark."""
    return line.endswith(head) and line.removeprefix(MARK) == head


def is_text(beginning: bytes) -> bool:
    """Returns whether these bytes are text in UTF-8, which may be cut in a character."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return bool(text) and not any(letter < " " and letter not in "\t\n\r\f" for letter in text)


def _bare(line: bytes, place: int) -> bytes:
    line = line.removesuffix(b"\r")
    return line if place else line.removeprefix(MARK)
