"""The metrics file format: JSON lines in `$SAGEMAKER_METRICS_DIRECTORY/<pid>.json`, one object a measurement.

The format is that of Amazon's `sagemaker-experiments` (`{"MetricName", "Value", "Timestamp", "IterationNumber"}`,
seconds since the epoch). Values that JSON has no number for are kept as the strings "NaN", "Infinity", "-Infinity".
The line for the log, `metric loss=0.1234 step=10`, says the same to people and to the platform's regexes.
"""

from __future__ import annotations

import json
import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_PREFIX = "metric "


def metric_line(name: str, value: float, timestamp: float, step: int | None = None) -> str:
    """One line of the metrics file, with its newline."""
    number: float | str = value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    entry: dict[str, object] = {"MetricName": name, "Value": number, "Timestamp": timestamp}
    if step is not None:
        entry["IterationNumber"] = step
    return json.dumps(entry) + "\n"


def log_line(values: Mapping[str, float], places: Mapping[str, int]) -> str:
    """The line for the log: `metric loss=0.1234 step=10` (values first, then where they were measured)."""
    parts = [f"{name}={value:.6g}" for name, value in values.items()] + [f"{name}={place}" for name, place in places.items()]
    return LOG_PREFIX + " ".join(parts)


def regex_of(name: str) -> str:
    """The regex with which the platform finds a metric in such a line; it means the same to Python and to Java."""
    return rf"metric (?:.* )?{re.escape(name)}=(-?[0-9.]+(?:[eE][-+]?[0-9]+)?|nan|-?inf)(?: |$)"
