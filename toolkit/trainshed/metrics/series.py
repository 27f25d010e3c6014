"""The points of a run, sorted into one curve for each metric."""

from __future__ import annotations

import itertools
import os

from trainshed.base.record import Record

from .event_files import read_files
from .points import Point, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


_FOLDERS = ("sagemaker", "trainshed")  # `Paths.metrics`, `Paths.scraped_metrics`


class Series(Record):
    """One metric of one rank, in the order in which it was measured.

    rank: None where nobody said.
    """

    name: str
    rank: int | None
    points: tuple[Point, ...]

    def steps(self) -> list[int]:
        """The x values of the curve: the points' steps where they grow, else their numbers from 1."""
        steps = [point.step for point in self.points if point.step is not None]
        grow = len(steps) == len(self.points) and all(a <= b for a, b in itertools.pairwise(steps))
        return steps if grow else list(range(1, len(self.points) + 1))


def read_outputs(*outputs: str) -> dict[str, Series]:
    """The curves of a run: for each metric that of the lowest rank that measured it.

    Args:
        outputs: its hosts' output folders. Of a metric that is in TensorBoard's event files, too, those are left out.
    """
    found = series_of(_read(folder for output in outputs for folder in folders_of(output)))
    events = series_of([points for output in outputs for points in read_files(f"{output}/tensorboard")])
    return {**events, **found}


def folders_of(output: str) -> tuple[str, ...]:
    """The folders of metrics in a host's output folder."""
    return tuple(f"{output}/metrics/{name}" for name in _FOLDERS)


def _read(folders: Iterable[str]) -> list[list[Point]]:
    """The points of each file of metrics in these folders."""
    files = []
    for folder in folders:
        try:
            names = [name for name in os.listdir(folder) if name.endswith((".json", ".jsonl"))]
        except OSError:
            continue
        for name in names:
            try:
                files.append(list(read(f"{folder}/{name}")))
            except OSError:
                continue
    return files


def series_of(files: Iterable[Iterable[Point]]) -> dict[str, Series]:
    """One curve for each name, in the order of their first points: of the lowest rank that measured it.

    Each file is what one process wrote in its life. A job that was interrupted measures some steps again: of what an
    earlier process measured, those steps are left out, since the model does not come from them.
    """
    curves: dict[str, dict[int, list[list[Point]]]] = {}
    for file in files:
        own: dict[tuple[str, int], list[Point]] = {}
        for point in file:
            own.setdefault((point.name, -1 if point.rank is None else point.rank), []).append(point)
        for (name, rank), points in own.items():
            curves.setdefault(name, {}).setdefault(rank, []).append(points)
    found = []
    for name, ranks in curves.items():
        rank = min(ranks)
        found.append(Series(name, None if rank < 0 else rank, tuple(_joined(ranks[rank]))))
    found.sort(key=lambda series: series.points[0].time)
    return {series.name: series for series in found}


def _joined(lives: list[list[Point]]) -> list[Point]:
    kept: list[Point] = []
    for points in sorted(lives, key=lambda points: points[0].time):
        first = points[0].step
        if first is not None:
            kept = [point for point in kept if point.step is None or point.step < first]
        kept += points
    return kept
