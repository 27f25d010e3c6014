"""Deals a stream of records to ranks: a batch for each of them makes a round."""

from __future__ import annotations

from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any


def rounds(records: Iterable[Any], world: int, batch: int, skip: int = 0) -> Iterator[list[Any]]:
    """The records of each round, all of them full but the last.

    Args:
        skip: rounds that the ranks have had already.
    """
    stream = iter(records)
    for _ in range(skip):
        if not any(True for _ in islice(stream, world * batch)):
            return
        # `any` has taken one of the round.
        for _ in islice(stream, world * batch - 1):
            pass
    while found := list(islice(stream, world * batch)):
        yield found


def part(records: Sequence[Any], rank: int, world: int, batch: int) -> Sequence[Any]:
    """A rank's batch of a round: every rank gets one, so that none waits for the others.

    Where the last round has fewer records than ranks, some get one that another has, too.
    """
    if len(records) == world * batch:
        return records[rank * batch : (rank + 1) * batch]
    each, more = divmod(len(records), world)
    if not each:
        return [records[rank % more]]
    first = rank * each + min(rank, more)
    return records[first : first + each + (rank < more)]
