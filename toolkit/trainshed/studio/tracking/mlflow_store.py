"""One run of ours in MLflow: found by its key or made, and sent what it lacks, so that sending twice doubles nothing."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from trainshed.base.errors import TrainshedError, one_line, shorten
from trainshed.base.files import read_object, write_atomic
from trainshed.base.secrets import mask_text
from trainshed.metrics.media_reading import Medium
from trainshed.metrics.points import Point
from trainshed.runner.files.run import MLFLOW

from .exported import Exported
from .mlflow_names import LONGEST_PARAMETER, LONGEST_TAG, METRICS_A_BATCH, TEXTS_A_BATCH, cut, mlflow_name

NOTED = MLFLOW  # in a run's folder: `run_id`; `theirs`: metrics, as MLflow has them, that the script itself sends
LOCK_SECONDS = 60.0
KEY = "trainshed.run_id"  # the tag by which a run is found again
_STATUS = {"Completed": "FINISHED", "Failed": "FAILED", "Stopped": "KILLED"}
Value = tuple[str, int, int, float]  # name, milliseconds since 1970, step, value


class MlflowError(TrainshedError):
    """MLflow is not there, does not answer, or refuses."""


class MlflowRun:
    """One run in MLflow.

    Attributes:
        id: MLflow's own.
    """

    def __init__(self, client: Any, run_id: str, address: str, *, given: bool = False) -> None:
        self._client = client
        self._address = address
        self._given = given
        self.id = run_id

    def describe(self, run: Exported) -> None:
        """Sends parameters and tags; parameters that it has stay, since MLflow never changes one. Raises MlflowError."""
        from mlflow.entities import Param, RunTag

        with _errors(self._address):
            there = self._client.get_run(self.id).data.params
            given = {mlflow_name(str(name)): cut(str(value), LONGEST_PARAMETER) for name, value in run.parameters.items()}
            parameters = [Param(name, value) for name, value in given.items() if name and name not in there]
            tags = [RunTag(mlflow_name(name), cut(value, LONGEST_TAG)) for name, value in run.tags.items() if name]
            for some in _parts(parameters, TEXTS_A_BATCH):
                self._client.log_batch(self.id, params=some)
            for some in _parts(tags, TEXTS_A_BATCH):
                self._client.log_batch(self.id, tags=some)

    def values(self, name: str) -> set[tuple[int, int, float]]:
        """(milliseconds, step, value) of what it has of a metric, NaN as a text. Raises MlflowError."""
        with _errors(self._address):
            history = self._client.get_metric_history(self.id, name)
        return {(one.timestamp, one.step, _comparable(one.value)) for one in history}

    def names(self) -> set[str]:
        """Names of the metrics that it has. Raises MlflowError."""
        with _errors(self._address):
            return set(self._client.get_run(self.id).data.metrics)

    def send(self, values: Iterable[Value]) -> int:
        """Sends values of metrics, in batches; returns how many. Raises MlflowError."""
        from mlflow.entities import Metric

        count = 0
        with _errors(self._address):
            for some in _parts(list(values), METRICS_A_BATCH):
                self._client.log_batch(
                    self.id, metrics=[Metric(name, value, when, step) for name, when, step, value in some]
                )
                count += len(some)
        return count

    def send_model(self, folder: str) -> int:
        """Sends the files of a model as the artifact `model`; returns how many there are. Raises MlflowError."""
        files = sum(len(names) for _, _, names in os.walk(folder))
        if files:
            with _errors(self._address):
                self._client.log_artifacts(self.id, folder, "model")
        return files

    def send_media(self, media: Mapping[str, Sequence[Medium]]) -> int:
        """Sends files as artifacts `media/NAME/STEP`; returns how many. Raises MlflowError."""
        with tempfile.TemporaryDirectory() as folder:
            count = 0
            for name, found in media.items():
                place = f"{folder}/{mlflow_name(name)}"
                os.makedirs(place, exist_ok=True)
                for one in found:
                    at = f"step-{one.step:08d}" if one.step is not None else f"{one.call:08d}"
                    with suppress(OSError, ValueError):  # it was thinned a moment ago
                        write_atomic(f"{place}/{at}-{os.path.basename(one.path)}", one.read())
                        count += 1
            if count:
                with _errors(self._address):
                    self._client.log_artifacts(self.id, folder, "media")
        return count

    def end(self, run: Exported) -> None:
        """Closes it with the status and end of the run; one that the user has named stays open. Raises MlflowError."""
        if self._given:
            return
        with _errors(self._address):
            self._client.set_terminated(self.id, _STATUS.get(run.status, "FAILED"), round(run.ended * 1000) or None)


def open_run(run: Exported, address: str, experiment: str, *, name: str = "", run_id: str = "") -> MlflowRun:
    """The run in MLflow, made where it is not there.

    Args:
        address: MLflow's tracking URI, "" for that of MLFLOW_TRACKING_URI.
        experiment: made where it is not there.
        name: the run's in MLflow, "" for its own. run_id: of a run in MLflow that is to be this one, "" for none.

    Raises:
        MlflowError: MLflow is not installed, does not answer, or refuses.
    """
    address = address or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not address:
        raise MlflowError("no MLflow is named", hint="set MLFLOW_TRACKING_URI, or give --to URI (sqlite:////path/mlflow.db)")
    if "://" not in address or address.startswith("file:"):
        hint = "name a server, or a database: sqlite:////path/mlflow.db"
        raise MlflowError(f"{mask_text(address)} is a folder, and MLflow 3 no longer writes to folders", hint=hint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlflow import MlflowClient
    except ImportError as error:
        raise MlflowError("MLflow is not installed", hint="pip install 'trainshed[mlflow]'") from error
    with _errors(address):
        client = MlflowClient(address)
        found = client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found is not None else _make(client, experiment, address)
        given = run_id or read_object(f"{run.folder}/{NOTED}", 1 << 20).get("run_id")
        if isinstance(given, str) and given and (known := _known(client, given)):
            return MlflowRun(client, known, address, given=bool(run_id))
        held = client.search_runs([experiment_id], f"tags.`{KEY}` = '{run.key.replace(chr(39), '')}'", max_results=1)
        if held:
            return MlflowRun(client, held[0].info.run_id, address)
        tags = {KEY: run.key.replace("'", ""), "mlflow.source.name": run.folder, "mlflow.user": os.environ.get("USER", "")}
        made = client.create_run(experiment_id, round(run.started * 1000) or None, tags, name or run.name)
        return MlflowRun(client, made.info.run_id, address)


def send_all(run: Exported, store: MlflowRun, *, model: bool = False) -> tuple[int, int, int]:
    """Sends what MLflow lacks of a run: (values of metrics, files of media, files of the model). Raises MlflowError."""
    store.describe(run)
    count = 0
    there = store.names()
    theirs = set(read_object(f"{run.folder}/{NOTED}", 1 << 20).get("theirs") or ())
    for one in run.series:
        name = mlflow_name(one.name)
        if name in theirs:
            continue
        held = store.values(name) if name in there else set()
        values = [value_of(name, point, number) for number, point in enumerate(one.points(), 1)]
        count += store.send(value for value in values if (value[1], value[2], _comparable(value[3])) not in held)
    others = store.send_media(run.media)
    files = store.send_model(run.model) if model else 0
    if run.over:
        store.end(run)
    return count, others, files


def value_of(name: str, point: Point, number: int) -> Value:
    """A point as MLflow has it. number: from 1, which stands for the step where nobody said one."""
    return name, round(point.time * 1000), number if point.step is None else point.step, point.value


def _comparable(value: float) -> Any:
    """What tells values apart: NaN is not equal to itself, and stores keep infinity as the largest number."""
    if value != value:
        return "nan"
    return value if abs(value) < 1.7e308 else (1.7e308 if value > 0 else -1.7e308)


def _known(client: Any, run_id: str) -> str:
    """The id of a run that this MLflow has, "" for another one's."""
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_run(run_id).info.run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return ""
        raise


def _make(client: Any, experiment: str, address: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.create_experiment(experiment, _artifacts_beside(address)))
    except MlflowException:  # another export has just made it
        found = client.get_experiment_by_name(experiment)
        if found is None:
            raise
        return str(found.experiment_id)


def _artifacts_beside(address: str) -> str | None:
    """Where artifacts of an sqlite file go: beside it. By itself MLflow takes the working folder of the moment."""
    path = address.partition(":///")[2]
    if not address.startswith("sqlite:///") or not path:
        return None
    return f"file://{os.path.dirname(os.path.abspath(path))}/mlartifacts"


def _parts(values: list[Any], most: int) -> Iterator[list[Any]]:
    yield from (values[start : start + most] for start in range(0, len(values), most))


@contextmanager
def alone_with(folder: str) -> Iterator[None]:
    """One process at a time looks up, makes and compares a run in MLflow; two would make it twice.

    Raises:
        MlflowError: another process has been at it for a minute.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # of a folder: nothing is left behind
    try:
        until = time.monotonic() + LOCK_SECONDS
        while not _locked(descriptor):
            if time.monotonic() > until:
                raise MlflowError(f"{folder} is being sent to MLflow by another process", hint="try again when it is done")
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Turns what MLflow and the libraries below it raise into words."""
    try:
        yield
    except TrainshedError:
        raise
    except Exception as error:
        said = shorten(one_line(mask_text(f"{type(error).__name__}: {error}")), 400)
        raise MlflowError(f"MLflow at {mask_text(address)} does not take it: {said}", hint=_hint(said)) from error


def _hint(said: str) -> str:
    if "sqlalchemy" in said.lower() and "No module" in said:
        return "a database needs more: pip install sqlalchemy alembic"
    return "what was not sent is sent by the same command, later"
