"""Fingerprints in files that anybody may have written: what has another form is left out, and controls no terminal."""

from __future__ import annotations

import pytest

from trainshed.base.errors import one_line
from trainshed.contract.wire.fingerprints import described, in_shape
from trainshed.runner.state.records import in_shape as record_in_shape

GOOD = {"digest": "sampled:00", "files": 1, "bytes": 2000, "read": 1}


@pytest.mark.parametrize(
    "one",
    [None, 7, [], "x", {}, {"digest": None}, {"digest": 7}, {"digest": ["a"]}],
)
def test_what_is_no_fingerprint_is_left_out(one: object) -> None:
    assert in_shape({"a": one, "b": GOOD}) == {"b": GOOD}
    assert record_in_shape({"fingerprints": {"a": one, "b": GOOD}})["fingerprints"] == {"b": GOOD}


@pytest.mark.parametrize("count", [-1, True, 1.5, "7", 1 << 62, 10**400, None])
def test_numbers_that_are_none_are_nothing(count: object) -> None:
    (one,) = in_shape({"a": {**GOOD, "files": count, "bytes": count}}).values()
    assert described(one) == "sampled:00 (0 files, 0 B)"


def test_texts_are_cut_and_shown_without_what_controls_a_terminal() -> None:
    (one,) = in_shape({"a": {**GOOD, "digest": "x" * 10_000, "notes": ["\x1b[31m", 7, *["n"] * 50]}}).values()
    assert len(one["digest"]) == 100 and len(one["notes"]) < 20
    assert "\x1b" not in one_line(described(one))


@pytest.mark.parametrize("record", [{"fingerprints": []}, {"fingerprints": "x"}, {"fingerprints": None}])
def test_a_record_with_something_else_there_has_none(record: dict[str, object]) -> None:
    assert "fingerprints" not in record_in_shape(record)
