"""The largest batch that fits into memory, in few tries: memory grows linearly with the batch, so two small tries tell where
the limit is, and the next ones are only there to make sure. Pure: what a try is, the caller knows.
"""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GROWTH = 16  # a try is at most so many times the largest that is known to fit: two small tries may mislead


class Try(Record):
    """One batch size. peak_bytes: the most memory held, None where it did not fit."""

    batch: int
    peak_bytes: int | None


class BatchSize(Record):
    """What was found. batch: the largest that fits, 0 for none; tries: in their order."""

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
    """Searches.

    Args:
        peak_of: tries a batch size; the most bytes that were held, None where it did not fit.
        limit_bytes: the memory there is; asked after the first try.
        start: the first batch to try, rounded up to a multiple of `step`.
        step: batches are multiples of this (at least 1).
        most: the largest batch of interest.
        tries: how often to try at most (at least 2).
        reserve: part of the memory that is to stay free, 0 to 0.9.
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
    best = max((found for found in done if _fits(found, room)), key=lambda found: found.batch)
    return BatchSize(best.batch, best.peak_bytes or 0, limit, tuple(done))


def _fits(found: Try, room: int) -> bool:
    return found.peak_bytes is not None and found.peak_bytes <= room


def _next(done: list[Try], room: int, step: int, most: int) -> int | None:
    """The batch to try next, None where nothing is left to find out."""
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
