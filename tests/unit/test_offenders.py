"""One failure names all that break a rule."""

from __future__ import annotations

import pytest

from support.offenders import check_each, no_offenders


def test_all_offenders_are_named() -> None:
    no_offenders({"a": []}, "none")
    with pytest.raises(AssertionError) as raised:
        no_offenders({"a": ["z", "y"], "b": [], "c": ["x"]}, "none is wrong")

    assert str(raised.value) == "none is wrong (2 of 3 break it)\na: y, z\nc: x"


def test_all_cases_are_checked_and_those_that_fail_are_named() -> None:
    looked_at = []

    def check(case: int) -> None:
        looked_at.append(case)
        if case == 2:
            raise AssertionError("first\nsecond")
        if case == 3:
            pytest.fail("wrong")
        [0][case]

    with pytest.raises(AssertionError) as raised:
        check_each(range(4), check)

    assert looked_at == [0, 1, 2, 3]
    lines = str(raised.value).splitlines()
    assert lines[:4] == [
        "3 of 4 fail",
        "case 1, 1: IndexError: list index out of range",
        "case 2, 2: first",
        "case 3, 3: Failed: wrong",
    ]
    assert lines[4:7] == ["--- case 2, 2", "first", "second"]


def test_looking_at_nothing_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="nothing was looked at"):
        check_each([], print)
    with pytest.raises(AssertionError, match="nothing was looked at"):
        no_offenders({}, "none")
