"""Axes have round marks whose texts tell them apart."""

from __future__ import annotations

import math

import pytest

from trainshed.studio.pages.scale import clock, elapsed, labels, linear, logarithmic, short

SPANS = [(0, 1), (0.0799, 2.31), (1e-9, 5e-5), (-3, 4), (0, 0), (5, 5), (-1e308, 1e308), (1e-320, 2e-320), (99999, 100001),
         (0, 3000), (0, 1.6e6), (123456, 162000), (1e20, 3e20), (0.1234567, 0.1234568)]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_every_span_has_marks_within_it_and_no_text_twice(low: float, high: float) -> None:
    scale = linear(low, high, 0, 100)
    texts = [text for _, text in scale.ticks]

    assert 2 <= len(texts) <= 12 and len(set(texts)) == len(texts), texts
    assert all(-0.01 <= scale.place(mark) <= 100.01 for mark, _ in scale.ticks)
    assert scale.place(low) <= scale.place(high) + 1e-9 and math.isfinite(scale.place(low))


@pytest.mark.parametrize(("low", "high"), [(1e-9, 10), (0.05, 2.5), (0.9, 1.1), (1e-300, 1e300), (3, 3.5), (1, 1000)])
def test_logarithmic_marks_are_round_and_few(low: float, high: float) -> None:
    scale = logarithmic(low, high, 0, 100)
    texts = [text for _, text in scale.ticks]

    assert 2 <= len(texts) <= 12 and len(set(texts)) == len(texts), texts
    assert all(-0.01 <= scale.place(mark) <= 100.01 for mark, _ in scale.ticks)


def test_marks_are_what_a_person_would_choose() -> None:
    assert [text for _, text in linear(0.0799, 2.31, 0, 100).ticks] == ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]
    assert [text for _, text in linear(0, 52_000, 0, 100).ticks] == ["0", "20k", "40k", "60k"]
    assert [text for _, text in linear(0, 4.2e-5, 0, 100).ticks] == ["0", "1e-5", "2e-5", "3e-5", "4e-5", "5e-5"]
    assert [text for _, text in logarithmic(0.001, 10, 0, 1).ticks] == ["0.001", "0.01", "0.1", "1", "10"]
    assert [text for _, text in elapsed(0, 1600, 0, 1).ticks] == ["0", "5 min", "10 min", "15 min", "20 min", "25 min"]
    assert labels([0, 2.5, 5]) == ["0", "2.5", "5.0"] and short(0.078831) == "0.07883" and short(math.inf) == "inf"


def test_times_are_read_as_times() -> None:
    assert [clock(s) for s in (0, 59, 61, 3661)] == ["0", "59 s", "1:01", "1:01:01"]
    assert [clock(s, 3600) for s in (3600, 90000)] == ["1 h", "1 d 1 h"]
