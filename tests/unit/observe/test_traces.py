"""What passes between `trainshed profile` and a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.observe.traces import REQUEST, Operator, TraceRequest, TraceResult, answer, answered, ask, asked

REQUESTED = TraceRequest(id=1790000000123, steps=5, rank=1, until=1790000300.5)


def test_a_request_and_its_answer_come_across(tmp_path: Path) -> None:
    found = TraceResult(0.5, (Operator("aten::mm", 10, 0.25, 0.0),), busy=0.75)
    assert asked(str(tmp_path)) is None and answered(str(tmp_path), REQUESTED) is None
    ask(str(tmp_path), REQUESTED)
    answer(str(tmp_path), REQUESTED, found)

    assert asked(str(tmp_path)) == REQUESTED
    assert answered(str(tmp_path), REQUESTED) == found
    assert answered(str(tmp_path), REQUESTED.replace(rank=0)) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "[" * 9999, '{"Id": 1}', '{"Id": 1, "Steps": 5, "Rank": 0}'),
        *(f'{{"Id": 1, "Steps": {steps}, "Rank": 0, "Until": 9e9}}' for steps in (0, 1001)),
    ],
)
def test_a_request_that_cannot_be_read_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / REQUEST).write_text(text)

    assert asked(str(tmp_path)) is None
