"""What a message may be: everything else ends the connection that it came by."""

from __future__ import annotations

import math

import pytest

from trainshed.container.roster.link import decode, encode
from trainshed.container.roster.messages import LONGEST_LINE, Report, failure_of_json, line_of
from trainshed.contract.outcome import Failure

FAILURE = Failure(kind="UserError", summary="rank 3 exited with 1", exit_code=1, rank=3, at=2.5, details="...")
PLAIN = FAILURE.plain()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"3",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": -Infinity}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": "\xff"}',
        b"[" * 200_000,
        b'{"a": ' * 200_000,
        b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
    ],
)
def test_a_line_that_is_not_a_message_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_what_we_send_ourselves_can_always_be_read() -> None:
    message = {"text": "caf\u00e9 \U0001f600 \udc80", "nan": math.nan, "list": (1, math.inf), "\ud800": 1}

    assert decode(encode(message)) == {"text": "caf\u00e9 \U0001f600 ?", "nan": None, "list": [1, None], "?": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"exit_code": "1"},
        {"exit_code": 256},
        {"exit_code": -1},
        {"rank": "3"},
        {"at": []},
        {"kind": None},
        {"summary": 7},
        {"details": {"a": 1}},
        {"hint": "x" * 300_000},
    ],
)
def test_a_failure_of_wrong_types_is_refused(wrong: dict[str, object]) -> None:
    assert failure_of_json(PLAIN) == FAILURE
    with pytest.raises(ValueError):
        failure_of_json({**PLAIN, **wrong})


def test_a_failure_without_its_reason_is_refused() -> None:
    for value in ({}, [], "x", {"kind": "UserError", "exit_code": 1}):
        with pytest.raises(ValueError):
            failure_of_json(value)


def test_a_report_comes_back_as_it_was_and_others_are_refused() -> None:
    report = Report(state="stopped", failure=FAILURE, age=1.5, secondary=True, cause=FAILURE.replace(rank=None), early="why")
    message = decode(encode(report.message()))

    assert Report.of(message) == report
    for wrong in ({"state": "well"}, {"state": 1}, {"age": "old"}, {"failure": 1}, {"cause": []}, {"early": 1}):
        with pytest.raises(ValueError):
            Report.of({**message, **wrong})


def test_a_reason_is_one_short_line_for_a_terminal() -> None:
    assert line_of({"why": "a\nb\x1b[31m"}, "why") == "a b [31m"
    assert len(line_of({"why": "x" * 9000}, "why")) == LONGEST_LINE and line_of({}, "why") == ""
