"""Reads the metrics of a run, whatever way they came: the one reader, for all that shows them.

It reads lines of JSON in `output/metrics`, and scalars of TensorBoard's event files in `output/tensorboard`. A point takes
32 bytes, and a file is read on where it has grown.
"""

from __future__ import annotations

import math
import os
import re
import time
from array import array

from trainshed.base.files import open_plain
from trainshed.base.record import Record

from . import event_files
from .points import LONGEST_NAME, Point, point_of, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

    Tracks = dict[tuple[str, int], "Track"]  # by name and rank, -1 where nobody said it

BLOCK = 1 << 20  # bytes between two looks at the clock
RECORDS = 256  # of an event file between two looks at the clock
MOST_NAMES = 2000  # metrics of a run that is read on; a script that makes up names without end costs those beyond
NAN = math.nan
_FOLDERS = ("sagemaker", "trainshed")  # `Paths.metrics`, `Paths.scraped_metrics`
# What `points.line_of` writes; everything else goes through JSON, which takes five times as long.
_LINE = re.compile(
    rb'(?m)^\{"MetricName": "([^"\\\x00-\x1f\x80-\xff]{1,255})", '
    rb'"Value": (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|"NaN"|"-?Infinity"), '
    rb'"Timestamp": ([0-9]+(?:\.[0-9]+)?)(?:, "Step": (-?[0-9]{1,15}))?(?:, "Epoch": ([0-9]+(?:\.[0-9]+)?))?'
    rb'(?:, "Rank": ([0-9]{1,9}))?\}\r?\n'
)


class Summary(Record):
    """One metric of a run in a few numbers. count: 0 where its last value alone is known; the others are NaN then.

    least, most: of the values that are numbers, NaN where none is.
    """

    count: int
    first: float
    last: float
    least: float = NAN
    most: float = NAN


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

    def extend(
        self, values: Sequence[bytes], times: Sequence[bytes], steps: Sequence[bytes], epochs: Sequence[bytes]
    ) -> None:
        """More points, as lines have them."""
        self.values.extend(map(float, values if b'"' not in b"".join(values) else [one.strip(b'"') for one in values]))
        self.times.extend(map(float, times))
        self.steps.extend(float(step) if step else NAN for step in steps)
        self.epochs.extend(float(epoch) if epoch else NAN for epoch in epochs)

    def take(self, other: Track, keep: range | list[int]) -> None:
        """Adds some of another track's points, by their numbers."""
        part = slice(keep.start, keep.stop) if isinstance(keep, range) else None
        for mine, theirs in zip(self._columns(), other._columns(), strict=True):
            mine.extend(theirs[part] if part else (theirs[index] for index in keep))

    def _columns(self) -> tuple[array[float], ...]:
        return self.steps, self.epochs, self.times, self.values


class Curve:
    """One metric of one rank, all its processes joined.

    rank: None where nobody said.
    """

    __slots__ = ("_summary", "name", "rank", "track")

    def __init__(self, name: str, rank: int | None, track: Track) -> None:
        self.name, self.rank, self.track = name, rank, track
        self._summary: Summary | None = None

    def steps(self) -> array[float] | None:
        """The steps where every point has one and they grow, else None."""
        return _growing(self.track.steps)

    def epochs(self) -> array[float] | None:
        """The epochs where every point has one and they grow, else None."""
        return _growing(self.track.epochs)

    def numbers(self) -> array[float]:
        """The points' numbers from 1."""
        return array("d", range(1, len(self.track) + 1))

    def whole_steps(self) -> list[int]:
        """The steps where they grow, else the points' numbers."""
        return list(map(int, self.steps() or self.numbers()))

    def points(self) -> Iterator[Point]:
        """The points one by one."""
        held = self.track
        for value, when, step, epoch in zip(held.values, held.times, held.steps, held.epochs, strict=True):
            yield Point(self.name, value, when, whole(step), None if epoch != epoch else epoch, self.rank)

    def summary(self) -> Summary:
        """Its first, last, least and most value."""
        values = self.track.values
        if self._summary is None or self._summary.count != len(values):
            numbers = [value for value in values if value == value]
            ends = (min(numbers, default=NAN), max(numbers, default=NAN))
            self._summary = Summary(len(values), values[0], values[-1], *ends)
        return self._summary


class MetricsReader:
    """The metrics of one run, read on while they grow.

    Args:
        most_names: how many metrics it may have; None for any number.

    Attributes:
        left_out: how many points have names beyond those.
    """

    def __init__(self, most_names: int | None = MOST_NAMES) -> None:
        self._files: dict[str, _File] = {}
        self._events: dict[str, dict[str, _File]] = {}  # by output folder
        self._names: set[str] = set()
        self._curves: dict[str, Curve] | None = None  # until more is read
        self._most_names = most_names
        self.left_out = 0

    def read_on(self, outputs: Iterable[str], seconds: float | None = None) -> bool:
        """Reads what is new in the run's files.

        Args:
            outputs: the output folders of its hosts; more of them may have come since the last time.
            seconds: stop after about so long; None for never.

        Returns:
            Whether everything that is there now has been read.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        return all(self._read_lines(output, until) and self._read_events(output, until) for output in [*outputs])

    def curves(self) -> dict[str, Curve]:
        """One curve for each metric, in the order of their first points: of the lowest rank that measured it.

        Each file is what one process wrote in its life. A job that was interrupted measures some steps again: of what an
        earlier process measured, those steps are left out, since the model does not come from them. A metric that is in
        lines is not taken from event files.
        """
        if self._curves is None:
            self._curves = self._joined()
        return dict(self._curves)

    def moments(self) -> list[tuple[float, int]]:
        """(time, step) of the metric of one rank that has most of them, of all its processes, oldest first."""
        found: dict[tuple[str, int], list[tuple[float, int]]] = {}
        events = (file for files in self._events.values() for file in files.values())
        for file in (*self._files.values(), *events):
            for key, track in file.tracks.items():
                told = zip(track.times, track.steps, strict=True)
                found.setdefault(key, []).extend((when, int(step)) for when, step in told if step == step)
        most = max(found, key=lambda key: len(found[key]), default=None)
        return sorted(found[most]) if most is not None else []

    def _joined(self) -> dict[str, Curve]:
        events = _curves(tracks for files in self._events.values() for tracks in _tagged([*files.values()]))
        found = {**events, **_curves(file.tracks for file in self._files.values())}
        return dict(sorted(found.items(), key=lambda item: item[1].track.times[0]))

    def _read_lines(self, output: str, until: float) -> bool:
        for path in _files_of(output):
            try:
                with open_plain(path, links=False) as file:
                    held = self._held(self._files, path, file)
                    while cut := _whole_lines(file.read(BLOCK)):
                        self._curves = None
                        self._take(held.tracks, cut)
                        held.offset += len(cut)
                        if time.monotonic() >= until:
                            return False
                        file.seek(held.offset)
            except OSError:
                continue
        return True

    def _read_events(self, output: str, until: float) -> bool:
        files = self._events.setdefault(output, {})
        for place, paths in event_files.find(f"{output}/tensorboard").items():
            for path in paths:
                try:
                    with open_plain(path) as file:
                        held = self._held(files, path, file, place)
                        for number, (held.offset, points) in enumerate(event_files.records(file), 1):
                            self._curves = None
                            for point in points:
                                step = NAN if point.step is None else point.step
                                self._add(held.tracks, (point.name, -1), (step, NAN, point.time, point.value))
                            if number % RECORDS == 0 and time.monotonic() >= until:
                                return False
                except OSError:
                    continue
        return True

    def _held(self, files: dict[str, _File], path: str, file: BinaryIO, place: str = "") -> _File:
        """What is held of an open file, which then stands where it was read to; nothing of one that was written anew."""
        status = os.fstat(file.fileno())
        held = files.get(path)
        if held is None or held.inode != status.st_ino or status.st_size < held.offset:
            held = files[path] = _File(status.st_ino, place)
            self._curves = None
        file.seek(held.offset)
        return held

    def _take(self, tracks: Tracks, lines: bytes) -> None:
        found = _LINE.findall(lines)
        if len(found) < lines.count(b"\n"):  # somebody else's lines are among them, which wants a look at each
            for line in lines.splitlines():
                self._take_one(tracks, line)
            return
        rows: dict[tuple[bytes, bytes], list[tuple[bytes, ...]]] = {}
        for name, value, when, step, epoch, rank in found:
            rows.setdefault((name, rank), []).append((value, when, step, epoch))
        for (name, rank), points in rows.items():
            track = self._track(tracks, (name.decode(), int(rank) if rank else -1), len(points))
            if track is not None:
                track.extend(*zip(*points, strict=True))

    def _take_one(self, tracks: Tracks, line: bytes) -> None:
        if (said := point_of(line)) is not None:
            where = (NAN if said.step is None else said.step, NAN if said.epoch is None else said.epoch, said.time)
            self._add(tracks, (said.name, -1 if said.rank is None else said.rank), (*where, said.value))

    def _add(self, tracks: Tracks, key: tuple[str, int], point: tuple[float, float, float, float]) -> None:
        track = self._track(tracks, key, 1)
        if track is not None:
            track.add(*point)

    def _track(self, tracks: Tracks, key: tuple[str, int], count: int) -> Track | None:
        """What takes `count` points of a metric; None where there are too many metrics already."""
        track = tracks.get(key)
        if track is None:
            if self._most_names is not None and key[0] not in self._names and len(self._names) >= self._most_names:
                self.left_out += count
                return None
            self._names.add(key[0])
            track = tracks[key] = Track()
        return track


def read(outputs: Iterable[str]) -> dict[str, Curve]:
    """The curves of a run as its files are now: all of them, for each metric that of the lowest rank that measured it.

    Args:
        outputs: its hosts' output folders.
    """
    reader = MetricsReader(None)
    reader.read_on(outputs)
    return reader.curves()


def by_step(curves: Iterable[Curve]) -> list[tuple[int, dict[str, float]]]:
    """Each step with the last value of each metric at it, in the order of the steps."""
    rows: dict[int, dict[str, float]] = {}
    for one in curves:
        for value, step in zip(one.track.values, one.whole_steps(), strict=True):
            rows.setdefault(step, {})[one.name] = value
    return sorted(rows.items())


def curves_of(points: Iterable[Point]) -> dict[str, Curve]:
    """The curves of points that one process measured."""
    tracks: Tracks = {}
    for point in points:
        key = (point.name, -1 if point.rank is None else point.rank)
        step, epoch = (NAN if place is None else place for place in (point.step, point.epoch))
        tracks.setdefault(key, Track()).add(step, epoch, point.time, point.value)
    return _curves([tracks])


def folders_of(output: str) -> tuple[str, ...]:
    """The folders of lines in a host's output folder."""
    return tuple(f"{output}/metrics/{name}" for name in _FOLDERS)


class _File:
    """One file, as far as it has been read. place: of an event file, its folder below `tensorboard`."""

    __slots__ = ("inode", "offset", "place", "tracks")

    def __init__(self, inode: int, place: str) -> None:
        self.inode, self.place = inode, place
        self.offset = 0
        self.tracks: Tracks = {}


def _whole_lines(block: bytes) -> bytes:
    """The block up to its last newline; all of one that has none, since nobody means such a line."""
    return block[: block.rfind(b"\n") + 1] or (block if len(block) == BLOCK else b"")


def _files_of(output: str) -> list[str]:
    """Its files of lines."""
    found = []
    for folder in folders_of(output):
        try:
            found += [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith((".json", ".jsonl"))]
        except OSError:
            continue
    return found


def _tagged(files: list[_File]) -> Iterator[Tracks]:
    """The tracks of a host's event files: where several folders have a tag, as those of Keras, by folder and tag."""
    places: dict[str, set[str]] = {}
    for file in files:
        for name, _ in file.tracks:
            places.setdefault(name, set()).add(file.place)
    for file in files:
        yield {
            ((f"{file.place}/{name}" if file.place and len(places[name]) > 1 else name)[-LONGEST_NAME:], rank): track
            for (name, rank), track in file.tracks.items()
        }


def _curves(files: Iterable[Tracks]) -> dict[str, Curve]:
    lowest: dict[str, int] = {}
    lives: dict[str, list[Track]] = {}
    for tracks in files:
        for (name, rank), track in tracks.items():
            known = lowest.get(name)
            if known is None or rank < known:
                lowest[name], lives[name] = rank, [track]
            elif rank == known:
                lives[name].append(track)
    return {name: Curve(name, lowest[name] if lowest[name] >= 0 else None, _joined(held)) for name, held in lives.items()}


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
        if any(step >= first for step in kept.steps):
            before, kept = kept, Track()
            kept.take(before, [index for index, step in enumerate(before.steps) if not step >= first])
        kept.take(track, range(len(track)))
    return kept
