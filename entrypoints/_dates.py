"""Columns of dates: found by all their values, and taken apart into numbers that a model can learn from.

A guess is held against every value: a column in which some are no dates, or day and month may be either, is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from _cells import shown
from _common import LEAVE_OUT, Problem, note

ISO = "iso"
DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d/%m/%y", "%m/%d/%y", "%d %b %Y",
    "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
FORMATS = (ISO, *(day + time for day in DAYS for time in TIMES))
FEWEST = 3  # different numbers that may all be days
MOST = 0.5  # a column of text with more dates than this part of it is one of dates with a mistake
CURE = f"write dates as in 2024-12-31, or name the column in categorical_columns ({LEAVE_OUT})"
PARTS: dict[str, Callable[[datetime.datetime], float]] = {
    "year": lambda when: when.year,
    "month": lambda when: when.month,
    "day": lambda when: when.day,
    "weekday": lambda when: when.isoweekday(),
    "hour": lambda when: when.hour + when.minute / 60,
}


@dataclass(frozen=True)
class Dates:
    """How a column's dates are written, of `FORMATS`, and the `PARTS` that a model takes of them."""

    format: str
    parts: tuple[str, ...]

    def read(self, text: str) -> datetime.datetime | None:
        """The moment that a text is, in UTC where it has a zone; None for none."""
        return _read(text, self.format)

    def numbers(self, values: Iterable[str | None], place: Callable[[int], str], name: str) -> Any:
        """float64 [rows, parts], nan for what is missing. Raises Problem for what is not such a date."""
        known: dict[str | None, list[float]] = {None: [numpy.nan] * len(self.parts)}
        made = []
        for row, value in enumerate(values):
            if value not in known:
                moment = self.read(str(value))
                if moment is None:
                    raise Problem(
                        f"{place(row)}: {name} is {shown(value)}, not a date as in the training data ({self.said})"
                    )
                known[value] = [PARTS[part](moment) for part in self.parts]
            made.append(known[value])
        return numpy.array(made, numpy.float64).reshape(-1, len(self.parts))

    @property
    def said(self) -> str:
        """The format, as an example."""
        example = datetime.datetime(2024, 12, 31, 23, 59)
        return "2024-12-31" if self.format == ISO else example.strftime(self.format)


def begins(values: Iterable[str | None]) -> bool:
    """Whether the first text of a column is a date."""
    first = next((value for value in values if value is not None), "")
    return any(_read(first, one) for one in FORMATS)


def note_numbers(name: str, values: Any) -> None:
    """Says that numbers such as 20241231 are all days of a calendar, if that is so."""
    there = numpy.unique(values[~numpy.isnan(values)])
    if len(there) < FEWEST or there[0] < 19000101 or there[-1] > 21001231 or (there != there.round()).any():
        return
    if all(_read(f"{int(day)}", "%Y%m%d") for day in there):
        note(f"{name} has numbers such as {there[0]:.0f}, which are learnt as numbers: write dates as in 2024-12-31")


def found(name: str, values: Sequence[str | None], place: Callable[[int], str]) -> Dates | None:
    """How a column of texts writes dates, if it does. Raises Problem where it does in most rows, or in two ways."""
    texts = list(dict.fromkeys(value for value in values if value is not None))
    fitting = {one for text in texts[:3] for one in FORMATS if _read(text, one)} if texts else set()
    moments = {one: [_read(text, one) for text in texts] for one in sorted(fitting, key=FORMATS.index)}
    whole = {one: read for one, read in moments.items() if None not in read}
    if not whole:
        _refuse_mistakes(name, values, texts, moments, place)
        return None
    first, read = next(iter(whole.items()))
    other = next((one for one in whole if whole[one] != read), None)
    if other is not None:
        at = next(at for at, moment in enumerate(read) if moment != whole[other][at])
        raise Problem(
            f"{place(values.index(texts[at]))}: {name} is {shown(texts[at])}, which is {_day(read[at])} or "
            f"{_day(whole[other][at])}, and no other row tells: {CURE}"
        )
    timed = any(moment.time() != datetime.time() for moment in read if moment is not None)
    return Dates(first, tuple(PARTS) if timed else tuple(PARTS)[:-1])


def _refuse_mistakes(
    name: str, values: Sequence[str | None], texts: list[str], moments: dict[str, list[Any]], place: Callable[[int], str]
) -> None:
    best = max(moments, key=lambda one: len(texts) - moments[one].count(None), default="")
    if not best or len(texts) - moments[best].count(None) <= MOST * len(texts):
        return
    odd = texts[moments[best].index(None)]
    raise Problem(
        f"{place(values.index(odd))}: {name} is {shown(odd)}, and a date ({Dates(best, ()).said}) in most rows: {CURE}"
    )


def _read(text: str, form: str) -> datetime.datetime | None:
    if not any(sign.isdigit() for sign in text[:12]) or len(text) < 6:
        return None
    try:
        if form != ISO:
            return datetime.datetime.strptime(text, form)
        return _iso(text)
    except (ValueError, OverflowError):
        return None


def _iso(text: str) -> datetime.datetime | None:
    """As ISO 8601 writes a day, with or without a time; digits alone are a number, and a week is none. Raises ValueError."""
    if len(text) < 10 or text[4] != "-" or text[7] != "-":
        return None
    whole, point, fraction = text.partition(".")
    zone = fraction.lstrip("0123456789")
    digits = fraction[: len(fraction) - len(zone)][:6].ljust(6, "0")
    moment = datetime.datetime.fromisoformat(
        (f"{whole}.{digits}{zone}" if point else text).replace(" UTC", "Z").replace("Z", "+00:00")
    )
    return moment if moment.tzinfo is None else moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)


def _day(moment: Any) -> str:
    return f"{moment:%Y-%m-%d}"
