"""Writes metrics as an event file for TensorBoard, with tensorboardX (the extra `tensorboard`)."""

from __future__ import annotations

import os

from trainshed.base.errors import TrainshedError
from trainshed.base.files import remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .media_reading import Medium
    from .reading import Curve

_OURS = ".trainshed-export"


def replace(folder: str, series: Iterable[Curve], media: Mapping[str, Sequence[Medium]]) -> tuple[int, int]:
    """As `write`, instead of what an earlier call has put there."""
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    for name in names:
        if name.endswith(_OURS):
            remove(f"{folder}/{name}")
    return write(folder, series, media, _OURS)


def write(folder: str, series: Iterable[Curve], media: Mapping[str, Sequence[Medium]], suffix: str = "") -> tuple[int, int]:
    """Adds an event file to a folder, which is made where it is not there.

    Args:
        series: each becomes the scalars of a tag, over `Curve.whole_steps`, with the times at which they were measured.
        media: pictures, tables and the like, by name.
        suffix: what the file's name ends with.

    Returns:
        How many values, and how many of the others, were written.

    Raises:
        TrainshedError: tensorboardX is not installed, or the folder cannot be written.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise TrainshedError("event files need tensorboardX", hint="pip install 'trainshed[tensorboard]'") from error
    from .media_tensorboard import add_media

    count = 0
    try:
        with SummaryWriter(logdir=folder, write_to_disk=True, filename_suffix=suffix) as writer:
            for one in series:
                for point, step in zip(one.points(), one.whole_steps(), strict=True):
                    writer.add_scalar(one.name, point.value, step, walltime=point.time)
                    count += 1
            others = add_media(writer, media)
    except OSError as error:
        raise TrainshedError(f"{folder} cannot be written: {error.strerror}") from error
    return count, others
