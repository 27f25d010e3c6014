"""The order of an epoch's samples, whatever the number of ranks: files in blocks, shuffled by seed and epoch."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Block(Record):
    """Successive records of one file.

    file: its number in the channel. first: number of the first record in the file. count: how many, at least one.
    """

    file: int
    first: int
    count: int


class Order:
    """The samples of an epoch have *positions* from 0 on; this says where each lies.

    Args:
        blocks: all of the channel, in the order of its files.
        seed: with which whole blocks are shuffled; "" leaves them as they are.
    """

    def __init__(self, blocks: Sequence[Block], seed: str) -> None:
        self._blocks = list(blocks)
        if seed:
            random.Random(seed).shuffle(self._blocks)
        self._ends = list(accumulate(block.count for block in self._blocks))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def runs(self, positions: Sequence[int]) -> list[tuple[int, int, int]]:
        """(file, first record, how many) of ascending positions; successive ones together, each as often as it is there."""
        found: list[tuple[int, int, int]] = []
        at = 0
        while at < len(positions):
            number = bisect_right(self._ends, positions[at])
            block, end = self._blocks[number], self._ends[number]
            behind, following = at, positions[at]
            most = min(len(positions) - at, end - following)
            if positions[at : at + most] == [*range(following, following + most)]:
                behind, following = at + most, end
            while behind < len(positions) and positions[behind] == following < end:
                behind, following = behind + 1, following + 1
            found.append((block.file, block.first + positions[at] - (end - block.count), behind - at))
            at = behind
        return found

    def places(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """(file, record) of each position."""
        found = []
        for position in positions:
            number = bisect_right(self._ends, position)
            block = self._blocks[number]
            found.append((block.file, block.first + position - (self._ends[number] - block.count)))
        return found


def blocks_of(counts: Sequence[int], size: int, whole: frozenset[int] = frozenset()) -> list[Block]:
    """Cuts files into blocks of `size` records.

    Args:
        counts: records of each file.
        whole: files that stay in one piece, as they cannot be entered in their middle.
    """
    found = []
    for file, count in enumerate(counts):
        step = max(1, count) if file in whole else size
        found += [Block(file, first, min(step, count - first)) for first in range(0, count, step)]
    return found


class Runs:
    """Positions in ascending order, as runs (first, behind the last).

    Args:
        runs: may overlap, in any order.
    """

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        for first, end in sorted(runs):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            elif end > first:
                merged.append([first, end])
        self.runs = [(first, end) for first, end in merged]
        self._ends = list(accumulate(end - first for first, end in self.runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def part(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Those with the numbers from `start` to before `stop`, as runs."""
        found = []
        at = bisect_right(self._ends, start)
        while start < stop:
            first, end = self.runs[at]
            skipped = start - (self._ends[at] - (end - first))
            count = min(stop - start, end - first - skipped)
            found.append((first + skipped, first + skipped + count))
            start, at = start + count, at + 1
        return found

    def positions(self, start: int, stop: int) -> list[int]:
        """The same, one by one."""
        return [position for first, end in self.part(start, stop) for position in range(first, end)]
