"""Folders of runs as `trainshed run` leaves them, without running anything: for tests of what reads them in bulk."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainshed.metrics.points import Point, line_of
from trainshed.runner.state import identity
from trainshed.runner.state.status import iso

STARTED = 1_790_000_000.0  # seconds since the epoch: 2026-09-21


def lay_run(
    folder: Path,
    *,
    state: str = "Completed",
    hps: Mapping[str, str] | None = None,
    metrics: Mapping[str, Sequence[float]] | None = None,
    tags: Mapping[str, str] | None = None,
    started: float = STARTED,
    seconds: float = 60.0,
    **status: Any,
) -> Path:
    """A run's folder.

    Args:
        hps: as `job.json` has them, each as text.
        metrics: the values of each, one a step.
        seconds: from start to end.
        status: further fields of `status.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run_id = uuid.uuid4().hex
    place = identity.of_folder(str(folder))
    job = {"name": folder.name, "program": "train.py", "hyperparameters": dict(hps or {}), "tags": dict(tags or {})}
    about = {"format": 1, "run": folder.name, "id": run_id, **place, "started": iso(started), "started_seconds": started}
    (folder / "job.json").write_text(json.dumps({**about, "job": job}))
    ended = {"TrainingEndTime": iso(started + seconds)} if state in ("Completed", "Failed", "Stopped") else {}
    made = {
        "TrainingJobName": folder.name, "TrainingJobStatus": state, "SecondaryStatus": state,
        "HyperParameters": dict(hps or {}),
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 1}, "CreationTime": iso(started),
        "LastModifiedTime": iso(started + seconds), **ended,
        "Trainshed": {"RunId": run_id, **place, "ExitCode": 0, **({"Tags": dict(tags)} if tags else {})}, **status,
    }  # fmt: skip
    if metrics:
        files = folder / "algo-1/output/metrics/trainshed"
        files.mkdir(parents=True, exist_ok=True)
        points = [
            Point(name, value, started + step, step) for name, values in metrics.items() for step, value in enumerate(values)
        ]
        (files / "log.json").write_text("".join(map(line_of, points)))
    (folder / "status.json.new").write_text(json.dumps(made))
    (folder / "status.json.new").replace(folder / "status.json")
    return folder
