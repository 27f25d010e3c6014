"""Regular expressions of users."""

from __future__ import annotations

import re
import warnings

import pytest

from trainshed.base.patterns import compiled, needed_by


def test_python_prints_nothing_about_an_expression() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled("[[a]+loss=(x||y)").groups == 1
        with pytest.raises(re.error):
            compiled("((")


@pytest.mark.parametrize(
    ("regex", "needed"),
    [
        (r"'loss': '?([0-9.]+)", "'loss': "),
        (r"(?i)loss=(.*)", ""),
        (r"loss|acc", ""),
        (r"(?:loss)?: (\d)", ": "),
        (r"(?x) lo ss (\d)", "loss"),
        (r"l{3}oss(\d)", "oss"),
        (r"[ab](\d)", ""),
    ],
)
def test_what_a_text_needs_for_an_expression_to_be_found(regex: str, needed: str) -> None:
    assert needed_by(re.compile(regex)) == needed
