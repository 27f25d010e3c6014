"""Comparisons of trainings have room, or are refused when they are written."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

closeness: Any = Lazy("closeness")
pytestmark = pytest.mark.torch


def test_a_training_that_uses_up_its_tolerance_is_refused_with_what_to_do() -> None:
    closeness.assert_trained_alike([1.0], [1.0 + 1e-6], rtol=1e-5)
    with pytest.raises(AssertionError, match=r"more than a fifth of its tolerance .*make the training contractive"):
        closeness.assert_trained_alike([1.0], [1.0 + 5e-6], rtol=1e-5)
    with pytest.raises(AssertionError, match="not close"):
        closeness.assert_trained_alike([1.0], [1.0 + 2e-5], rtol=1e-5)
