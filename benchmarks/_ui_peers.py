"""The same runs as other tools keep them, written by the Python that has the tool; and how each is started and opened.

PYTHON benchmarks/_ui_peers.py trainshed|trackio|tensorboard|mlflow FOLDER RUNS POINTS
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PHASES = ["Starting", "Training", "Uploading", "Completed"]
HYPERPARAMETERS = {f"p{number}": "1" for number in range(20)}
BEGAN = 1.79e9


class Peer(NamedTuple):
    """A tool's page.

    command: that serves it; FOLDER, PORT and PYTHON stand for themselves. listed, curve: addresses below its own; RUN is the
    key of the long run. chart: a CSS selector of what is there with its curve. tick: of what has to be clicked on before.
    """

    command: tuple[str, ...]
    listed: str
    curve: str
    chart: str
    tick: str = ""


TRACKIO = "import trackio; trackio.show(open_browser=False, server_port=PORT, block_thread=True)"
TENSORBOARD = ("PYTHON", "-m", "tensorboard.main", "--logdir", "FOLDER", "--port", "PORT", "--load_fast", "false")
MLFLOW = ("PYTHON", "-m", "mlflow", "server", "--workers", "1", "--port", "PORT", "--backend-store-uri")
PEERS = {
    "trackio": Peer(("PYTHON", "-c", TRACKIO), "/?project=ui&runs=run-0001", "/?project=ui&runs=run-0000", "canvas"),
    "tensorboard": Peer(
        TENSORBOARD, "/#timeseries", "/?runFilter=run-0000#timeseries", "scalar-card tb-data-table-content-row",
        "runs-data-table mat-checkbox",
    ),
    "mlflow": Peer(
        (*MLFLOW, "sqlite:///FOLDER/mlflow.db"), "/#/experiments/1/runs", "/#/experiments/1/runs/RUN/model-metrics",
        ".js-plotly-plot path.js-line",
    ),
}  # fmt: skip


def values(points: int) -> Iterator[float]:
    """The long curve."""
    for step in range(points):
        yield round(2.0 / (1 + step / 1000) + (step * 7919 % 1000) / 20000, 6)


def trainshed(folder: Path, runs: int, points: int) -> None:
    """Folders of runs as the runner leaves them."""
    for number in range(runs):
        run = folder / f"runs/run-{number:04d}"
        metrics = run / "algo-1/output/metrics/trainshed"
        metrics.mkdir(parents=True)
        stamp = f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:00:00.000+00:00"
        status = {
            "TrainingJobName": run.name, "TrainingJobStatus": "Completed", "SecondaryStatus": "Completed",
            "CreationTime": stamp, "TrainingTimeInSeconds": 60, "BillableTimeInSeconds": 60,
            "ResourceConfig": {"InstanceCount": 1},
            "SecondaryStatusTransitions": [{"Status": name, "StartTime": stamp, "EndTime": stamp} for name in PHASES],
            "FinalMetricDataList": [{"MetricName": "loss", "Value": 0.1}], "HyperParameters": HYPERPARAMETERS,
            "Trainshed": {"Tags": {"team": f"team-{number % 7}"}},
        }  # fmt: skip
        (run / "status.json").write_text(json.dumps(status))
    with (folder / "runs/run-0000/algo-1/output/metrics/trainshed/log.json").open("w") as file:
        for step, value in enumerate(values(points)):
            point = {"MetricName": "loss", "Value": value, "Timestamp": BEGAN + step / 10, "Step": step, "Rank": 0}
            file.write(json.dumps(point) + "\n")


def trackio(folder: Path, runs: int, points: int) -> None:
    """By its own writer, a run at a time."""
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.sqlite_storage import SQLiteStorage

    for number in range(runs):
        logged = [{"loss": value} for value in (values(points) if number == 0 else (0.1,))]
        SQLiteStorage.bulk_log("ui", f"run-{number:04d}", logged, config=HYPERPARAMETERS)


def tensorboard(folder: Path, runs: int, points: int) -> None:
    """By its own writer of event files."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for number in range(runs):
        writer = EventFileWriter(str(folder / f"run-{number:04d}"), max_queue_size=100_000, flush_secs=600)
        for step, value in enumerate(values(points) if number == 0 else (0.1,)):
            summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
            writer.add_event(Event(wall_time=BEGAN + step / 10, step=step, summary=summary))
        writer.close()


def mlflow(folder: Path, runs: int, points: int) -> None:
    """By its client; the long curve into its database, which the client would take many minutes for."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client, params = MlflowClient(f"sqlite:///{folder}/mlflow.db"), [Param(*one) for one in HYPERPARAMETERS.items()]
    place, began = client.create_experiment("ui"), int(BEGAN * 1000)
    for number in range(runs):
        run = client.create_run(place, run_name=f"run-{number:04d}").info.run_id
        client.log_batch(run, metrics=[Metric("loss", 0.1, began, 0)], params=params)
        client.set_terminated(run)
        if number == 0:
            (folder / "long").write_text(run)
    rows = ((value, began + 100 * step, step) for step, value in enumerate(values(points)) if step)
    long, insert = (folder / "long").read_text(), "INSERT INTO metrics (key, value, timestamp, step, run_uuid, is_nan)"
    with sqlite3.connect(f"{folder}/mlflow.db") as base:
        base.executemany(f"{insert} VALUES ('loss', ?, ?, ?, '{long}', 0)", rows)


if __name__ == "__main__":
    lay = {"trainshed": trainshed, "trackio": trackio, "tensorboard": tensorboard, "mlflow": mlflow}[sys.argv[1]]
    os.makedirs(sys.argv[2], exist_ok=True)
    lay(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
