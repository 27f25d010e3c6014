"""The points of a running job: what its files have got since the last look."""

from __future__ import annotations

import json
import os

from trainshed.base.files import open_plain
from trainshed.metrics.points import Point, point_of
from trainshed.metrics.reading import folders_of
from trainshed.observe.steps import FOLDER as STEPS
from trainshed.observe.steps import window_of
from trainshed.observe.system import files_below, sample_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_GROWING = 3  # files of samples, the last ones: each holds a minute
_MOST = 1 << 24  # bytes of a file that are read in one look


class Following:
    """The files of one host.

    Args:
        output: its output folder.
        profiler: the profiler's folder.
    """

    def __init__(self, output: str, profiler: str) -> None:
        self._measured = [*folders_of(output), f"{output}/tensors"]
        self._profiler = profiler
        self._places: dict[str, int] = {}
        self._ranks: dict[str, int] = {}  # of files of steps

    def look(self) -> list[Point]:
        """What is new, in the order in which it was measured. Lines of other forms are passed over."""
        points = [point for path in _files(*self._measured) for line in self._lines(path) if (point := point_of(line))]
        for path in files_below(self._profiler)[-_GROWING:]:
            for line in self._lines(path):
                if (sample := sample_of(line)) is not None:
                    (_, kind, name, dimension), time, value = sample
                    points.append(Point(f"system/{kind}/{dimension}/{name}", value, time))
        for path in _files(f"{self._profiler}/{STEPS}"):
            for line in self._lines(path):
                points += self._window(path, line)
        points.sort(key=lambda point: point.time)
        return points

    def _lines(self, path: str) -> list[bytes]:
        place = self._places.get(path, 0)
        try:
            with open_plain(path, links=False) as file:
                file.seek(place)
                block = file.read(_MOST)
        except OSError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        if not whole and len(block) == _MOST:  # nobody writes such a line
            whole = block
        self._places[path] = place + len(whole)
        return whole.splitlines()

    def _window(self, path: str, line: bytes) -> list[Point]:
        """What a line says of the rank, or how long steps took."""
        try:
            fields = json.loads(line)
            if "Facts" in fields:
                self._ranks[path] = int(fields["Facts"]["Rank"])
                return []
        except (ValueError, TypeError, KeyError, RecursionError):
            return []
        window = window_of(fields)
        if window is None:
            return []
        where = (window.time, window.step, None, self._ranks.get(path))
        return [
            Point("steps/seconds", window.seconds / window.steps, *where),
            Point("steps/longest", window.longest, *where),
        ]


def _files(*folders: str) -> Iterator[str]:
    for folder in folders:
        try:
            yield from (f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith(".json"))
        except OSError:
            continue
