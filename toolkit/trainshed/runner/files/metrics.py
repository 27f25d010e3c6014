"""Metrics of a run while its log goes by: first and last values, for the screen and for status.json.

The points themselves are in files that `train` and the script write (`output/metrics`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainshed.metrics.points import PLACES
from trainshed.metrics.scraper import Scraper

# What `train` itself says, which may quote lines of the script.
_OWN = b"trainshed: "
_OURS = re.compile(rb"(?:\[[^\]\n]*\] )*" + _OWN)


@dataclass
class Summary:
    """One metric: its first and its last value."""

    first: float
    last: float
    count: int = 1


@dataclass
class Metrics:
    """The metrics that were seen so far."""

    scraper: Scraper = field(default_factory=Scraper)
    series: dict[str, Summary] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

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
                self.series[point.name] = Summary(point.value, point.value)
            else:
                series.last = point.value
                series.count += 1

    def finish(self) -> None:
        """The log has ended: `remarks` is whole."""
        self.remarks += self.scraper.finish()

    def now(self) -> list[str]:
        """For the status line: step and epoch, loss, throughput; without a loss the last two metrics."""
        places = self.scraper.places
        parts = [f"{name} {places[name]}"[:30] for name in sorted(PLACES & places.keys(), reverse=True) if name != "rank"]
        shown = [name for name in self.series if "loss" in name.lower()][:2]
        shown += [name for name in self.series if "per_sec" in name or "throughput" in name.lower()][:1]
        for name in shown or list(self.series)[-2:]:
            parts.append(f"{name} {self.series[name].last:.4g}")
        return parts
