"""Regular expressions of users."""

from __future__ import annotations

import re
import warnings

import pytest

from trainshed.base.patterns import compiled


def test_python_prints_nothing_about_an_expression() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled("[[a]+loss=(x||y)").groups == 1
        with pytest.raises(re.error):
            compiled("((")
