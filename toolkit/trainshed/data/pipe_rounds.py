"""Deals a stream of records to ranks: a batch for each of them makes a round."""

from __future__ import annotations

from itertools import islice

from .formats.equal import regrouped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any


def rounds(runs: Iterable[Sequence[Any]], size: int, skip: int = 0) -> Iterator[Sequence[Any]]:
    """The records of each round, all of them full but the last.

    Args:
        runs: the stream, in sequences of any length.
        size: records of a round: a batch for each rank.
        skip: rounds that the ranks have had already.
    """
    return islice(regrouped(runs, size), skip, None)


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
