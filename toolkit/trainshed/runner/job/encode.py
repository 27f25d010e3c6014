"""Hyperparameters as the platform hands them over."""

from __future__ import annotations

import json
from typing import Any

from trainshed.contract.hyperparameters import SpelledFloat

from .nodes import RawText


def encode(value: Any) -> str:
    """A hyperparameter's value as the platform hands it over: a string that holds JSON, numbers as they were spelled."""
    if isinstance(value, RawText):
        return str(value)
    if isinstance(value, SpelledFloat):
        # `.5` and `5.` are no JSON; as text they reach the script just as they were written.
        return value.text if _is_json_number(value.text) else json.dumps(value.text)
    if isinstance(value, list):
        return "[" + ", ".join(map(encode, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(name))}: {encode(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def _is_json_number(text: str) -> bool:
    try:
        return isinstance(json.loads(text), (int, float))
    except ValueError:
        return False
