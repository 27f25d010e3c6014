"""Follows the metrics of a run while its log goes by, for the line of status, and at its end, for what closes it.

The points themselves are in files that `train` and the script write (`output/metrics`). They count before what the log says.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainshed.metrics.points import PLACES
from trainshed.metrics.reading import MetricsReader, Summary
from trainshed.metrics.scraper import Scraper

READ_SECONDS = 0.05  # for what is new in files, of one look
# What `train` itself says, which may quote lines of the script.
_OWN = b"trainshed: "
_OURS = re.compile(rb"(?:\[[^\]\n]*\] )*" + _OWN)


@dataclass
class Seen:
    """One metric of the log: its first and its last value."""

    first: float
    last: float
    count: int = 1


@dataclass
class Metrics:
    """The metrics that were seen so far.

    final: what the run has measured, whatever way it came; known when it is over.
    """

    scraper: Scraper = field(default_factory=Scraper)
    series: dict[str, Seen] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    final: dict[str, Summary] = field(default_factory=dict)
    reader: MetricsReader = field(default_factory=MetricsReader)

    @staticmethod
    def of(definitions: Iterable[tuple[str, str]], format: str = "auto") -> Metrics:
        """For a job's definitions.

        Args:
            format: the job's setting `metrics`.
        """
        return Metrics(Scraper(definitions, format))

    def scan(self, block: bytes) -> None:
        """Takes whole lines."""
        if _OWN in block:
            block = b"".join(line for line in block.splitlines(keepends=True) if not _OURS.match(line))
        for point in self.scraper.scan(block, time.time()):
            series = self.series.get(point.name)
            if series is None:
                self.series[point.name] = Seen(point.value, point.value)
            else:
                series.last = point.value
                series.count += 1

    def finish(self) -> None:
        """The log has ended: `remarks` is whole."""
        self.remarks += self.scraper.finish()

    def known(self) -> dict[str, Summary]:
        """What the log has told."""
        return {name: Summary(one.count, one.first, one.last) for name, one in self.series.items()}

    def now(self, outputs: Iterable[str] = ()) -> list[str]:
        """For the status line: step and epoch, loss, throughput; without a loss the last two metrics.

        Args:
            outputs: the hosts' output folders, whose metrics are shown where the log tells none.
        """
        places, last = self.scraper.places, {name: one.last for name, one in self.series.items()}
        if not last:
            self.reader.read_on(outputs, READ_SECONDS)
            curves = self.reader.curves().values()
            last = {one.name: one.track.values[-1] for one in curves}
            steps = [int(step) for one in curves if (step := one.track.steps[-1]) == step]
            places = {"step": max(steps)} if steps else {}
        parts = [f"{name} {places[name]}"[:30] for name in sorted(PLACES & places.keys(), reverse=True) if name != "rank"]
        shown = [name for name in last if "loss" in name.lower()][:2]
        shown += [name for name in last if "per_sec" in name or "throughput" in name.lower()][:1]
        return parts + [f"{name} {last[name]:.4g}" for name in shown or list(last)[-2:]]
