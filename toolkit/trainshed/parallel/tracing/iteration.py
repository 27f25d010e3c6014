"""An iterator that a model draws from, with a way back: planning and recording must not use up what training is to get."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any


class Iteration:
    """Stands for an iterator in the place where the script keeps it.

    Args:
        source: the script's own.

    at: how many entries have been given.
    """

    __slots__ = ("_first", "_given", "_source", "at")

    def __init__(self, source: Iterator[Any]) -> None:
        self.at = 0
        self._source, self._given, self._first = source, deque[Any](), 0

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        while self.at >= self._first + len(self._given):
            self._given.append(next(self._source))
        self.at += 1
        return self._given[self.at - 1 - self._first]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def forget(self, before: int) -> None:
        """Nobody goes back further than to entry `before`."""
        while self._first < before and self._given:
            self._given.popleft()
            self._first += 1


def is_iterator(value: Any) -> bool:
    """Returns whether it is one of Python's own: a generator, or what `iter`, `zip` or `itertools` give."""
    kind = type(value)
    if kind is types.GeneratorType or kind.__module__ == "itertools":
        return True
    return kind.__module__ == "builtins" and hasattr(kind, "__next__") and hasattr(kind, "__iter__")
