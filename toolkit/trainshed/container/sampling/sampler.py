"""The sampler's process: measures, writes, and ends with `train`."""

from __future__ import annotations

import select
import time

from trainshed.observe.system import sample_text

from .readings import Readings
from .sample_files import SampleFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .gpus import Gpus

MOST_SHARE = 0.005  # of one core, what sampling may cost where nobody has said how often
_LONGEST = 60.0  # seconds between two samples


def sample(
    control: int,
    say: Callable[[str], None],
    *,
    folder: str,
    host: str,
    number: int,
    interval: float,
    bounded: bool,
    root: int,
    names: Mapping[int, str],
    memory_limit: int,
    gpus: bool,
) -> None:
    """Samples until `control` is readable, which is when `train` closes its end or dies.

    Args:
        control: a pipe's descriptor.
        say: tells a person that something is wrong.
        folder: the profiler's.
        host, number: this host's name, and its number from 1.
        interval: seconds from sample to sample.
        bounded: whether samples come less often where they would cost more than `MOST_SHARE` of a core.
        root, names, memory_limit: as for `Readings`.
        gpus: whether this host has GPUs of NVIDIA's.
    """
    readings = Readings(root, names, memory_limit)
    files = SampleFiles(folder, number, interval)
    measure_gpus: Gpus | None = None
    if gpus:
        from .gpus import find_gpus

        measure_gpus = find_gpus(int(1000 * interval))
    pause, troubled = interval, False
    spent = time.process_time()
    while not _wait(control, _until_next(pause)):
        values = readings.take()
        if measure_gpus is not None:
            values += measure_gpus()
        now = time.time()
        try:
            files.write(sample_text(values, host, now), now)
        except OSError as error:
            if not troubled:
                troubled = True
                say(f"samples of this machine cannot be written to {folder}: {error.strerror}")
        before, spent = spent, time.process_time()
        if bounded:
            needed = (spent - before) / MOST_SHARE
            # Slower at once, faster again by and by: one cheap sample says little.
            pause = min(max(interval, needed, 0.8 * pause), _LONGEST)
    files.close()


def _until_next(pause: float) -> float:
    """Seconds to the next sample: on whole multiples of the pause, and never right after the last one."""
    left = pause - time.time() % pause
    return left if left > pause / 2 else left + pause


def _wait(control: int, seconds: float) -> bool:
    """Whether `train` has had enough within these seconds."""
    return bool(select.select([control], [], [], seconds)[0])
