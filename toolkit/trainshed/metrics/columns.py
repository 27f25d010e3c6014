"""Metrics as columns of numbers, read on from files that grow: for pictures of a million points.

A `Series` holds a record a point, which is what a table needs. A picture needs the numbers alone: 32 bytes a point, and
files are read a second time only where they have grown.
"""

from __future__ import annotations

import math
import os
import re
import time
from array import array

from trainshed.base.files import open_plain

from . import event_files
from .points import point_of
from .series import folders_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK = 1 << 20  # bytes between two looks at the clock
MOST_NAMES = 2000  # metrics of a run; a script that makes up names without end costs those beyond, not the memory
NAN = math.nan
_MOST_EVENTS = 32 << 20  # bytes of event files that are read
_PATIENCE = 20  # times as long as reading them took, they are left alone
# What `points.line_of` writes; everything else goes through JSON, which takes five times as long.
_LINE = re.compile(
    rb'\{"MetricName": "([^"\\\x00-\x1f\x80-\xff]{1,255})", '
    rb'"Value": (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|"NaN"|"-?Infinity"), '
    rb'"Timestamp": ([0-9]+(?:\.[0-9]+)?)(?:, "Step": (-?[0-9]{1,15}))?(?:, "Epoch": ([0-9]+(?:\.[0-9]+)?))?'
    rb'(?:, "Rank": ([0-9]{1,9}))?\}\r?'
)


class Track:
    """The values of one metric in one process, in its order: four columns of the same length.

    steps, epochs: NaN where nobody said.
    times: seconds since 1970.
    """

    __slots__ = ("epochs", "steps", "times", "values")

    def __init__(self) -> None:
        self.steps, self.epochs, self.times, self.values = (array("d") for _ in range(4))

    def __len__(self) -> int:
        return len(self.values)

    def add(self, step: float, epoch: float, time: float, value: float) -> None:
        """One more point."""
        self.steps.append(step)
        self.epochs.append(epoch)
        self.times.append(time)
        self.values.append(value)

    def take(self, other: Track, keep: range | list[int]) -> None:
        """Adds some of another track's points, by their numbers."""
        if isinstance(keep, range):
            part = slice(keep.start, keep.stop)
            for mine, theirs in zip(self._columns(), other._columns(), strict=True):
                mine.extend(theirs[part])
        else:
            for mine, theirs in zip(self._columns(), other._columns(), strict=True):
                mine.extend(theirs[index] for index in keep)

    def _columns(self) -> tuple[array[float], ...]:
        return self.steps, self.epochs, self.times, self.values


class _File:
    """One file, as far as it has been read."""

    __slots__ = ("inode", "offset", "tracks")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.offset = 0
        self.tracks: dict[tuple[str, int], Track] = {}


class _Events:
    """The event files of one host, as they were when they had these sizes. until: before then they are not read again."""

    __slots__ = ("files", "sizes", "until")

    def __init__(self, sizes: tuple[int, ...], files: list[dict[tuple[str, int], Track]], until: float) -> None:
        self.sizes, self.files, self.until = sizes, files, until


class Columns:
    """The metrics of one run.

    Attributes:
        left_out: how many points have names beyond the first `MOST_NAMES`.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._events: dict[str, _Events] = {}  # by output folder
        self._names: set[str] = set()
        self.left_out = 0

    def read_on(self, outputs: Iterable[str], seconds: float | None = None) -> bool:
        """Reads what is new in the run's files.

        Args:
            outputs: the output folders of its hosts; more of them may have come since the last time.
            seconds: stop after about so long; None for never.

        Returns:
            Whether everything that is there now has been read.
        """
        until = None if seconds is None else time.monotonic() + seconds
        outputs = list(outputs)
        for output in outputs:
            self._read_events(output)
        for path in _files_of(outputs):
            try:
                with open_plain(path, links=False) as file:
                    status = os.fstat(file.fileno())
                    held = self._files.get(path)
                    if held is None or held.inode != status.st_ino or status.st_size < held.offset:
                        held = self._files[path] = _File(status.st_ino)
                    if status.st_size == held.offset:
                        continue
                    file.seek(held.offset)
                    while block := file.read(BLOCK):
                        cut = block.rfind(b"\n") + 1
                        if not cut and len(block) == BLOCK:  # a line that nobody means
                            cut = len(block)
                        if not cut:
                            break
                        self._take(held.tracks, block[:cut])
                        held.offset += cut
                        if until is not None and time.monotonic() >= until:
                            return False
                        file.seek(held.offset)
            except OSError:
                continue
        return True

    def curves(self) -> dict[str, Curve]:
        """One curve for each metric, in the order of their first points: of the lowest rank that measured it.

        Of what an earlier process measured, the steps that a later one made again are left out, as in `series.series_of`.
        """
        events = _curves(tracks for held in self._events.values() for tracks in held.files)
        found = {**events, **_curves(file.tracks for file in self._files.values())}
        return dict(sorted(found.items(), key=lambda item: item[1].track.times[0]))

    def moments(self) -> list[tuple[float, int]]:
        """(time, step) of the metric of one rank that has most of them, of all its processes, oldest first."""
        found: dict[tuple[str, int], list[tuple[float, int]]] = {}
        events = (tracks for held in self._events.values() for tracks in held.files)
        for tracks in (*(file.tracks for file in self._files.values()), *events):
            for key, track in tracks.items():
                told = zip(track.times, track.steps, strict=True)
                found.setdefault(key, []).extend((when, int(step)) for when, step in told if step == step)
        most = max(found, key=lambda key: len(found[key]), default=None)
        return sorted(found[most]) if most is not None else []

    def _read_events(self, output: str) -> None:
        """TensorBoard's event files are read anew where they have grown, for a small part of the time."""
        folder = f"{output}/tensorboard"
        paths = [path for found in event_files.find(folder).values() for path in found]
        sizes = tuple(_size(path) for path in paths)
        held = self._events.get(output)
        began = time.monotonic()
        if not paths or sum(sizes) > _MOST_EVENTS or (held and (held.sizes == sizes or began < held.until)):
            return
        files = []
        for points in event_files.read_files(folder):
            tracks: dict[tuple[str, int], Track] = {}
            for point in points:
                track = tracks.setdefault((point.name, -1 if point.rank is None else point.rank), Track())
                track.add(NAN if point.step is None else float(point.step), NAN, point.time, point.value)
            files.append(tracks)
        ended = time.monotonic()
        self._events[output] = _Events(sizes, files, ended + _PATIENCE * (ended - began))

    def _take(self, tracks: dict[tuple[str, int], Track], block: bytes) -> None:
        for line in block.splitlines():
            match = _LINE.fullmatch(line)
            if match is not None:
                name, value, when, step, epoch, rank = match.groups()
                key = (name.decode(), int(rank) if rank else -1)
                point = (
                    float(step) if step else NAN,
                    float(epoch) if epoch else NAN,
                    float(when),
                    float(value.strip(b'"')),
                )
            else:
                said = point_of(line)
                if said is None:
                    continue
                key = (said.name, -1 if said.rank is None else said.rank)
                step_ = NAN if said.step is None else float(said.step)
                point = (step_, NAN if said.epoch is None else said.epoch, said.time, said.value)
            track = tracks.get(key)
            if track is None:
                if key[0] not in self._names:
                    if len(self._names) >= MOST_NAMES:
                        self.left_out += 1
                        continue
                    self._names.add(key[0])
                track = tracks[key] = Track()
            track.add(*point)


class Curve:
    """One metric of one rank, all its processes joined.

    rank: None where nobody said.
    """

    __slots__ = ("name", "rank", "track")

    def __init__(self, name: str, rank: int | None, track: Track) -> None:
        self.name, self.rank, self.track = name, rank, track

    def steps(self) -> array[float] | None:
        """The steps where every point has one and they grow, else None."""
        return _growing(self.track.steps)

    def epochs(self) -> array[float] | None:
        """The epochs where every point has one and they grow, else None."""
        return _growing(self.track.epochs)

    def numbers(self) -> array[float]:
        """The points' numbers from 1."""
        return array("d", range(1, len(self.track) + 1))


def _curves(files: Iterable[dict[tuple[str, int], Track]]) -> dict[str, Curve]:
    lowest: dict[str, int] = {}
    lives: dict[str, list[Track]] = {}
    for tracks_ in files:
        for (name, rank), track in tracks_.items():
            known = lowest.get(name)
            if known is None or rank < known:
                lowest[name], lives[name] = rank, [track]
            elif rank == known:
                lives[name].append(track)
    found = [Curve(name, rank if (rank := lowest[name]) >= 0 else None, _joined(tracks)) for name, tracks in lives.items()]
    return {curve.name: curve for curve in found}


def _growing(column: array[float]) -> array[float] | None:
    before = -math.inf
    for value in column:
        if not before <= value:  # NaN, too
            return None
        before = value
    return column


def _joined(lives: list[Track]) -> Track:
    if len(lives) == 1:
        return lives[0]
    kept = Track()
    for track in sorted(lives, key=lambda track: track.times[0]):
        first = track.steps[0]
        if first == first and len(kept) and not kept.steps[-1] < first:
            before, kept = kept, Track()
            kept.take(before, [index for index, step in enumerate(before.steps) if not step >= first])
        kept.take(track, range(len(track)))
    return kept


def _files_of(outputs: Iterable[str]) -> list[str]:
    files = []
    for output in outputs:
        for folder in folders_of(output):
            try:
                files += [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith((".json", ".jsonl"))]
            except OSError:
                continue
    return files


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
