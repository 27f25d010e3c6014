"""Ranges, their scales, and grids."""

from __future__ import annotations

import math

import pytest

from trainshed.studio.tune.space import (
    CATEGORICAL,
    CONTINUOUS,
    INTEGER,
    LINEAR,
    LOG,
    REVERSE_LOG,
    Parameter,
    combinations,
    decided,
    fits,
    grid,
    in_order,
)

RATE = Parameter("rate", CONTINUOUS, 1e-4, 1e-1, LOG)
LAYERS = Parameter("layers", INTEGER, 2, 4, LINEAR, step="1")
KIND = Parameter("kind", CATEGORICAL, categories=(("sgd", True), ("adam", True)))
BETA = Parameter("beta", CATEGORICAL, categories=(("0.9", False), ("0.99", False)), when=(("kind", ("adam",)),))


@pytest.mark.parametrize(
    ("scale", "low", "high", "middle"),
    [(LINEAR, 0.0, 10.0, 5.0), (LOG, 1e-4, 1e-2, 1e-3), (REVERSE_LOG, 0.9, 0.999, 0.99)],
)
def test_the_middle_of_a_scale(scale: str, low: float, high: float, middle: float) -> None:
    range_ = Parameter("x", CONTINUOUS, low, high, scale)

    assert [float(range_.at(part)) for part in (0, 0.5, 1)] == pytest.approx([low, middle, high])
    assert range_.place(repr(middle)) == pytest.approx(0.5)


@pytest.mark.parametrize("part", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("scale", [LINEAR, LOG, REVERSE_LOG])
def test_no_rounding_leaves_the_range(scale: str, part: float) -> None:
    range_ = Parameter("x", CONTINUOUS, 0.1, 0.3, scale)

    assert 0.1 <= float(range_.at(part)) <= 0.3


def test_whole_numbers_have_equal_places() -> None:
    counts = {text: 0 for text in ("2", "3", "4")}
    for number in range(300):
        counts[LAYERS.at((number + 0.5) / 300)] += 1

    assert counts == {"2": 100, "3": 100, "4": 100}


def test_whole_numbers_on_a_logarithmic_scale_reach_both_ends() -> None:
    range_ = Parameter("batch", INTEGER, 1, 1024, LOG)

    assert [range_.at(part) for part in (0.0, 1.0)] == ["1", "1024"]
    assert 20 < int(range_.at(0.5)) < 45


def test_steps_are_decimal_numbers() -> None:
    range_ = Parameter("x", CONTINUOUS, 0.1, 0.5, LINEAR, step="0.1")

    assert range_.texts == ("0.1", "0.2", "0.3", "0.4", "0.5")


def test_the_scale_that_auto_stands_for() -> None:
    assert [decided("auto", *ends) for ends in ((1e-5, 1e-1), (1, 8), (-1, 1), (0, 1000))] == [LOG, LINEAR, LINEAR, LINEAR]


def test_a_grid_has_each_combination_once_and_no_value_for_what_is_not_active() -> None:
    found = list(grid((KIND, BETA, LAYERS)))

    assert len(found) == len({tuple(values.items()) for values in found}) == combinations((KIND, BETA, LAYERS)) == 9
    assert found[0] == {"kind": "sgd", "layers": "2"}
    assert found[-1] == {"kind": "adam", "beta": "0.99", "layers": "4"}


def test_what_cannot_be_counted_is_no_grid() -> None:
    assert combinations((KIND, RATE)) is None
    assert combinations((Parameter("n", INTEGER, 1, 1e9, LINEAR, step="1"),)) is None


def test_those_that_others_depend_on_come_first() -> None:
    assert [one.name for one in in_order((BETA, KIND))] == ["kind", "beta"]
    with pytest.raises(ValueError, match="a, b"):
        in_order(
            (Parameter("a", INTEGER, 1, 2, when=(("b", ("1",)),)), Parameter("b", INTEGER, 1, 2, when=(("a", ("1",)),)))
        )


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ({"kind": "adam", "beta": "0.9", "layers": "2"}, True),
        ({"kind": "sgd", "layers": "2"}, True),
        ({"kind": "sgd", "beta": "0.9", "layers": "2"}, False),  # beta is not active
        ({"kind": "adam", "layers": "2"}, False),  # beta is missing
        ({"kind": "adam", "beta": "0.9", "layers": "5"}, False),
        ({"kind": "adam", "beta": "0.9", "layers": "2.5"}, False),
        ({"kind": "lamb", "layers": "2"}, False),
        ({"kind": "sgd", "layers": "2", "more": "1"}, False),
        ({"kind": "sgd", "layers": "nan"}, False),
    ],
)
def test_which_values_are_in_a_space(values: dict[str, str], good: bool) -> None:
    assert fits((KIND, BETA, LAYERS), values) is good


def test_a_place_is_where_at_finds_the_value() -> None:
    for parameter in (RATE, LAYERS, KIND, Parameter("m", CONTINUOUS, 0.5, 0.999, REVERSE_LOG)):
        text = parameter.at(0.7)
        place = parameter.place(text)
        assert (place is not None and parameter.at(place) == text) or math.isclose(
            float(text), float(parameter.at(place or 0))
        )
