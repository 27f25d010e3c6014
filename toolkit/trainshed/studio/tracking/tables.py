"""Metrics of runs as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import TextIO

from trainshed.metrics.reading import by_step

from .exported import Exported

LONG = ("run", "name", "rank", "step", "epoch", "time", "value")


def write_long(out: TextIO, runs: Iterable[Exported]) -> int:
    """One row for each value: `LONG`, times in seconds since 1970, nothing where nobody said. Returns how many values."""
    table, count = csv.writer(out), 0
    table.writerow(LONG)
    for run in runs:
        for one in run.series:
            rows = [(run.name, one.name, p.rank, p.step, p.epoch, p.time, p.value) for p in one.points()]
            table.writerows(rows)
            count += len(rows)
    return count


def write_wide(out: TextIO, runs: Iterable[Exported]) -> int:
    """One row for each run and step, one column for each metric: the last value at that step. Returns how many rows."""
    held = list(runs)
    names = sorted({one.name for run in held for one in run.series})
    table, count = csv.writer(out), 0
    table.writerow(("run", "step", *names))
    for run in held:
        for step, values in by_step(run.series):
            table.writerow((run.name, step, *(values.get(name, "") for name in names)))
            count += 1
    return count
