"""Conditions: what they mean, and that nothing but a condition is one."""

from __future__ import annotations

import math

import pytest

from trainshed.studio.steps.expression import expression_of
from trainshed.studio.steps.links import Link

VALUES = {"loss": 0.25, "acc": 0.9, "nan": math.nan, "kind": "adam", "on": True}


def value_of(link: Link) -> float | str | bool:
    return VALUES[link.name]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${steps.a.metrics.loss} < 0.5", True),
        ("${steps.a.metrics.loss} >= .25 and ${steps.a.metrics.acc} == 9e-1", True),
        ("1 > 2 or 2 > 1 and 1 > 2", False),
        ("(1 > 2 or 2 > 1) and 2 != 1", True),
        ("not 1 > 2", True),
        ("not (1 < 2) or not not 1 < 2", True),
        ("${steps.a.metrics.kind} == 'adam'", True),
        ('${ steps.a.metrics.kind } != "a and b"', True),
        ("${steps.a.metrics.on} == true", True),
        ("${steps.a.metrics.nan} < 1 or ${steps.a.metrics.nan} >= 1", False),
        ("-1 < +1", True),
    ],
)
def test_what_holds(text: str, value: bool) -> None:
    assert expression_of(text).holds(value_of) is value


@pytest.mark.safety
@pytest.mark.parametrize(
    "text",
    [
        "", "1", "1 <", "< 1", "1 < 2 <", "1 < 2 3", "(1 < 2", "1 < 2)", "a < 1", "1 = 1", "f(1) < 2", "1 < 2; 1 < 3",
        "__import__('os') == 1", "1 < 2 and", "not", "${HOME} == 1", "'a == 1", "1 < 2 # no", "[1] == [1]", "1 + 1 == 2",
        "(" * 60 + "1 < 2" + ")" * 60, "not " * 60 + "1 < 2", "1 < 2 " + "or 1 < 2 " * 1000,
    ],
)  # fmt: skip
def test_what_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        expression_of(text)


def test_a_text_and_a_number_are_not_compared() -> None:
    with pytest.raises(ValueError, match="compares a text with a number"):
        expression_of("${steps.a.metrics.kind} < 1").holds(value_of)


def test_a_long_chain_is_no_matter_of_depth() -> None:
    text = " or ".join(["1 > 2"] * 400)

    assert expression_of(text).holds(value_of) is False
