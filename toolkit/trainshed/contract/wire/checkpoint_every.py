"""How the interval between checkpoints is found, for a job that asks for it: `auto,least=30s,most=20m,between=8h`."""

from __future__ import annotations

import re

from trainshed.base.record import Record
from trainshed.base.units import seconds_of

FORM = r"auto(,(least|most|between)=[0-9]{1,7}(\.[0-9]{1,3})?[smhd]?)*"
SHORTEST = 5.0  # seconds; a shorter interval gains nothing noticeable
LONGEST = 3600.0  # seconds


class Every(Record):
    """
    asked: whether the job asks for it; then it wins over what the script says.
    least, most: bounds of the interval, seconds.
    between: mean seconds between two interruptions; 0 for as many as there were.
    """

    asked: bool = False
    least: float = SHORTEST
    most: float = LONGEST
    between: float = 0.0


def read_every(text: str) -> Every:
    """What a text asks for; "" asks for nothing. Raises ValueError: it has another form."""
    if not text:
        return Every()
    if not re.fullmatch(FORM, text):
        raise ValueError("must be auto, or like auto,least=30s,most=20m,between=8h")
    given = dict(word.split("=") for word in text.split(",")[1:])
    every = Every(True, **{name: seconds_of(value) or 0.0 for name, value in given.items()})
    if not 0 < every.least <= every.most or ("between" in given and not every.between):
        raise ValueError("must have 0 < least <= most, and a time between interruptions")
    return every
