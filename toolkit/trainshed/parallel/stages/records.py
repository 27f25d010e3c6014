"""Keeps what was recorded and prepared, and finds what fits a step again.

All ranks of a pipeline record together, so that a record has the same number on all of them. Which one fits is known at
once where nothing that Python may decide by has changed since it was found to fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from ..tracing.python_state import Key, Look, Values, changes
from .prepared import Prepared

UNKNOWN = -1
# Of each shape, mode and way: a record takes some hundred KiB. What was not used for the longest time goes first.
_MOST = 256
_RECENT = 4096


@dataclass
class _Record:
    base: Hashable
    look: Look
    prepared: Prepared


class Records:
    """The records of one rank.

    base: what any record depends on: the step function, shapes, modes.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Record] = OrderedDict()
        self._recent: OrderedDict[Hashable, int] = OrderedDict()
        self._idle: set[Key] = set()
        self._next = 0

    def clear(self) -> None:
        """Drops all records, and with them the connections that their schedules hold."""
        self._kept.clear()
        self._recent.clear()

    def recall(self, base: Hashable, look: Look) -> int:
        """The record that was found to fit all this; `UNKNOWN` if none was."""
        number = self._recent.get(self._key(base, look), UNKNOWN)
        return number if number in self._kept else UNKNOWN

    def use(self, number: int) -> Prepared:
        """Returns what was prepared for a record, whose turn to be dropped is now the last."""
        self._kept.move_to_end(number)
        return self._kept[number].prepared

    def candidates(self, base: Hashable, look: Look) -> list[int]:
        """Records whose units are as they are now, the one used last first."""
        inside = self._inside(look)
        return [
            number
            for number, record in reversed(self._kept.items())
            if record.base == base and self._inside(record.look) == inside
        ]

    def fits(self, number: int, base: Hashable, look: Look) -> None:
        """From now on `recall` knows."""
        self._recent[self._key(base, look)] = number
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def add(self, base: Hashable, look: Look, prepared: Prepared) -> tuple[int, list[Key]]:
        """Keeps a new record.

        Returns:
            Its number; and what is another value than in the record of the same kind that was used last, empty if there is
            none.
        """
        before = self._latest(base)
        found = [] if before is None else [key for key in changes(before.look, look) if key not in self._idle]
        counted = {key for way in prepared.ways for key in way.cut.trace.counters if key in look.inside}
        if before is not None and before.prepared.ways[0].cut.trace.same(prepared.ways[0].cut.trace):
            # It did nothing to the forward, and may be another value each time.
            counted |= {key for key in found if key in look.inside and isinstance(look.inside[key], (str, bytes))}
        if counted - self._idle:
            self._idle |= counted
            self._recent.clear()
        self._kept[self._next] = _Record(base, look, prepared)
        self._next += 1
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return self._next - 1, found

    def latest(self, base: Hashable) -> Look | None:
        """How all was for the record of this kind that was used last."""
        record = self._latest(base)
        return None if record is None else record.look

    def replace(self, number: int, prepared: Prepared) -> None:
        """More ways for a record."""
        self._kept[number].prepared = prepared

    def _latest(self, base: Hashable) -> _Record | None:
        return next((record for record in reversed(self._kept.values()) if record.base == base), None)

    def _key(self, base: Hashable, look: Look) -> Hashable:
        return base, hash(tuple(look.outside.items())), hash(tuple(self._inside(look).items()))

    def _inside(self, look: Look) -> Values:
        return {key: value for key, value in look.inside.items() if key not in self._idle} if self._idle else look.inside
