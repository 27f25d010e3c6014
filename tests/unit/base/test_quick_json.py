"""JSON without `re`: the same values, texts and errors as `json`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from trainshed.base import quick_json

TEXTS = (
    "1", " 1\n", "NaN", "-Infinity", '{"a": 1.50, "b": [true, null]}', "[1, 2] x", "", "{", "[1,]", "'a'", '"\\ud800"',
    "1e999", '{"a": 1, "a": 2}', "\ufeff1", b"\xef\xbb\xbf1", b"\xff", "é".encode("utf-16"), b'"\xc3\xa9"',
    "9" * 5000, '"a\nb"', "\x0b1",
)  # fmt: skip


def outcome(call: Callable[[], Any]) -> str:
    try:
        return repr(call())
    except ValueError as error:
        return repr(error)


@pytest.mark.parametrize("text", TEXTS)
def test_reads_what_json_reads_and_refuses_what_it_refuses(text: str | bytes) -> None:
    assert outcome(lambda: quick_json.loads(text)) == outcome(lambda: json.loads(text))
    told = outcome(lambda: json.loads(text, parse_float=str, parse_constant=str))
    assert outcome(lambda: quick_json.loads(text, parse_float=str, parse_constant=str)) == told


def value_of(chance: random.Random, depth: int = 0) -> Any:
    kinds = [None, True, -3, 10**30, 0.1, float("inf"), "é\n\u2028", "\ud800", "", chance.random()]
    kind = chance.randrange(len(kinds) + (0 if depth > 3 else 4))
    if kind < len(kinds):
        return kinds[kind]
    inner = [value_of(chance, depth + 1) for _ in range(chance.randrange(4))]
    return inner if kind % 2 else {str(at): one for at, one in enumerate(inner)}


def test_writes_what_json_writes() -> None:
    chance = random.Random(1)
    for _ in range(300):
        value = value_of(chance)
        text = quick_json.dumps(value)
        assert text == json.dumps(value) and repr(quick_json.loads(text)) == repr(json.loads(text))
        compact = quick_json.dumps({"b": value, "a": 1}, sort_keys=True, separators=(",", ":"))
        assert compact == json.dumps({"b": value, "a": 1}, sort_keys=True, separators=(",", ":"))


def test_what_json_cannot_write_is_refused_or_given_to_the_default() -> None:
    assert quick_json.dumps({"a": {1}}, default=sorted) == '{"a": [1]}'
    assert quick_json.dumps({1: (2, 3)}) == '{"1": [2, 3]}'
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        quick_json.dumps({1})
