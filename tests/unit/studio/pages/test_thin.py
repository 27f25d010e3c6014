"""What a picture leaves out: never an extreme, never a number that is none."""

from __future__ import annotations

import math
from array import array

from trainshed.studio.pages.thin import thin


def test_a_short_curve_stays_as_it_is() -> None:
    drawn = thin([1, 2, 3], [3.0, 1.0, 2.0], 10)

    assert drawn.points == ((1, 3.0), (2, 1.0), (3, 2.0)) and drawn.whole and not drawn.odd


def test_spikes_of_a_long_curve_stay_whatever_their_place() -> None:
    values = array("d", [1.0] * 100_000)
    for place, value in ((17, 50.0), (41_234, -50.0), (99_999, 7.0)):
        values[place] = value
    drawn = thin(array("d", range(100_000)), values, 50)

    assert {(17, 50.0), (41_234, -50.0), (99_999, 7.0)} <= set(drawn.points)
    assert len(drawn.points) <= 100 and drawn.count == 100_000 and not drawn.whole
    assert [x for x, _ in drawn.points] == sorted(x for x, _ in drawn.points)


def test_what_is_not_finite_breaks_the_line_and_is_counted_by_kind() -> None:
    values = [1.0] * 1000
    values[500:503] = [math.nan, math.inf, -math.inf]
    values[700] = math.nan
    for parts in (10, 2000):
        drawn = thin(list(range(1000)), values, parts)
        counted: dict[str, int] = {}
        for _, kind, count in drawn.odd:
            counted[kind] = counted.get(kind, 0) + count

        assert counted == {"NaN": 2, "inf": 1, "-inf": 1}
        assert min(x for x, _, _ in drawn.odd) == 500
        assert None in {y for _, y in drawn.points}


def test_a_curve_of_nothing_finite_is_all_break() -> None:
    drawn = thin(list(range(1000)), [math.nan] * 1000, 10)

    assert {y for _, y in drawn.points} == {None} and sum(count for _, _, count in drawn.odd) == 1000


def test_huge_numbers_whose_sum_is_infinite_are_numbers() -> None:
    drawn = thin(list(range(1000)), [1e308] * 999 + [-1e308], 10)

    assert not drawn.odd and drawn.points[-1] == (999, -1e308)


def test_a_window_is_looked_at_alone_with_a_neighbour_on_each_side() -> None:
    drawn = thin(list(range(1000)), [float(n) for n in range(1000)], 100, 10, 12)

    assert [x for x, _ in drawn.points] == [9, 10, 11, 12, 13]
    assert thin(list(range(10)), [1.0] * 10, 5, 100, 200).points == ((9, 1.0),)
    assert thin([], [], 5).points == ()


def test_of_a_long_curve_the_mean_of_each_part_is_kept_beside_its_extremes() -> None:
    values = [9.0 if n % 10 == 0 else 1.0 for n in range(1000)]
    values[500] = math.nan
    drawn = thin(list(range(1000)), values, 100)

    assert drawn.points[:2] == ((0, 9.0), (1, 1.0)) and drawn.means[:2] == (1.8, 1.8), "not 5, the middle of both"
    assert len(drawn.means) == len(drawn.points) and thin([1, 2], [3.0, 4.0], 5).means == ()
    assert [mean for (_, y), mean in zip(drawn.points, drawn.means, strict=True) if y is None] == [None]
