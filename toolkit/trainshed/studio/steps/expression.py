"""The language of conditions: numbers and texts compared, `and`, `or`, `not`, parentheses. Nothing is ever executed.

either  = both ("or" both)*
both    = single ("and" single)*
single  = "not" single | "(" either ")" | value COMPARISON value
value   = number | 'text' | ${link}
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .links import Link, link_of

DEEPEST = 50
LONGEST = 4000  # characters
_TOKEN = re.compile(
    r"\s*(?:(?P<link>\$\{[^{}]*\})|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<sign><=|>=|==|!=|<|>)|(?P<bracket>[()])|(?P<word>[A-Za-z_]+))"
)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False}


@dataclass(frozen=True)
class Expression:
    """A condition. parts: ("or", x, y), ("and", x, y), ("not", x), or (sign, value, value)."""

    text: str
    parts: tuple[Any, ...]

    def links(self) -> list[Link]:
        """The links in it."""
        return list(_links(self.parts))

    def holds(self, lookup: Callable[[Link], Any]) -> bool:
        """Whether it is true. A comparison with NaN is false, but for `!=`. Raises ValueError, and what `lookup` raises."""
        return _holds(self.parts, lookup)


def expression_of(text: str) -> Expression:
    """Reads a condition. Raises ValueError with what is wrong with it."""
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST:,} characters")
    tokens, place = [], 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot be read at {text[place:].strip()[:20]!r}")
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    reader = _Reader(tokens)
    parts = reader.either(0)
    if reader.tokens:
        raise ValueError(f"goes on after its end at {reader.tokens[0][1]!r}: compare values with and, or, <, >, ==")
    return Expression(text, parts)


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens

    def take(self, text: str) -> bool:
        if self.tokens and self.tokens[0][1] == text:
            self.tokens.pop(0)
            return True
        return False

    def either(self, depth: int) -> tuple[Any, ...]:
        left = self.both(depth)
        while self.take("or"):
            left = ("or", left, self.both(depth))
        return left

    def both(self, depth: int) -> tuple[Any, ...]:
        left = self.single(depth)
        while self.take("and"):
            left = ("and", left, self.single(depth))
        return left

    def single(self, depth: int) -> tuple[Any, ...]:
        if depth > DEEPEST:
            raise ValueError(f"is nested more than {DEEPEST} levels deep")
        if self.take("not"):
            return ("not", self.single(depth + 1))
        if self.take("("):
            inner = self.either(depth + 1)
            if not self.take(")"):
                raise ValueError("has a parenthesis that is not closed")
            return inner
        left = self.value()
        if not self.tokens or self.tokens[0][0] != "sign":
            raise ValueError("must compare values with <, <=, >, >=, == or !=")
        sign = self.tokens.pop(0)[1]
        return (sign, left, self.value())

    def value(self) -> Any:
        if not self.tokens:
            raise ValueError("ends where a value is expected")
        kind, text = self.tokens.pop(0)
        if kind == "number":
            return float(text)
        if kind == "text":
            return text[1:-1]
        if kind == "word" and text in _CONSTANTS:
            return _CONSTANTS[text]
        if kind == "link" and (link := link_of(text[2:-1].strip())) is not None:
            return link
        raise ValueError(f"has {text!r} where a number, a 'text' or a link like ${{steps.NAME.metrics.loss}} is expected")


def _links(parts: Any) -> Iterator[Link]:
    if isinstance(parts, Link):
        yield parts
    elif isinstance(parts, tuple):
        for part in parts[1:]:
            yield from _links(part)


def _holds(parts: tuple[Any, ...], lookup: Callable[[Link], Any]) -> bool:
    sign = parts[0]
    if sign == "or":
        return _holds(parts[1], lookup) or _holds(parts[2], lookup)
    if sign == "and":
        return _holds(parts[1], lookup) and _holds(parts[2], lookup)
    if sign == "not":
        return not _holds(parts[1], lookup)
    left, right = (lookup(one) if isinstance(one, Link) else one for one in parts[1:])
    if isinstance(left, str) != isinstance(right, str):
        one, other = (str(part) if isinstance(part, Link) else repr(part) for part in parts[1:])
        raise ValueError(f"compares a text with a number: {one} {sign} {other}")
    return _SIGNS[sign](left, right)
