"""Divides an epoch among ranks and workers: every sample once, equally many batches for every rank, and nothing lost
where a run goes on with other numbers of ranks or workers.

What is left of an epoch is dealt in equal, connected shares to the ranks. A share is cut into batches, and successive
batches make a *window*: the samples of a window are shuffled among each other, and one worker reads all of it. Workers
take turns, so the windows of several workers advance together; with a window of one batch that is the order of the files.

All ranks take their batches in step. So one number, how many each has taken, says what is left, on any rank, and what is
left can be dealt anew to others.
"""

from __future__ import annotations

import random

from trainshed.base.record import Record

from .order import Runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Deal(Record):
    """How an epoch, or what was left of it, was divided.

    world: ranks. batch: samples of a batch of one rank. window: batches of a window. lanes: windows that advance together.
    taken: batches that each rank has had of it.
    """

    world: int
    batch: int
    window: int
    lanes: int
    taken: int = 0


class Share:
    """The share of one rank.

    Args:
        left: what is dealt; at least one sample.
        seed: with which windows are shuffled; "" for not at all.

    repeated: the sample that another rank gets as well, -1 for none.
    """

    def __init__(self, deal: Deal, left: Runs, rank: int, seed: str) -> None:
        self._deal, self._left, self._seed = deal, left, seed
        each, more = divmod(len(left), deal.world)
        self._first = rank * each + min(rank, more)
        self._count = each + (rank < more)
        self.repeated = -1
        self.batches = -(-(each + bool(more)) // deal.batch)
        if self._count < self.batches:  # a sample of the rank before comes twice, so that no rank waits for the others
            self._first, self._count = self._first - 1, self._count + 1
            self.repeated = left.positions(self._first, self._first + 1)[0]

    def order(self) -> Iterator[int]:
        """The numbers of its batches in the order in which they are taken."""
        window, lanes = self._deal.window, self._deal.lanes
        for first in range(0, self.batches, window * lanes):
            ends = min(first + window * lanes, self.batches)
            for step in range(first, first + window):
                yield from range(step, ends, window)

    def positions(self, batch: int) -> list[int]:
        """The samples of a batch."""
        _, start, stop = self.place(batch)
        return self.window(batch)[start:stop]

    def window(self, batch: int) -> list[int]:
        """The samples of the window of a batch, in the order of its batches."""
        first, end = self._window(batch)
        found = self._left.positions(self._first + self._start(first), self._first + self._start(end))
        if self._seed:
            random.Random(f"{self._seed} {self._first} {first}").shuffle(found)
        return found

    def place(self, batch: int) -> tuple[int, int, int]:
        """(number of the first batch of its window, where the batch begins in the window, where it ends)."""
        first, _ = self._window(batch)
        return first, self._start(batch) - self._start(first), self._start(batch + 1) - self._start(first)

    def left(self, taken: int) -> list[tuple[int, int]]:
        """Returns what is left when so many batches are taken, as runs."""
        had: dict[int, int] = {}  # first batch of a window -> how many of it
        for _, batch in zip(range(taken), self.order(), strict=False):
            first, _ = self._window(batch)
            had[first] = had.get(first, 0) + 1
        found: list[tuple[int, int]] = []
        for first in range(0, self.batches, self._deal.window):
            _, end = self._window(first)
            count = had.get(first, 0)
            if not count:
                found += self._left.part(self._first + self._start(first), self._first + self._start(end))
            elif first + count < end:
                rest = self.window(first)[self._start(first + count) - self._start(first) :]
                found += [(position, position + 1) for position in rest]
        return found

    def _window(self, batch: int) -> tuple[int, int]:
        """First batch of its window, and the one behind its last."""
        first = batch - batch % self._deal.window
        return first, min(first + self._deal.window, self.batches)

    def _start(self, batch: int) -> int:
        """Where a batch begins in the share. A rank with one sample less has as many batches as the others."""
        return self._count if batch >= self.batches else min(batch * self._deal.batch, self._count - 1)


def left_of(total: int, deals: Sequence[Deal], seed: str) -> Runs:
    """Returns what is left of an epoch after all these deals, one after the other.

    Args:
        total: its samples.
        seed: the epoch's; "" where it is not shuffled.
    """
    left = Runs([(0, total)])
    for number, deal in enumerate(deals):
        shares = [Share(deal, left, rank, seed_of(seed, number)) for rank in range(deal.world)]
        runs = [run for share in shares for run in share.left(deal.taken)]
        left = Runs(_without(runs, {share.repeated for share in shares if _is_had(share, shares, runs)}))
        if not len(left):
            break
    return left


def _is_had(share: Share, shares: Sequence[Share], left: Sequence[tuple[int, int]]) -> bool:
    """Whether one of the ranks that get the same sample has had it."""
    position = share.repeated
    owners = 1 + sum(other.repeated == position for other in shares)
    return position >= 0 and sum(first <= position < end for first, end in left) < owners


def _without(runs: Sequence[tuple[int, int]], positions: set[int]) -> list[tuple[int, int]]:
    found = list(runs)
    for position in positions:
        around = [run for run in found if run[0] <= position < run[1]]
        found = [run for run in found if run not in around]
        found += [part for first, end in around for part in ((first, position), (position + 1, end))]
    return found


def seed_of(seed: str, deal: int) -> str:
    """The seed of the windows of an epoch's deal by its number."""
    return f"{seed} {deal}" if seed else ""
