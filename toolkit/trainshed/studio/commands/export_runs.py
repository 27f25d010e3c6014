"""The part of `trainshed export` that hands on runs: to spreadsheets, TensorBoard, MLflow."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, TrainshedError
from trainshed.cli import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.runner.state.stored import Stored


def run(options: Namespace) -> int:
    """Hands on the runs; returns the exit status. Raises TrainshedError."""
    from trainshed.runner.state.stored import find

    runs = [find(name, os.environ) for name in options.runs]
    if options.place == "csv":
        return _csv(runs, wide=options.wide, path=options.output)
    if options.place == "tensorboard":
        return _tensorboard(runs, options.output)
    return _mlflow(runs, options)


def _csv(runs: list[Stored], *, wide: bool, path: str) -> int:
    from trainshed.studio.tracking.exported import exported
    from trainshed.studio.tracking.tables import write_long, write_wide

    write = write_wide if wide else write_long
    if not path:
        write(sys.stdout, map(exported, runs))
        return EXIT_SUCCESS
    import io

    from trainshed.base.files import write_atomic

    text = io.StringIO(newline="")
    count = write(text, map(exported, runs))
    try:
        write_atomic(path, text.getvalue())
    except OSError as error:
        raise TrainshedError(f"{path} cannot be written: {error.strerror}") from error
    say(f"{path}: {count} {'rows' if wide else 'values'} of {len(runs)} runs")
    return EXIT_SUCCESS


def _tensorboard(runs: list[Stored], folder: str) -> int:
    from trainshed.metrics.tensorboard import replace
    from trainshed.studio.tracking.exported import exported

    for one in map(exported, runs):
        count, others = replace(f"{folder}/{one.name}", one.series, one.media)
        more = f", {others} pictures and the like" if others else ""
        say(f"{folder}/{one.name}: {count} values of {len(one.series)} metrics{more}")
    return EXIT_SUCCESS


def _mlflow(runs: list[Stored], options: Namespace) -> int:
    from trainshed.studio.tracking.exported import exported
    from trainshed.studio.tracking.mlflow_store import alone_with, open_run, send_all

    for stored in runs:
        one = exported(stored)
        name = options.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment_of(stored)
        with alone_with(one.folder):
            store = open_run(one, options.to, name)
            count, others, files = send_all(one, store, model=options.model)
        more = f", {others} pictures and the like" if others else ""
        model = f", {files} files of the model" if options.model else ""
        say(f"{one.name}: {count} values sent{more}{model}; run {store.id} of the experiment {name}")
    return EXIT_SUCCESS


def experiment_of(run: Stored) -> str:
    """The experiment of a run that names none: its job's name."""
    job = run.about.get("job")
    name = job.get("name") if isinstance(job, dict) else ""
    return name if isinstance(name, str) and name else "trainshed"
