"""The median rule and ASHA on curves that were made by hand."""

from __future__ import annotations

import pytest

from trainshed.studio.tune.early import asha_stops, bracket_of, median_stops, rungs, running_average
from trainshed.studio.tune.tuning import ASHA, MAXIMIZE, MINIMIZE, EarlyStopping, Objective
from trainshed.studio.tune.tuning_file import brackets

LOSS, SCORE = Objective("loss", MINIMIZE), Objective("score", MAXIMIZE)
NAN = float("nan")


def curve(*values: float) -> list[tuple[float, float]]:
    return [(float(step), value) for step, value in enumerate(values, 1)]


def test_the_running_average_is_that_of_all_values_so_far() -> None:
    assert [running_average(curve(4, 2, 3), step) for step in (1, 2, 3)] == [4, 3, 3]
    assert running_average(curve(4, 2, 3), 4) is None, "it does not reach that far"
    assert running_average(curve(NAN, 2), 2) == 2
    assert running_average(curve(NAN), 1) is None


# Running averages at step 2: 3, 5, 7; their median is 5. (The medians of the values there, 2, 4, 6, would be 4.)
EARLIER = [curve(4, 2), curve(6, 4), curve(8, 6)]


@pytest.mark.parametrize(("value", "stopped"), [(4.9, False), (5.0, False), (5.1, True), (NAN, True), (float("inf"), True)])
def test_the_median_rule_compares_with_running_averages(value: float, stopped: bool) -> None:
    assert bool(median_stops((2.0, value), EARLIER, LOSS)) is stopped


def test_the_median_rule_for_what_is_to_be_large() -> None:
    assert median_stops((2.0, 4.9), EARLIER, SCORE)
    assert not median_stops((2.0, 5.0), EARLIER, SCORE)


def test_the_median_of_two_lies_between_them() -> None:
    assert not median_stops((2.0, 4.0), EARLIER[:2], LOSS)
    assert median_stops((2.0, 4.1), EARLIER[:2], LOSS)


def test_curves_that_do_not_reach_the_step_do_not_count() -> None:
    assert not median_stops((3.0, 100.0), EARLIER, LOSS)
    assert median_stops((3.0, 100.0), [*EARLIER, curve(1, 1, 1)], LOSS)


def test_a_reason_names_both_numbers() -> None:
    assert median_stops((2.0, 5.5), EARLIER, LOSS) == "median rule: 5.5 at 2 is worse than 5"


HALVING = EarlyStopping(ASHA, least=1, most=9, factor=3)


def test_rungs() -> None:
    assert rungs(HALVING, 0) == [1, 3], "9 is the end: nothing is left to save"
    assert rungs(HALVING, 1) == [3]
    assert rungs(EarlyStopping(ASHA, least=2, factor=2), 0)[:4] == [2, 4, 8, 16]


@pytest.mark.parametrize(
    ("others", "own", "stopped"),
    [
        ([], 9.0, False),  # the first is the best
        ([1.0], 2.0, True),
        ([3.0], 2.0, False),
        ([1.0, 2.0, 4.0, 5.0, 6.0], 1.5, False),  # two of six go on
        ([1.0, 2.0, 4.0, 5.0, 6.0], 3.0, True),
        ([1.0, 1.0], 1.0, False),  # equals are not worse
        ([1.0], NAN, True),
        ([NAN], 5.0, False),
    ],
)
def test_asha_keeps_the_best_third_of_those_that_have_come_so_far(others: list[float], own: float, stopped: bool) -> None:
    curves = {number: curve(value) for number, value in enumerate([*others, own], 1)}

    assert bool(asha_stops(len(curves), 1, curves, HALVING, LOSS)) is stopped


def test_asha_compares_what_was_measured_at_the_rung_and_not_later() -> None:
    curves = {1: curve(5, 4, 3, 0.1), 2: curve(5, 4, 3.5)}

    assert asha_stops(2, 3, curves, HALVING, LOSS)
    assert not asha_stops(1, 3, curves, HALVING, LOSS)
    assert not asha_stops(2, 9, curves, HALVING, LOSS), "it is not there yet"


def test_hyperbands_brackets() -> None:
    """For least 1, most 9, factor 3: s = 2, 1, 0 with 9, 5 and 3 trials (the table in the paper's section 3)."""
    early = EarlyStopping(ASHA, least=1, most=9, factor=3, brackets=brackets(1, 9, 3))
    counts = [sum(bracket_of(number, early) == bracket for number in range(1, 18)) for bracket in range(3)]

    assert early.brackets == 3 and counts == [9, 5, 3]
    assert [rungs(early, bracket) for bracket in range(3)] == [[1, 3], [3], []]
