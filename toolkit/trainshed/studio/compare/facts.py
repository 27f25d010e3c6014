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
from trainshed.metrics.reading import Curve, MetricsReader, Summary
from trainshed.runner.state.outputs import metrics_in, metrics_of
from trainshed.runner.state.records import in_shape
from trainshed.runner.state.stored import is_folder, load

LARGEST = 64 << 20  # bytes of a record that are read
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
    rate: the name of the throughput that was measured, and its last value; None where there is none.
    data: the digests of each channel's data by its name, one for each that hosts have (docs/data.md); "" for an unknown one.
    metrics: the last value of each.
    folder: where its files are.
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
    metrics: dict[str, float] = {}  # noqa: RUF012
    folder: str = ""


def read_run(path: str) -> Facts:
    """The facts of one run.

    Args:
        path: a folder of `trainshed run`, a job folder, or a run record.

    Raises:
        TrainshedError: there is no run record, or none that can be read.
    """
    path = os.path.abspath(path)
    found = [path] if os.path.isfile(path) else _records_below(path)
    if not found and not load(path).status:
        raise TrainshedError(
            f"{path} holds no run record",
            hint="name a folder of `trainshed run`, a job folder (/opt/ml), or output/data/run/HOST.json",
        )
    records = [(_load(name), name) for name in found] or [_without_record(path)]
    records.sort(key=lambda item: item[0].get("cluster", {}).get("rank", 0))
    first, first_path = records[0]
    everything = [record for record, _ in records]
    reader = MetricsReader(None)
    job_folder = os.path.abspath(f"{first_path}/../../../..")  # of JOB/output/data/run/HOST.json
    folder = min(path, job_folder, key=len)  # a run's folder has a job folder for each host
    metrics = metrics_of(folder, metrics_in(load(folder).status), reader)
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
        losses=tuple(_losses(reader.curves())),
        rate=_rate(metrics),
        data=_data(everything),
        metrics={name: one.last for name, one in metrics.items()},
        folder=folder,
    )


def _without_record(folder: str) -> tuple[dict[str, Any], str]:
    """What stands in for the record of a run that has left none (it goes on, or was killed), and where it would be."""
    state = load(folder).status.get("TrainingJobStatus", "unknown")
    return {"state": state, "phases": []}, f"{folder}/algo-1/output/data/run/algo-1.json"


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


def _losses(curves: dict[str, Curve]) -> list[tuple[float, float]]:
    """(step, loss) pairs."""
    named = next((curves[name] for name in LOSSES if name in curves and len(curves[name].track) > 1), None)
    pairs = zip(map(float, named.whole_steps()), named.track.values, strict=True) if named else ()
    return [(step, value) for step, value in pairs if math.isfinite(value)]


def _rate(metrics: dict[str, Summary]) -> tuple[str, float] | None:
    """The throughput that the run has measured."""
    rates = ((name, metrics[name].last) for name in RATES if name in metrics)
    return next(((name, value) for name, value in rates if math.isfinite(value)), None)
