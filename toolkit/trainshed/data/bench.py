"""Measures what a machine can read from a channel."""

from __future__ import annotations

import time

from trainshed.base.record import Record

from .formats.errors import DataError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dataset import Files


class Speed(Record):
    """The speed at which a number of workers read.

    first: seconds until the first batch, with the start of the workers. seconds: that the batches after it took.
    """

    workers: int
    first: float
    batches: int
    samples: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Samples a second, None where there was but one batch: it came with the start of the workers."""
        return self.samples / self.seconds if self.seconds > 0 else None

    @property
    def step(self) -> float:
        """Seconds a batch."""
        return self.seconds / self.batches if self.batches else self.first


def measure(files: Files, batch_size: int, workers: int, seconds: float) -> Speed:
    """Reads shuffled batches for some time, or an epoch, if that is shorter.

    Raises:
        DataError: the data is damaged, there is none, or its samples do not make batches.
    """
    if not len(files):
        raise DataError(f"{files.name} has no samples", hint="trainshed data show counts those of each file")
    loader = files.loader(batch_size, shuffle=True, workers=workers, rank=0, world_size=1)
    total, began = len(loader), time.monotonic()
    batches = iter(loader)
    next(batches)
    started = now = time.monotonic()
    count = 0
    while count + 1 < total and now - started < seconds:
        next(batches)
        count, now = count + 1, time.monotonic()
    batches.close()  # type: ignore[attr-defined]
    samples = len(files) - batch_size if count + 1 == total else count * batch_size
    return Speed(workers, started - began, count, max(0, samples), now - started)
