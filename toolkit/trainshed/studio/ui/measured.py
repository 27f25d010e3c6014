"""The machines and steps of a run for the page: its samples, read on as they come, and where the time of a step goes.

Files are the job's: of each of them only what fits the charts stays in memory, thinned by the sampler's own bound.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import OrderedDict
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.files import open_plain
from trainshed.observe.bottleneck import verdict_of
from trainshed.observe.place import profiler_folder
from trainshed.observe.steps import FOLDER, PHASES, RankSteps, read_rank
from trainshed.observe.system import files_below, sample_of
from trainshed.runner.state.outputs import attempts_of
from trainshed.studio.pages.chart import SECONDS, Chart, Line
from trainshed.studio.pages.curves import Window
from trainshed.studio.pages.machine_charts import is_charted, machine_charts
from trainshed.studio.pages.thin import thin

from .plots import sendable, window_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.observe.system import Curves

READ_SECONDS = 0.4  # for what is new, of one request
MOST_KEPT = 8  # runs whose samples stay in memory
MOST_HOSTS = 16
MOST_LINES = 16  # of a chart
MOST_RANKS = 64
# The sampler and the ranks stay far below these; whoever writes more is not shown beyond them.
MOST_BYTES = 64 << 20  # of a file of samples
MOST_STEP_BYTES = 16 << 20  # of a rank's file
MOST_FILES = 5000  # of samples, the latest ones
_BLOCK = 1 << 18
_STEP_TITLE = "Milliseconds of a step"
Signature = tuple[int, int, int]


class _Samples:
    """One file of samples, as far as it has been read."""

    def __init__(self) -> None:
        self.place, self.inode = 0, -1
        self.curves: dict[tuple[str, str, str, str], tuple[array[float], array[float]]] = {}

    def read_on(self, path: str, until: float) -> bool:
        """Takes what is new; whether that is all. A file that was written anew, as the sampler does, is read anew."""
        try:
            with open_plain(path, links=False) as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self.inode or found.st_size < self.place:
                    self.place, self.inode, self.curves = 0, found.st_ino, {}
                size = min(found.st_size, MOST_BYTES)
                file.seek(self.place)
                while self.place < size:
                    if time.monotonic() > until:
                        return False
                    block = file.read(_BLOCK)
                    whole = block[: block.rfind(b"\n") + 1]
                    if not whole and len(block) == _BLOCK:  # nobody writes such a line
                        whole = block
                    if not whole:
                        break
                    self.place += len(whole)
                    file.seek(self.place)
                    self._take(whole.splitlines())
        except OSError:
            pass
        return True

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if b'"cpu"' in line and b'"cpus"' not in line:  # of one core: most lines of a large machine
                continue
            sample = sample_of(line)
            if sample is None or not is_charted(*sample[0][1:]):
                continue
            key, moment, value = sample
            times, values = self.curves.setdefault(key, (array("d"), array("d")))
            times.append(moment)
            values.append(value)


class _Kept:
    """What has been read of one run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.samples: dict[str, _Samples] = {}
        self.ranks: dict[str, tuple[Signature, RankSteps | None]] = {}

    def read_on(self, folders: list[str], until: float) -> bool:
        """Reads what is new in the profiler's folders, the latest first; whether that is all."""
        whole = True
        files = sorted((path for folder in folders for path in files_below(folder)), key=os.path.basename, reverse=True)
        present = dict.fromkeys(files[:MOST_FILES])
        for path in present:
            held = self.samples.setdefault(path, _Samples())
            whole = held.read_on(path, until) and whole
        for path in self.samples.keys() - present:
            del self.samples[path]
        for path, signature in _files_of_ranks(folders):
            known = self.ranks.get(path)
            if known is not None and known[0] == signature:
                continue
            if time.monotonic() > until and known is not None:
                whole = False
                continue
            self.ranks[path] = (signature, read_rank(path))
        return whole

    def curves(self) -> Curves:
        """All samples in the order of time."""
        found: Curves = {}
        for path in sorted(self.samples, key=os.path.basename):
            for key, (times, values) in self.samples[path].curves.items():
                found.setdefault(key, []).extend(zip(times, values, strict=True))
        for points in found.values():
            points.sort()
        return found

    def steps(self) -> list[RankSteps]:
        """What the ranks have measured, by rank, the later lives later."""
        known = [one for _, one in self.ranks.values() if one is not None]
        return sorted(known, key=lambda one: (one.rank, one.windows[0].time))


class Machines:
    """The samples and steps of the runs that were looked at last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def charts(self, folder: str, asked: dict[str, Any]) -> dict[str, Any]:
        """The charts of a run's machines and steps.

        Args:
            asked: by the page, as for `Plots.charts`.

        Returns:
            charts, titles, whole: as of `Plots.charts`. verdict: what holds the run up, "" where nothing was measured.
            steps: of each rank [name, milliseconds of a step, [[phase, milliseconds], ...]].
        """
        until = time.monotonic() + READ_SECONDS
        with self._lock:
            kept = self._kept.setdefault(folder, _Kept())
            self._kept.move_to_end(folder)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        outputs = [output for hosts in attempts_of(folder) for output, _ in hosts[:MOST_HOSTS]]
        with kept.lock:
            whole = kept.read_on([profiler_folder(output) for output in outputs], until)
            curves, measured = kept.curves(), kept.steps()
        begins = [points[0][0] for points in curves.values()]
        begins += [one.windows[0].time - one.windows[0].seconds for one in measured]
        start = min(begins, default=0.0)
        verdict = verdict_of(measured, curves) if measured else None
        ranks = list({one.rank: one for one in measured}.values())[:MOST_RANKS]  # of several lives the last one
        return {
            **_charts(curves, ranks, start, asked),
            "whole": whole,
            "verdict": one_line(verdict.sentence())[:1200] if verdict is not None else "",
            "steps": [_mean_step(one) for one in ranks if one.seconds > 0],
        }


def _files_of_ranks(folders: list[str]) -> list[tuple[str, Signature]]:
    found = []
    for folder in folders:
        try:
            with os.scandir(f"{folder}/{FOLDER}") as entries:
                for entry in entries:
                    if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                        status = entry.stat()
                        if status.st_size <= MOST_STEP_BYTES:
                            found.append((entry.path, (status.st_ino, status.st_size, status.st_mtime_ns)))
        except OSError:
            continue
    return sorted(found)


def _mean_step(one: RankSteps) -> list[Any]:
    phases = [[name, round(1000 * seconds / one.steps, 4)] for name, seconds in one.phases().items() if seconds > 0]
    return [f"rank {one.rank}", round(1000 * one.seconds / one.steps, 4), phases]


def _charts(curves: Curves, ranks: list[RankSteps], start: float, asked: dict[str, Any]) -> dict[str, Any]:
    """(title, lines) of each chart, thinned; those that the page has are left out."""
    known = asked.get("known")
    known = known if isinstance(known, dict) else {}
    wanted, window = asked.get("title"), window_of(asked)
    charts, titles = [], []
    for title, most, lines in _every_chart(curves, ranks, start):
        count = sum(len(values) for _, _, values in lines)
        titles.append(title)
        if wanted == title if isinstance(wanted, str) else known.get(title) != count:
            charts.append(_chart(title, most, lines[:MOST_LINES], window, count))
    return {"charts": charts, "titles": titles}


def _every_chart(curves: Curves, ranks: list[RankSteps], start: float) -> list[tuple[str, float | None, list[Any]]]:
    found: list[tuple[str, float | None, list[Any]]] = []
    if ranks:
        lines = [_step_line(f"rank {one.rank}", one, start) for one in ranks]
        found.append((_STEP_TITLE, None, lines))
        slow = max(ranks, key=lambda one: one.seconds / one.steps)
        parts = [_step_line(phase, slow, start, phase) for phase in PHASES if slow.phases()[phase] > 0]
        found.append((f"{_STEP_TITLE} of rank {slow.rank}, by phase", None, parts))
    for chart in machine_charts(curves):
        lines = [
            (name, array("d", (at - start for at, _ in points)), array("d", (chart.scale * value for _, value in points)))
            for name, points in chart.lines.items()
        ]
        found.append((chart.title, chart.most, lines))
    return found


def _step_line(name: str, one: RankSteps, start: float, phase: str = "") -> tuple[str, array[float], array[float]]:
    """A rank's steps over time, or one phase of them, in milliseconds."""
    spent = [window.phases.get(phase, 0.0) if phase else window.seconds for window in one.windows]
    times = sorted(max(0.0, window.time - start) for window in one.windows)
    return name, array("d", times), array("d", (1000 * s / w.steps for s, w in zip(spent, one.windows, strict=True)))


def _chart(title: str, most: float | None, lines: list[Any], window: Window, count: int) -> dict[str, Any]:
    drawn = tuple(Line(name, thin(times, values, *window)) for name, times, values in lines)
    return sendable(Chart(title, drawn, SECONDS, least=0.0, most=most, simple=True), count)
