"""Finds what the hosts of a run, and of its earlier attempts, have left: their output folders, and the metrics in them."""

from __future__ import annotations

import math
import os
import re

from trainshed.base.files import leads_away, listed
from trainshed.base.numerals import whole
from trainshed.base.plain_json import finite
from trainshed.metrics.reading import MetricsReader, Summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_HOST = re.compile(r"algo-([0-9]{1,4})")


def attempts_of(folder: str) -> list[list[tuple[str, str]]]:
    """Of each attempt in a run's folder, the present one last, the hosts' output folders and those of their data."""
    earlier = sorted(filter(None, (whole(name) for name in listed(f"{folder}/attempts"))))
    found = [_hosts(f"{folder}/attempts/{number}") for number in earlier]
    return [hosts for hosts in (*found, _hosts(folder)) if hosts]


def outputs_of(folder: str) -> list[str]:
    """Every folder that may hold metrics of the run, also where it is a job folder (/opt/ml)."""
    return [f"{folder}/output", *(output for hosts in attempts_of(folder) for output, _ in hosts)]


def metrics_of(
    folder: str, known: Mapping[str, Summary] | None = None, reader: MetricsReader | None = None
) -> dict[str, Summary]:
    """What a run has measured so far, by name: the one truth that every view shows.

    Args:
        known: from elsewhere (its log, its status); counts for metrics that are not in its files.
        reader: what has been read of it before, to be read on.
    """
    reader = MetricsReader(None) if reader is None else reader
    reader.read_on(outputs_of(folder))
    found = {name: curve.summary() for name, curve in reader.curves().items()}
    return {**found, **{name: one for name, one in (known or {}).items() if name not in found}}


def last_values(folder: str, status: Mapping[str, Any]) -> dict[str, float]:
    """The last value of each metric of a run, NaN and infinities as such. status: of the run."""
    return {name: one.last for name, one in metrics_of(folder, metrics_in(status)).items()}


def metrics_in(status: Mapping[str, Any]) -> dict[str, Summary]:
    """The metrics that a run's status tells, by their last values; what has another form is left out."""
    listed = status.get("FinalMetricDataList")
    told = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    pairs = ((one.get("MetricName"), _value(one.get("Value"))) for one in told)
    return {name: Summary(0, math.nan, value) for name, value in pairs if isinstance(name, str) and value is not None}


def as_final_metrics(metrics: Mapping[str, Summary], stamp: str) -> list[dict[str, Any]]:
    """Metrics in the form of the platform's FinalMetricDataList; values that are not finite are texts."""
    return [{"MetricName": name, "Value": finite(one.last), "Timestamp": stamp} for name, one in metrics.items()]


def _value(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None


def _hosts(folder: str) -> list[tuple[str, str]]:
    numbers = sorted(int(match[1]) for name in listed(folder) if (match := _HOST.fullmatch(name)))
    outputs = [f"{folder}/algo-{number}/output" for number in numbers]
    # A job could have made a link of each, to have another folder shown.
    found = [(output, f"{output}/data") for output in outputs if os.path.isdir(output)]
    return [(output, data) for output, data in found if not leads_away(folder, data)]
