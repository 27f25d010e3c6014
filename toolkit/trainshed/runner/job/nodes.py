"""Values with their origin: what a job file or the command line says, and where it says it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trainshed.contract.hyperparameters import SpelledFloat

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NOT_FINITE = {
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), "Infinity"),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), "-Infinity"),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), "NaN"),
}


class RawText(str):
    """A hyperparameter's value as the platform's API holds it: handed on letter by letter, not encoded again."""

    __slots__ = ()


@dataclass(frozen=True)
class Node:
    """One value.

    value: dict[str, Node], list[Node], str, bool, int, `SpelledFloat` or None.
    where: for messages, `job.yaml:7` or `--instances`.
    folder: what relative paths start from.
    text: a scalar as it was written.
    size: nodes in it, itself included, aliases counted each time.
    """

    value: Any
    where: str
    folder: str = ""
    text: str = ""
    size: int = 1

    def plain(self) -> Any:
        """The value without origins. Integers that JSON would write otherwise (`007`, `+1`) are text, as written."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        if type(self.value) is int and str(self.value) != self.text:
            return self.text
        return self.value


def scalar(text: str) -> Any:
    """The value of an unquoted word: YAML 1.2's core schema, numbers with their spelling.

    `yes`, `on`, `1_000`, `12:30` and dates are text, unlike in YAML 1.1: they are more often meant so.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text in _NOT_FINITE:
        return SpelledFloat(_NOT_FINITE[text])
    if _INTEGER.fullmatch(text) and len(text) <= 4000:
        return int(text)
    if _FLOAT.fullmatch(text):
        return SpelledFloat(text)
    return text
