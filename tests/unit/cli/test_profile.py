"""`trainshed profile`: what it refuses, and the table of operators."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.cli.profile import run, table
from trainshed.observe.traces import Operator, TraceResult


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 1001}, {"rank": -1}, {"timeout": 0.0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainshedError, match="--steps must be from 1 to 1000"):
        run(Namespace(**{"run": "", "steps": 5, "rank": 0, "timeout": 1.0, **wrong}))


def test_operators_are_shown_by_step_and_by_the_device_where_there_is_one() -> None:
    mm, add = Operator("aten::mm", 20, 0.1, 0.25), Operator("aten::add", 5, 0.3, 0.0)
    on_device = table(TraceResult(0.5, (mm, add), busy=0.5), 5).splitlines()
    on_cpu = table(TraceResult(0.5, (add,)), 5).splitlines()

    assert on_device[:2] == [
        "5 steps in 0.5 s, 100 ms each",
        "the device is at work in 50 % of this time; the rest is waiting for the host",
    ]
    assert on_device[4].split() == ["50.000", "50.0%", "4", "aten::mm"]
    assert on_cpu[2].endswith("on the CPU") and on_cpu[3].split() == ["60.000", "60.0%", "1", "aten::add"]
