"""Loss scales of scripts for Amazon's library move as its documentation says, and their options are checked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.parallel.ground.errors import PipelineError

scaling = Lazy("trainshed.compat.smdistributed.modelparallel.torch.scaling")
pytestmark = pytest.mark.torch


def scales(steps: str, **options: Any) -> list[float]:
    """The scale after each step: `x` is one with an overflow, `.` one without."""
    rules = scaling.scale_rules({"init_scale": 8, "scale_window": 3, **options})
    now, found = scaling.LossScale(rules.init_scale, 0, rules.delayed_shift), []
    for step in steps:
        now = scaling.after(now, step == "x", rules)
        found.append(now.scale)
    return found


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        ("x", {}, [4]),
        ("...", {}, [8, 8, 16]),
        ("..x...", {}, [8, 8, 4, 4, 4, 8]),
        ("......", {}, [8, 8, 16, 16, 16, 32]),
        ("xxxxx", {"min_scale": 2}, [4, 2, 2, 2, 2]),
        ("xx", {"scale_factor": 4}, [2, 1]),
        ("xx", {"delayed_shift": 2}, [8, 4]),
        ("x.x", {"delayed_shift": 2}, [8, 8, 4]),
        ("x...x", {"delayed_shift": 2}, [8, 8, 8, 16, 16]),  # a whole window has forgiven the first one
        ("x.x.x", {"delayed_shift": 2, "consecutive_hysteresis": True}, [8, 8, 8, 8, 8]),
        ("x.xx", {"delayed_shift": 2, "consecutive_hysteresis": True}, [8, 8, 8, 4]),
        ("xxx", {"delayed_shift": 2}, [8, 4, 2]),
        ("x", {"init_scale": 0.5, "min_scale": 1}, [1]),
    ],
)
def test_a_scale_moves_by_its_rules(steps: str, options: dict[str, Any], expected: list[float]) -> None:
    assert scales(steps, **options) == expected


def test_a_scale_without_options_has_the_documented_ones_but_begins_lower() -> None:
    assert scaling.scale_rules({}) == scaling.ScaleRules(2.0**16, 2.0, 1000, 1.0, 1, False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale_windw": 3}, "scale_windw is not an option of a loss scale"),
        ({"scale_window": 0}, "scale_window = 0, and must be a number: at least 1"),
        ({"scale_factor": 1}, "scale_factor = 1, and must be a number: more than 1"),
        ({"min_scale": 0}, "min_scale = 0, and must be a number: more than 0"),
        ({"init_scale": math.inf}, "init_scale = inf, and must be a number: more than 0"),
        ({"init_scale": math.nan}, "init_scale = nan"),
        ({"init_scale": "large"}, "init_scale = 'large', and must be a number: more than 0"),
        ({"delayed_shift": None}, "delayed_shift = None, and must be a number: at least 1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError) as raised:
        scaling.scale_rules(options)
    assert words in str(raised.value)
