"""How a log names its metrics: what the setting `metrics` may ask for, and the words without which nothing is searched.

Also what `train` writes to the process that searches (`metrics/searching.py`): it must not load those expressions.
"""

from __future__ import annotations

from trainshed.base import quick_json

PREFIX = "metric "  # of a line that any program may print: `metric loss=0.125 step=10`
# `auto` looks for all formats, `off` for `metric ...` lines alone.
FORMATS = ("auto", "off", "hf", "lightning", "keras", "json", "kv", "tqdm")
LOGGERS = "loggers"  # the trainers of transformers and Lightning hand on their values; searched is what `off` leaves
SOURCES = (*FORMATS, LOGGERS)  # what the setting may be
# A block of lines with metrics of one of these formats has one of these texts.
SIGNS = (PREFIX.encode(), b"loss", b"Loss", b"acc", b"Acc", b"eval_", b"poch", b"reward")


def signs_of(setting: str) -> tuple[bytes, ...]:
    """Texts of which one is in every block with metrics that the setting `metrics` has searched for."""
    return SIGNS[:1] if setting in ("off", LOGGERS) else SIGNS


def head(definitions: list[tuple[str, str]], format: str) -> bytes:
    """The first line that the process reads.

    Args:
        definitions: (name, regular expression).
        format: one of `FORMATS`.
    """
    return quick_json.dumps({"definitions": definitions, "format": format}).encode() + b"\n"


def frame(rank: int | None, block: bytes) -> bytes:
    """A block of whole lines, after a line `RANK BYTES`; RANK is `-` for None."""
    return b"%s %d\n%s" % (b"-" if rank is None else b"%d" % rank, len(block), block)
