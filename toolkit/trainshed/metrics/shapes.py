"""Lines that differ in their digits alone: how one of them was read is how the others are.

The expressions of the formats ask of a run of digits only that it is one, never how long it is or what it says. So all
lines with the same text around runs of digits have their metrics at the same places. A shape is one expression for all of
them, and their lines in a file of metrics with gaps for the numbers: reading a line again costs a tenth of reading it the
first time. What could not be held to that has no shape, and is read as any line is.
"""

from __future__ import annotations

import re

from . import formats
from .points import PLACES, STEPS, head_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .formats import Signed

LONGEST = 1000  # characters of a line that may have a shape
MOST = 500  # shapes, and likewise lines that might have one; a log that has more has none in truth
_TWICE = 2  # times that such a line is read before its shape is made, which takes as long as reading ten
_DIGITS = re.compile(r"[0-9]+")
# Numbers that stand in JSON as they stand in a line, so short that none is infinite; else a line is read as any is.
_VALUE = re.compile(r"(?!-0+\Z)-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,2})?")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,14}")
_POSITIVE = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?")
_PRINTED = re.compile(r"[\t -~]*")
# How the formats know their lines: where one has none of this, whatever its digits, it finds nothing there.
_KNOWN_BY: dict[str, Callable[[str], object]] = {
    "metric_line": lambda text: text.startswith(formats.PREFIX),
    "hf": formats._DICTIONARY.search,
    "Keras": lambda text: formats._KERAS.match(text) or formats._KERAS_EPOCH.match(text),
    "lightning": lambda text: formats._CELLS.match(text) or formats._BAR.search(text),
    "tqdm": formats._BAR.search,
    "json_line": lambda text: text.startswith("{") and text.endswith("}"),
}
_Span = tuple[str, int, int, int]  # a name, where it begins, and where its number begins and ends


def _spans(kind: str, text: str) -> list[_Span]:
    """The numbers that a format has found in a text."""
    start, matches = 0, formats.loose(text)
    if kind == "metric_line":
        matches = list(formats._PAIR.finditer(text))
    elif kind == "hf":
        whole = formats._DICTIONARY.search(text)
        assert whole is not None
        start, matches = whole.start(), list(formats._ITEMS.finditer(whole[0]))
    return [(one[1], start + one.start(1), start + one.start(2), start + one.end(2)) for one in matches]


class LineShape:
    """One expression for all lines of a shape, and what they say as lines of a file."""

    def __init__(self, pattern: str, gaps: list[int], template: str) -> None:
        """
        Args:
            gaps: groups of the expression, in the order of the gaps in `template`.
            template: for `%`, with `\\0` and `\\1` where time and rank stand.
        """
        self.match = re.compile(pattern).fullmatch
        self._gaps = gaps
        self._template = template
        self._filled = ("", "", "")

    def lines(self, match: re.Match[str], time: str, rank: str) -> str:
        """What a line that matched says. time, rank: as they stand in a line of the file."""
        if self._filled[:2] != (time, rank):
            self._filled = (time, rank, self._template.replace("\0", time).replace("\1", rank))
        found = match.group(*self._gaps)
        return self._filled[2] % found


class Shapes:
    """The shapes of a log, learned as its lines are read. chosen: the formats that are searched for, in their order."""

    def __init__(self, chosen: tuple[Signed, ...]) -> None:
        self._chosen = chosen
        self._shapes: dict[str, LineShape | None] = {}
        self._seen: dict[str, int] = {}
        self._last: LineShape | None = None

    def again(self, line: str, time: str, rank: str) -> str | None:
        """What a line of the shape of the last one says, None for another."""
        if self._last is None or (match := self._last.match(line)) is None:
            return None
        return self._last.lines(match, time, rank)

    def read(self, line: str, time: str, rank: str) -> str | None:
        """What a line of a known shape says, None for one without."""
        if not self._shapes or len(line) > LONGEST:
            return None
        shape = self._shapes.get(_DIGITS.sub("0", line))
        if shape is None or not (match := shape.match(line)):
            return None
        self._last = shape
        return shape.lines(match, time, rank)

    def learn(self, line: str) -> None:
        """Notes a line that holds metrics; its shape is made when there are more of it."""
        if len(line) > LONGEST or len(self._shapes) >= MOST:
            return
        key = _DIGITS.sub("0", line)
        if key in self._shapes:
            return
        if len(self._seen) >= MOST:
            self._seen.clear()
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] >= _TWICE:
            self._shapes[key] = shape_of(line, self._chosen)


def shape_of(line: str, chosen: tuple[Signed, ...]) -> LineShape | None:
    """The shape of a line that one of these formats reads; None where it has none."""
    text = formats.plain(line)
    if not text or not _PRINTED.fullmatch(line) or not (kind := _reader(text, line, chosen)):
        return None
    spans = _spans(kind, text)
    if kind == "kv" and (len({name for name, *_ in spans}) < len(spans) or formats.has_counts(text)):
        return None  # their names or values are not as they stand there
    places = {name.lower(): at for at, (name, *_) in enumerate(spans) if name.lower() in PLACES}
    step, epoch = next((places[name] for name in STEPS if name in places), None), places.get("epoch")
    values = [at for at, (name, *_) in enumerate(spans) if name.lower() not in PLACES | formats._NOT_MEASURED]
    wanted: dict[int | None, re.Pattern[str]] = {**dict.fromkeys(values, _VALUE), step: _WHOLE, epoch: _POSITIVE}
    fits = all(wanted[at].fullmatch(text[begin:end]) for at, (*_, begin, end) in enumerate(spans) if at in wanted)
    if not values or not fits or "rank" in places:
        return None
    start = line.rfind(text)  # what `plain` leaves out
    gaps = {at: number for number, at in enumerate((at for at in range(len(spans)) if at in wanted), 1)}
    told = "".join(f', "{name}": %s' for name, at in (("Step", step), ("Epoch", epoch)) if at is not None)
    template = "".join(f"{head_of(spans[at][0]).replace('%', '%%')}%s\0{told}\1}}\n" for at in values)
    order = [gaps[one] for at in values for one in (at, step, epoch) if one is not None]
    return LineShape(_expression(line, start, spans, gaps), order, template)


def _reader(text: str, line: str, chosen: tuple[Signed, ...]) -> str:
    """The name of the format that reads this line and all others of its shape; "" where digits could decide."""
    for signs, format in chosen:
        if not any(sign in line for sign in signs):
            continue
        kind = getattr(format, "__name__", type(format).__name__)
        if kind in ("metric_line", "hf", "kv") and format(text) is not None:
            return kind
        if kind != "kv" and _KNOWN_BY[kind](text):
            return ""
    return ""


def _expression(line: str, start: int, spans: list[_Span], gaps: Mapping[int, int]) -> str:
    """start: where the text that the spans are of begins."""
    parts: list[str] = []
    done = 0
    for at, (name, named, begin, end) in enumerate(spans):
        after = start + named + len(name)  # the digits of a name are part of it
        parts += [_any_digits(line[done : start + named]), re.escape(name), _any_digits(line[after : start + begin])]
        done = start + end
        number = line[start + begin : done]
        parts.append(f"({_any_number(number)})" if at in gaps else _any_digits(number))
    return "".join([*parts, _any_digits(line[done:])])


def _any_digits(text: str) -> str:
    return "[0-9]+".join(map(re.escape, _DIGITS.split(text)))


def _any_number(text: str) -> str:
    """Numbers with digits, point and exponent where this one has them, without leading zeros, which JSON refuses."""
    mantissa, e, exponent = text.lower().partition("e")
    sign = "(?!-0(?![.eE]))-" if text.startswith("-") else ""  # -0 would be a whole number, which has no sign
    made = sign + "(?:0|[1-9][0-9]{0,14})" + (r"\.[0-9]{1,20}" if "." in mantissa else "")
    return made + (f"[eE]{re.escape(exponent.rstrip('0123456789'))}[0-9]{{1,2}}" if e else "")
