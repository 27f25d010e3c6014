"""What a run tells of itself: its records (`train` writes one on each host) and its metrics."""

from __future__ import annotations

import glob
import json
import math
import os
from typing import Any

from trainshed.base.errors import TrainshedError, shorten
from trainshed.base.numerals import whole
from trainshed.base.record import Record
from trainshed.contract.wire.fingerprints import RECORD_KEY
from trainshed.metrics.points import Point
from trainshed.metrics.scraper import Scraper, scan_file
from trainshed.metrics.series import Series, read_outputs, series_of
from trainshed.runner.state.records import in_shape
from trainshed.runner.state.stored import is_folder

LARGEST = 64 << 20  # bytes of a record or of a log's end that are read
LOSSES = ("train_loss", "loss", "training_loss")
RATES = ("examples_per_second", "samples_per_second", "train_samples_per_second", "tokens_per_second")


class Facts(Record):
    """One run.

    name: its folder's name.
    state: as the record says it, `Completed` for one that succeeded.
    compiler: the choice, "" where nobody asked for one.
    hosts: how many took part.
    training: seconds that the script ran, on the host where it ran longest; None where no record says so.
    billable: seconds from start to end, times hosts: what a platform that bills by the second takes.
    compiled: what the compiler reported of the first rank, {} without a report.
    losses: (step, loss), in their order.
    rate: the name of the throughput that the script printed, and its last value; None where it printed none.
    data: the digests of each channel's data by its name, one for each that hosts have (docs/data.md); "" for an unknown one.
    """

    name: str
    state: str
    compiler: str
    hosts: int
    training: float | None
    billable: float | None
    compiled: dict[str, Any]
    losses: tuple[tuple[float, float], ...]
    rate: tuple[str, float] | None
    data: dict[str, tuple[str, ...]] = {}  # noqa: RUF012


def read_run(path: str) -> Facts:
    """The facts of one run.

    Args:
        path: a folder of `trainshed run`, a job folder, or a run record.

    Raises:
        TrainshedError: there is no run record, or none that can be read.
    """
    path = os.path.abspath(path)
    found = [path] if os.path.isfile(path) else _records_below(path)
    if not found:
        raise TrainshedError(
            f"{path} holds no run record",
            hint="name a folder of `trainshed run`, a job folder (/opt/ml), or output/data/run/HOST.json",
        )
    records = [(_load(name), name) for name in found]
    records.sort(key=lambda item: item[0].get("cluster", {}).get("rank", 0))
    first, first_path = records[0]
    everything = [record for record, _ in records]
    losses, rate = _metrics(first_path)
    seconds = [record["seconds"] for record in everything if isinstance(record.get("seconds"), (int, float))]
    hosts = len(first.get("cluster", {}).get("hosts") or records)
    compiler = first.get("compiler") or {}
    ranks = compiler.get("ranks") or {}
    return Facts(
        name=os.path.basename(path if os.path.isdir(path) else os.path.dirname(path)) or path,
        state=str(first.get("state", "unknown")),
        compiler=str(compiler.get("choice", "")),
        hosts=hosts,
        training=max(filter(None, map(_training, everything)), default=None),
        billable=max(seconds) * hosts if seconds else None,
        compiled=ranks[min(ranks, key=_as_number)] if ranks else {},
        losses=tuple(losses),
        rate=rate,
        data=_data(everything),
    )


def is_record(path: str) -> bool:
    """Whether a path may be given to `read_run` though it is no run's folder."""
    return os.path.isfile(path) or is_folder(path) or bool(_records_below(path))


def _data(records: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for record in records:
        for channel, one in record.get(RECORD_KEY, {}).items():
            found.setdefault(channel, set()).add(one["digest"])
    return {channel: tuple(sorted(digests)) for channel, digests in sorted(found.items())}


def _as_number(text: str) -> float:
    number = whole(text)
    return math.inf if number is None else number


def _records_below(folder: str) -> list[str]:
    places = ("output/data/run/*.json", "*/output/data/run/*.json", "run/*.json")
    return next((found for place in places if (found := sorted(glob.glob(f"{glob.escape(folder)}/{place}")))), [])


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            value = in_shape(json.loads(file.read(LARGEST)))
    except (OSError, ValueError, RecursionError) as error:
        raise TrainshedError(f"{path} cannot be read as a run record: {shorten(str(error), 200)}") from error
    if "phases" not in value:
        raise TrainshedError(f"{path} is not a run record", hint="run records lie in output/data/run/")
    return value


def _training(record: dict[str, Any]) -> float:
    return sum(phase["seconds"] for phase in record["phases"] if phase.get("name") == "training")


def _log_beside(record: str) -> str:
    """The log of the host's first rank: output/data/run/<host>.json -> output/data/logs/<host>.rank<n>.log."""
    folder, name = os.path.split(record)
    logs = glob.glob(f"{glob.escape(os.path.dirname(folder))}/logs/{glob.escape(name[: -len('.json')])}.rank*.log")
    return min(logs, key=lambda path: _as_number(path.rpartition(".rank")[2].removesuffix(".log")), default="")


def _metrics(record: str) -> tuple[list[tuple[float, float]], tuple[str, float] | None]:
    """(step, loss) pairs and the throughput: from the run's files of metrics, else from the log beside the record."""
    output = os.path.dirname(os.path.dirname(os.path.dirname(record)))
    series = read_outputs(output)
    if not series:
        series = series_of([_logged(_log_beside(record))])
    named = [series[name] for name in LOSSES if name in series and len(series[name].points) > 1]
    losses = [] if not named else list(zip(map(float, named[0].steps()), _values(named[0]), strict=True))
    rates = [(name, _values(series[name])) for name in RATES if name in series]
    return [(step, value) for step, value in losses if math.isfinite(value)], next(
        ((name, values[-1]) for name, values in rates if math.isfinite(values[-1])), None
    )


def _values(series: Series) -> list[float]:
    return [point.value for point in series.points]


def _logged(path: str) -> list[Point]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - LARGEST))
            return list(scan_file(Scraper(), [file.read(LARGEST)], 0.0))
    except OSError:
        return []
