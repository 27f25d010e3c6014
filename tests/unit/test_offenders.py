"""One failure names all that break a rule."""

from __future__ import annotations

import pytest

from support.offenders import check_each, no_offenders


def test_all_offenders_are_named() -> None:
    no_offenders({"a": []}, "none")
    with pytest.raises(AssertionError, match=r"^none is wrong \(2 of 3 break it\)\na: y, z\nc: x$"):
        no_offenders({"a": ["z", "y"], "b": [], "c": ["x"]}, "none is wrong")


def test_all_cases_that_fail_are_named() -> None:
    errors = [None, KeyError("x"), AssertionError("first\nsecond"), pytest.fail.Exception("wrong")]

    def check(error: BaseException | None) -> None:
        if error:
            raise error

    with pytest.raises(AssertionError) as raised:
        check_each(errors, check, lambda error: type(error).__name__)
    assert str(raised.value).splitlines() == [
        *(
            "3 of 4 fail",
            "case 1, KeyError: KeyError: 'x'",
            "case 2, AssertionError: first",
            "case 3, Failed: Failed: wrong",
        ),
        *("--- case 2, AssertionError", "first", "second"),
    ]


def test_looking_at_nothing_is_a_failure() -> None:
    for look in (lambda: check_each([], print), lambda: no_offenders({}, "none")):
        with pytest.raises(AssertionError, match="nothing was looked at"):
            look()
