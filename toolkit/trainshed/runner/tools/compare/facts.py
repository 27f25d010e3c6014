"""What a run tells of itself: its records (`train` writes one on each host) and the metrics in the first host's log."""

from __future__ import annotations

import ast
import glob
import json
import math
import os
import re
from typing import Any

from trainshed.base.errors import TrainshedError, shorten
from trainshed.base.numerals import whole
from trainshed.base.record import Record
from trainshed.runner.files.metrics import LOG_PREFIX
from trainshed.runner.state.records import in_shape

LARGEST = 64 << 20  # bytes of a record or of a log's end that are read
LOSSES = ("train_loss", "loss", "training_loss")
RATES = ("examples_per_second", "samples_per_second", "train_samples_per_second", "tokens_per_second")
_PAIR = re.compile(r"([A-Za-z_][\w./:-]*)=(\S+)")


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
    losses, rate = _metrics(_log_beside(first_path))
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
    )


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


def _metrics(path: str) -> tuple[list[tuple[float, float]], tuple[str, float] | None]:
    """(step, loss) pairs and the throughput: from `metric ...` lines, and from the Trainer's dictionaries."""
    losses: dict[str, list[tuple[float, float]]] = {}
    rates: dict[str, float] = {}
    for values in _lines(path):
        for name, value in values.items():
            if name in LOSSES:
                series = losses.setdefault(name, [])
                series.append((values.get("step", float(len(series) + 1)), value))
            elif name in RATES:
                rates[name] = value
    series = next((losses[name] for name in LOSSES if len(losses.get(name, ())) > 1), [])
    return series, next(((name, rates[name]) for name in RATES if name in rates), None)


def _lines(path: str) -> list[dict[str, float]]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - LARGEST))
            text = file.read(LARGEST).decode("utf-8", "replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        if line.startswith(LOG_PREFIX):
            found.append(_numbers(dict(_PAIR.findall(line))))
        elif line.startswith("{'") and line.endswith("}"):  # what transformers' Trainer prints
            try:
                value = ast.literal_eval(line)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(value, dict):
                found.append(_numbers(value))
    return found


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number):
            found[str(name)] = number
    return found
