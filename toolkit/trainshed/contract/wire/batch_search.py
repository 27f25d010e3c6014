"""The largest batch that fits into memory: the search, and what passes between the runner and a job that is one try of it.

Memory grows linearly with the batch: two small tries predict the limit, and the next ones confirm it. The search is pure:
the caller makes the tries.
"""

from __future__ import annotations

import json

from trainshed.base.record import Record

from .variables import PROBE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GROWTH = 16  # a try is at most so many times the largest that is known to fit: two small tries may mislead


class Try(Record):
    """One batch size. peak_bytes: the most memory held, None where it did not fit."""

    batch: int
    peak_bytes: int | None


class BatchSize(Record):
    """The result of a search.

    batch: the largest that fits; 0 if none does.
    tries: in the order in which they were made.
    """

    batch: int
    peak_bytes: int
    limit_bytes: int
    tries: tuple[Try, ...]


def largest_batch(
    peak_of: Callable[[int], int | None],
    limit_bytes: Callable[[], int],
    *,
    start: int = 1,
    step: int = 1,
    most: int = 1 << 20,
    tries: int = 8,
    reserve: float = 0.1,
) -> BatchSize:
    """Searches the largest batch.

    Args:
        peak_of: tries a batch size; the most bytes that were held, None where it did not fit.
        limit_bytes: gives the size of the memory; called after the first try.
        start: the first batch to try, rounded up to a multiple of `step`.
        step: batches are multiples of this (at least 1).
        most: the largest batch of interest.
        tries: how often to try at most (at least 2).
        reserve: share of the memory that stays free, 0 to 0.9.
    """
    done: list[Try] = []

    def attempt(batch: int) -> Try:
        done.append(Try(batch, peak_of(batch)))
        return done[-1]

    most = max(step, most // step * step)
    batch = min(most, -(-start // step) * step)
    first = attempt(batch)
    while first.peak_bytes is None and batch > step and len(done) < tries:
        batch = max(step, batch // 4 // step * step)
        first = attempt(batch)
    limit = limit_bytes()
    room = int(limit * (1 - reserve))
    if first.peak_bytes is None or first.peak_bytes > room:
        return BatchSize(0, 0, limit, tuple(done))
    while len(done) < tries:
        after = _next(done, room, step, most)
        if after is None:
            break
        attempt(after)
    best = max((attempted for attempted in done if _fits(attempted, room)), key=lambda attempted: attempted.batch)
    return BatchSize(best.batch, best.peak_bytes or 0, limit, tuple(done))


def _fits(attempted: Try, room: int) -> bool:
    return attempted.peak_bytes is not None and attempted.peak_bytes <= room


def _next(done: list[Try], room: int, step: int, most: int) -> int | None:
    """The batch to try next; None when the answer is known."""
    measured = sorted((found for found in done if found.peak_bytes is not None), key=lambda found: found.batch)
    good = max(found.batch for found in measured if _fits(found, room))
    bad = min((found.batch for found in done if not _fits(found, room)), default=None)
    if good >= most or (bad is not None and bad - good <= step):
        return None
    if len(measured) == 1:
        wanted = 2 * good
    else:
        low, high = measured[-2], measured[-1]
        slope = ((high.peak_bytes or 0) - (low.peak_bytes or 0)) / (high.batch - low.batch)
        wanted = GROWTH * good
        if slope > 0:
            wanted = int(min(wanted, high.batch + (room - (high.peak_bytes or 0)) / slope))
    wanted = min(wanted, most) // step * step
    if bad is not None and not good < wanted < bad:
        wanted = (good + bad) // 2 // step * step
    elif wanted <= good:  # the line says that this is the end
        return None
    return wanted if wanted > good and wanted not in {found.batch for found in done} else None


def scaled_learning_rate(rate: float, batch: int, larger: int) -> float:
    """The learning rate for another batch, by the linear rule (Goyal et al. 2017): k times the batch, k times the rate."""
    return rate * larger / batch


class Probe(Record):
    """One try of the search: a job that makes a few training steps, reports how much memory they took, and ends.

    steps: optimizer steps to make.
    folder: where its answer goes, `<host>.rank<rank>.json` with peak_bytes and limit_bytes.
    limit_bytes: a rank's part of the host's memory, where it trains on no GPU.
    """

    steps: int
    folder: str
    host: str
    limit_bytes: int

    def to_text(self) -> str:
        """The variable's value."""
        return json.dumps(self.plain(), sort_keys=True)


def probe_of(environ: Mapping[str, str]) -> Probe | None:
    """Returns what this rank has to do; None if the job is not a try of a search."""
    try:
        value = json.loads(environ.get(PROBE) or "null")
        return Probe(**value) if isinstance(value, dict) else None
    except (ValueError, TypeError):
        return None
