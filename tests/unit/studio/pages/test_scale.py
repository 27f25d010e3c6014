"""Numbers and times are read as a person would write them."""

from __future__ import annotations

import math

from trainshed.studio.pages.scale import clock, short


def test_numbers_have_four_digits_that_count() -> None:
    assert [short(value) for value in (0.078831, 1234567, math.inf, math.nan)] == ["0.07883", "1.23e+6", "inf", "NaN"]


def test_times_are_read_as_times() -> None:
    assert [clock(s) for s in (0, 59, 61, 3661)] == ["0", "59 s", "1:01", "1:01:01"]
    assert [clock(s, 3600) for s in (3600, 90000)] == ["1 h", "1 d 1 h"]
