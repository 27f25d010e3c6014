"""Whole numbers in other people's text."""

from __future__ import annotations

MOST_DIGITS = 18  # what fits into 64 bits; Python itself refuses to convert more than 4,300


def whole(text: str) -> int | None:
    """The number that ASCII digits spell; None for all else: signs, `²`, `1_000`, `0x10`, more than `MOST_DIGITS`."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
