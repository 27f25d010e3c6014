"""Picks metrics out of a log as it goes by: the job's own regular expressions, and what common programs print.

What a definition's regular expression captures is not taken on trust (`capture.py`): a number that it cuts off is completed,
and said. A definition that never matches is told at the end, with the line that it was probably meant for.
"""

from __future__ import annotations

import re
import signal
import threading

from trainshed.base.errors import shorten
from trainshed.base.patterns import compiled, needed_by
from trainshed.contract.wire.metric_lines import SIGNS

from . import formats
from .formats import NUMBER, may_tell, plain
from .points import Point, at, finite, line_of, time_of
from .shapes import Shapes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONGEST_SEARCH = 0.5  # seconds of CPU time for the definitions on one block of lines: a thousand times what they need
LONGEST_LINE = 16_384  # characters that are searched; what is longer holds no metrics
TAB_THERE = "#011"  # a tab in the platform's logs, in octal as rsyslog writes it
PATIENCE = 200  # lines after which a definition that has matched none is said to


class _TooSlow(Exception):
    """A regular expression takes too long."""


def _too_slow(_signal: int, _frame: object) -> None:
    raise _TooSlow


def _as_the_platform_shows(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Searches a line as CloudWatch has it, with `#011` for a tab, where the expression was written for that."""
    return pattern.search(line.replace("\t", TAB_THERE)) if "\t" in line and TAB_THERE in pattern.pattern else None


class Scraper:
    """Searches the lines of all ranks of a log.

    Args:
        definitions: (name, regular expression); the first group is the number.
        format: which formats are searched for besides, one of `metric_lines.FORMATS`.

    places: where the last metric was measured, by names of `points.PLACES`.
    """

    def __init__(self, definitions: Iterable[tuple[str, str]] = (), format: str = "auto") -> None:
        self.places: dict[str, str | float] = {}
        self._remarks: list[str] = []
        self._remarked: set[str] = set()
        self._format = format
        self._formats: dict[int | None, tuple[formats.Signed, ...]] = {}
        self._shapes: dict[int | None, Shapes] = {}
        self._definitions: dict[str, re.Pattern[str]] = {}
        self._needed: dict[str, str] = {}  # a text without which a definition is not searched for
        self._words: dict[str, tuple[str, ...]] = {}  # what lines have that a definition is meant for
        self._unmatched: dict[str, str] = {}  # name -> the nearest line so far
        self._searching = ""
        self._lines = 0
        self._told_unmatched = False
        for name, regex in definitions:
            self._define(name, regex)

    def scan(self, block: bytes, time: float, rank: int | None = None) -> list[Point]:
        """Finds the points that whole lines hold.

        Args:
            block: lines as they were printed, each with its newline.
            time: seconds since 1970, for the points.
            rank: who printed them, None where the lines may say it themselves.
        """
        points: list[Point] = []
        if not self._definitions and not any(sign in block for sign in SIGNS):
            return points
        lines = block.decode("utf-8", "replace").splitlines()
        self._lines += len(lines)
        if not self._definitions:
            for line in lines:
                self._formatted(line, time, rank, points, frozenset())
            return points
        self._defined(lines, time, rank, points)
        if self._lines >= PATIENCE and not self._told_unmatched:
            self._tell_unmatched()
        return points

    def text(self, block: bytes, time: float, rank: int | None = None) -> str:
        """What whole lines hold, as lines of a file of points; faster than `scan`, and without `places`."""
        if self._definitions:
            return "".join(map(line_of, self.scan(block, time, rank)))
        told: list[str] = []
        if not any(sign in block for sign in SIGNS):
            return ""
        if rank not in self._shapes:
            self._shapes[rank] = Shapes(self._chosen(rank))
        shapes = self._shapes[rank]
        at, by = time_of(time), "" if rank is None else f', "Rank": {rank}'
        for line in block.decode("utf-8", "replace").splitlines():
            said = shapes.again(line, at, by)
            if said is None:
                if not may_tell(line):
                    continue
                said = shapes.read(line, at, by)
            if said is not None:
                told.append(said)
            else:
                points: list[Point] = []
                self._formatted(line, time, rank, points, frozenset())
                if points:
                    told += map(line_of, points)
                    shapes.learn(line)
        return "".join(told)

    def remarks(self) -> list[str]:
        """Collects remarks for a person, each once: lines that begin with the metric's name."""
        taken, self._remarks = self._remarks, []
        return taken

    def finish(self) -> list[str]:
        """The remarks at the end of the log: also about definitions that no line matched."""
        self._tell_unmatched()
        return self.remarks()

    # --- the job's definitions ---

    def _define(self, name: str, regex: str) -> None:
        try:
            pattern = compiled(regex)
        except (re.error, RecursionError, OverflowError) as error:
            self._remark(name, f"Python cannot compile its regular expression: {error}")
            return
        if not pattern.groups:
            self._remark(name, "its regular expression has no group; put the number into (...)")
            return
        self._definitions[name] = pattern
        self._words[name] = words_of(name, pattern)
        self._unmatched[name] = ""
        self._needed[name] = "" if TAB_THERE in regex else needed_by(pattern)

    def _defined(self, lines: list[str], time: float, rank: int | None, points: list[Point]) -> None:
        """Searches lines for everything; a definition that takes too long is dropped, and its line given up."""
        rest = iter(lines)
        while True:
            try:
                with _Alarm():
                    for line in rest:
                        self._line(line[:LONGEST_LINE], time, rank, points)
                return
            except _TooSlow:
                name = self._searching
                if not name:  # the alarm rang among the common formats, which are quick on every line
                    continue
                self._definitions.pop(name, None)
                self._unmatched.pop(name, None)
                self._remark(name, "its regular expression took seconds on one line and was dropped")

    def _line(self, line: str, time: float, rank: int | None, points: list[Point]) -> None:
        values: list[tuple[str, float]] = []
        for name, pattern in self._definitions.items():
            needed = self._needed[name]
            if needed not in line:
                if self._unmatched.get(name) == "" and nearest(self._words[name], line):
                    self._unmatched[name] = line
                continue
            self._searching = name
            match = pattern.search(line) or _as_the_platform_shows(pattern, line)
            if match is None:
                if self._unmatched.get(name) == "" and nearest(self._words[name], line):
                    self._unmatched[name] = line
                continue
            self._unmatched.pop(name, None)
            value, why = number_in(match)
            if why:
                self._remark(name, why, line)
            if value is not None:
                values.append((name, value))
        self._searching = ""
        own = len(points)
        places = self._formatted(line, time, rank, points, frozenset(name for name, _ in values))
        if values:
            points[own:own] = at(values, _places(line) if places is None else places, time, rank)

    def _tell_unmatched(self) -> None:
        self._told_unmatched = True
        for name, line in self._unmatched.items():
            if not line:
                self._remark(name, "its regular expression has matched no line")
            else:
                said = f"its regular expression has not matched this line: {shorten(formats.plain(line), 120)}"
                self._remark(name, said, line)
        self._unmatched = {}

    def _remark(self, name: str, what: str, line: str = "") -> None:
        """Notes what is wrong with a definition, once for each.

        Args:
            line: the one that it should have matched, "" where there is none.
        """
        if name in self._remarked:
            return
        self._remarked.add(name)
        advice = suggestion(self._words[name], line) if line else ""
        self._remarks.append(f"metric {name!r}: {what}" + (f"; this one would match: {advice}" if advice else ""))

    # --- common formats ---

    def _chosen(self, rank: int | None) -> tuple[formats.Signed, ...]:
        if rank not in self._formats:
            self._formats[rank] = formats.chosen(self._format)
        return self._formats[rank]

    def _formatted(
        self, line: str, time: float, rank: int | None, points: list[Point], but: frozenset[str]
    ) -> dict[str, str | float] | None:
        """Adds what the first format that fits finds, without metrics that a definition has found in this line.

        Returns:
            Where it was measured; None where no format fits.
        """
        text = ""
        if not may_tell(line):
            return None
        for signs, format in self._chosen(rank):
            if not any(sign in line for sign in signs):
                continue
            text = text or formats.plain(line[:LONGEST_LINE])
            found = format(text)
            if found is None:
                continue
            values, places = found
            if places:
                self.places = places
            points += at([item for item in values if item[0] not in but], places, time, rank)
            return places
        return None


def _places(line: str) -> dict[str, str | float]:
    """Step and epoch in a line of no known format."""
    found = formats.kv(line) if "poch" in line or "step" in line.lower() else None
    return {name: value for name, value in found[1].items() if finite(value) is not None} if found else {}


class _Alarm:
    """In the block, CPU time is limited: there are expressions that take longer than the universe. Main thread only."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGVTALRM, _too_slow)
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SEARCH)

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, self._before if self._before is not None else signal.SIG_DFL)


def scan_file(scraper: Scraper, blocks: Iterable[bytes], time: float) -> Iterator[Point]:
    """All points of a log that is read in blocks of any size."""
    pending = b""
    for block in blocks:
        data = pending + block
        cut = data.rfind(b"\n") + 1
        pending = data[cut:]
        yield from scraper.scan(data[:cut], time)
    if pending:
        yield from scraper.scan(pending + b"\n", time)


LONGEST_REGEX = 500  # characters, by the platform's API
_NUMBER = re.compile(NUMBER)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{2,}")
_WIDTH = 40  # characters between a name and its number
_ANY_NUMBER = r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|nan|inf)"


def number_in(match: re.Match[str]) -> tuple[float | None, str]:
    """The number that a match means, and what is wrong with what it captured, "" if nothing is.

    Returns:
        None for the number where there is none.
    """
    line, captured = match.string, match[1]
    if not captured:
        return None, f"its regular expression captures nothing in this line: {_shown(line)}"
    text = captured.strip().strip("'\"")
    start = match.start(1) + captured.index(text) if text else match.start(1)
    if _THOUSANDS.match(text):
        return float(text.replace(",", "")), f"{text!r} has commas, which are left out: {_shown(line)}"
    whole = _NUMBER.match(line, start)
    if whole is None:
        return None, f"its regular expression captures {shorten(text, 40)!r}, which is not a number: {_shown(line)}"
    value = float(whole[0])
    captures = f"its regular expression captures {shorten(captured, 40)!r}"
    try:
        if repr(float(captured)) == repr(value):  # NaN included
            return value, ""
    except ValueError:
        if whole.end() < start + len(text) or text != captured.strip():
            return value, f"{captures}, which is more than a number: {_shown(line)}"
    return value, f"{captures} of {whole[0]!r}: {_shown(line)}"


def words_of(name: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Names that a line has which a definition is meant for: the words in its expression, and its own name."""
    literal = re.sub(r"\\.|\[[^\]]*\]|\(\?[^)]*\)", " ", pattern.pattern)
    words = _WORD.findall(literal) or _WORD.findall(name)
    return tuple(sorted(dict.fromkeys(words), key=len, reverse=True))


def nearest(words: tuple[str, ...], line: str) -> bool:
    """Returns whether a definition with these words was probably meant for a line: it has them and a number after one."""
    return bool(words) and all(word in line for word in words) and _after(words, plain(line)) is not None


def suggestion(words: tuple[str, ...], line: str) -> str:
    """A regular expression that captures the number after these words in a line, "" where there is none."""
    line = plain(line)
    found = _after(words, line)
    if found is None:
        return ""
    word, start, number = found
    between = line[start + len(word) : number.start()]
    before = line[start - 1] if start and line[start - 1] in "'\"" else ""
    regex = re.escape(before + word + between).replace("\\ ", " ") + _ANY_NUMBER  # a space needs no backslash here
    match = re.search(regex, line)
    return regex if match and len(regex) <= LONGEST_REGEX and number_in(match)[1] == "" else ""


def _after(words: tuple[str, ...], line: str) -> tuple[str, int, re.Match[str]] | None:
    """The first of the words that a number follows, where it is, and the number."""
    for word in words:
        for place in re.finditer(rf"(?<![\w-]){re.escape(word)}(?![\w-])", line):
            number = _NUMBER.search(line, place.end(), place.end() + _WIDTH)
            if number is not None and not re.search(r"[A-Za-z,;]", line[place.end() : number.start()]):
                return word, place.start(), number
    return None


def _shown(line: str) -> str:
    return shorten(plain(line), 120)
