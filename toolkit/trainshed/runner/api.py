"""Running jobs from Python: the commands' own functions, with values instead of text.

    training = run("job.yaml", hyperparameters={"epochs": 3}, wait=False)
    training.logs()                    # what it has printed so far
    training.stop().status["SecondaryStatus"]

A job runs in a separate process. So it works in notebooks and in threads, and it goes on when the caller ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from trainshed.base.errors import JobError, Problem, TrainshedError
from trainshed.base.voice import tell
from trainshed.base.wings import has_wing, module_of_wing
from trainshed.contract.hyperparameters import SpelledFloat
from trainshed.metrics.media_reading import Medium, media_of
from trainshed.metrics.reading import MetricsReader, by_step
from trainshed.observe.goodput import share_of

from .control.detached import start
from .control.operations import clone, public_status, remove, state_of, stop, to_resume
from .control.parent import with_parent
from .display.follow import follow, logs_of, tagged
from .files.run import REPORT
from .job import places, read
from .job.job import Job
from .job.nodes import Node
from .job.request import is_job_file, read_file
from .state.outputs import last_values, outputs_of
from .state.run_goodput import goodput_of
from .state.stored import Stored, every, load, newest
from .state.stored import find as find_stored

What = str | os.PathLike[str] | Mapping[str, Any] | Callable[..., Any]
_LOOK = 0.5  # seconds between two looks at a run


class JobFailed(TrainshedError):
    """A job that was waited for has failed; the message is the platform's FailureReason. `training` is the run."""

    def __init__(self, training: Training) -> None:
        reason = str(training.status.get("FailureReason", "it failed"))
        super().__init__(f"{training.name}: {reason}")
        self.training = training


class Training:
    """A run that is in progress or has ended."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._read = MetricsReader(None)

    @property
    def name(self) -> str:
        """The run's name."""
        return self._stored.name

    @property
    def folder(self) -> str:
        """The run's folder."""
        return self._stored.folder

    @property
    def status(self) -> dict[str, Any]:
        """The present status, in the shape of the platform's DescribeTrainingJob with one more field, `Trainshed`."""
        return public_status(self._load(), os.environ)

    @property
    def running(self) -> bool:
        """Tells whether the run is in progress."""
        return bool(self._load().runner)

    @property
    def exit_code(self) -> int | None:
        """The exit status; None while the run is in progress."""
        code = self._load().ours.get("ExitCode")
        return code if isinstance(code, int) else None

    @property
    def metrics(self) -> dict[str, float]:
        """Last value of each metric so far, also while the run goes on; NaN and infinities as such."""
        run = self._load()
        return last_values(run.folder, run.status)

    def history(self) -> Any:
        """All metrics so far, also while the run goes on: a row for each step, with `step` and the metrics.

        Returns:
            A DataFrame where pandas is installed, else a list of dicts.
        """
        self._read.read_on(outputs_of(self.folder))
        found = by_step(self._read.curves().values())
        return as_frame([{"step": step} | values | {"step": step} for step, values in found])  # a metric may be named step

    def live(self) -> Iterator[dict[str, float]]:
        """Yields the last value of each metric as often as one changes, until the run is over."""
        shown: dict[str, float] | None = None
        while True:
            over = not self.running  # asked first: what is written after it is read
            if repr(found := self.metrics) != repr(shown):  # NaN is not equal to itself
                yield found
                shown = found
            if over:
                return
            time.sleep(_LOOK)

    def media(self) -> dict[str, tuple[Medium, ...]]:
        """Pictures, tables and the like that its script has logged so far, by name, each in the order of its steps."""
        return media_of(outputs_of(self.folder))

    @property
    def goodput(self) -> float | None:
        """Which part of its wall clock went to steps that counted, 0 to 1; None where nothing tells (docs/goodput.md)."""
        return share_of(self.ledger)

    @property
    def ledger(self) -> dict[str, Any]:
        """Where its seconds went: `Share`, `Seconds` by account, `Losses`, `Hosts`, `Parts`; {} where nothing is known."""
        return goodput_of(self._load()) or {}

    @property
    def model(self) -> str:
        """Path of model.tar.gz; "" where there is none (yet)."""
        path = f"{self.folder}/output/model.tar.gz"
        return path if os.path.isfile(path) else ""

    def predict(
        self,
        data: str | os.PathLike[str],
        output: str | os.PathLike[str] = "",
        hyperparameters: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """What its model makes of data: as `trainshed.predict`."""
        return predict(self.folder, data, output, hyperparameters)

    def logs(self, host: str = "") -> str:
        """Returns what the hosts, or one of them, have printed so far."""
        several = len(logs_of(self._stored)) > 1 and not host
        lines = follow(self._stored, hosts=[host] if host else None, forever=False)
        return b"".join(tagged(name, line, several) for name, line in filter(None, lines)).decode("utf-8", "replace")

    def wait(self, *, echo: bool = True, check: bool = True) -> Training:
        """Waits for the end; Ctrl-C (a notebook's stop button) stops the job, and it may save.

        Args:
            echo: print what it prints.
            check: raise JobFailed if it fails.
        """
        try:
            several = False
            for entry in follow(self._stored, runner=True):
                if entry is None or not echo:
                    continue
                several = several or len(logs_of(self._stored)) > 1
                name, line = entry
                text = line if name == "runner" else tagged(name, line, several)
                print(text.decode("utf-8", "replace"), end="", flush=True)
        except KeyboardInterrupt:
            self.stop()
            raise
        if check and self.status["TrainingJobStatus"] == "Failed":
            raise JobFailed(self)
        return self

    def stop(self, *, kill: bool = False) -> Training:
        """Asks it to end and waits until it has. Raises TrainshedError where it cannot be stopped from here."""
        stop(self._load(), os.environ, _say, kill=kill)
        return self

    def resume(self, *, again: bool = False, wait: bool = True, echo: bool = True, check: bool = True) -> Training:
        """Takes it up again in its own folder, with its checkpoints; with `again` also where it has completed.

        Raises:
            TrainshedError, JobError, JobFailed.
        """
        run = self._load()
        made = to_resume(run, os.environ, _say, again=again)
        start(made.job, os.environ, again=made, on=run.place.name)
        return self.wait(echo=echo, check=check) if wait else self

    def report(self, path: str = "") -> str:
        """Writes its report, one HTML file; returns the path (default: report.html in its folder). Raises TrainshedError."""
        run = self._load()
        path = path or f"{run.folder}/{REPORT}"
        view = module_of_wing("studio.run_report", "report")
        view.write(view.facts_of(run), path)
        return path

    def clone(self) -> str:
        """A job file that makes it again."""
        return clone(self._load())

    def remove(self, *, force: bool = False) -> None:
        """Removes it with all that it left. Raises TrainshedError if it runs and `force` is not given."""
        remove(self._load(), os.environ, _say, force=force)

    def _load(self) -> Stored:
        self._stored = load(self._stored.folder)
        return self._stored

    def _repr_html_(self) -> str | None:
        """How it stands, with its curves, for a notebook; shown again, it is read again."""
        if not has_wing("studio"):
            return None
        return str(module_of_wing("studio.run_report", "a notebook's view").in_notebook(self._load()))

    def __repr__(self) -> str:
        return f"<Training {self.name}: {' '.join(filter(None, state_of(self._load(), os.environ)))}>"


def make_job(file: What = "", /, **fields: Any) -> Job:
    """A job from a job file (or a CreateTrainingJob request), a program, a mapping of its fields, or from fields alone.

    A word is what `trainshed run` takes it for: a file that ends in .yaml, .yml or .json is a job file, all else a program.
    A function is called by each rank with the hyperparameters as its arguments; what it returns is not kept.

    Fields have the names of the job file and win over it; mappings (hyperparameters, channels, environment ...) are merged.
    Relative paths start at the job file, those of fields at the working directory.

    Raises:
        JobError: something is wrong; holds every problem.
    """
    problems: list[Problem] = []
    asked = asked_job(file, fields, problems)
    made = read.read(asked.values, os.environ, asked.origin, asked.name, problems)
    return replace(made, **asked.extra)


@dataclass(frozen=True)
class AskedJob:
    """The fields of a job that Python gave. extra: further fields of `Job`; origin, name: as `read.read` takes them."""

    values: dict[str, Node]
    extra: dict[str, Any] = field(default_factory=dict)
    origin: str = "job"
    name: str = ""


def asked_job(file: What, fields: Mapping[str, Any], problems: list[Problem], to_come: Iterable[str] = ()) -> AskedJob:
    """The arguments of `make_job`, not checked yet.

    Args:
        problems: gets what is wrong with a job file.
        to_come: hyperparameters whose values somebody else chooses.
    """
    asked = AskedJob({})
    given: Mapping[str, Any] = {}
    if isinstance(file, Mapping):
        given = file
    elif not callable(file) and file and is_job_file(path := os.fspath(file)):
        values, extra = read_file(path, problems)
        asked = AskedJob(values, extra, path, os.path.splitext(os.path.basename(path))[0])
    elif file:
        given = {"program": file}
    for name, value in (*given.items(), *fields.items()):
        if name == "program" and callable(value):
            from .files.function_program import as_program

            value = as_program(value, _arguments(asked, given, fields, to_come), os.environ)
        node, present = node_of(value), asked.values.get(name)
        if isinstance(node.value, dict) and present is not None and isinstance(present.value, dict):
            node = Node({**present.value, **node.value}, node.where, node.folder)
        asked.values[name] = node
    return asked


def _arguments(
    asked: AskedJob, given: Mapping[str, Any], fields: Mapping[str, Any], to_come: Iterable[str]
) -> dict[str, Any]:
    """The hyperparameters of a function; what is not a mapping of them is refused later, in words."""
    kept = asked.values["hyperparameters"].value if "hyperparameters" in asked.values else None
    sources = (kept, given.get("hyperparameters"), fields.get("hyperparameters"), dict.fromkeys(to_come))
    return {str(name): value for source in sources if isinstance(source, Mapping) for name, value in source.items()}


def run(
    file: What | Job = "",
    /,
    *,
    on: str = places.HERE.name,
    wait: bool = True,
    echo: bool = True,
    check: bool = True,
    **fields: Any,
) -> Training:
    """Runs a job: `make_job`'s arguments, or a `Job`.

    Args:
        on: the place where it runs: here, slurm, ray, ssh, kubernetes, or one that a package adds.
        wait: return when it is over; else as soon as it has its folder.
        echo: print what it prints, while waiting.
        check: raise JobFailed if it fails, while waiting.

    Raises:
        JobError, TrainshedError: it could not be started.
        JobFailed: it failed.
    """
    place = places.find(on)
    made = replace(file, **fields) if isinstance(file, Job) else make_job(file, **fields)
    training = Training(start(with_parent(made, os.environ), os.environ, quiet=not echo, on=place.name))
    return training.wait(echo=echo, check=check) if wait else training


def find(run: str | None = None) -> Training:
    """A run by its name, the beginning of that, or its folder; this folder's newest for None. Raises TrainshedError."""
    return Training(newest(os.environ, _say, acts=True) if run is None else find_stored(run, os.environ))


def runs(where: str = "") -> list[Training]:
    """The runs of this machine that are known, oldest first.

    Args:
        where: which ones, in the words of `trainshed ls --where`, such as `loss < 0.3 and lr > 1e-4` (docs/catalogue.md).

    Raises:
        TrainshedError: the words cannot be read, or name what no run has.
    """
    if not where:
        return [Training(stored) for stored in every(os.environ)]
    folders = module_of_wing("studio.catalogue.open_catalogue", "runs(where=...)").folders(os.environ, where, _say)
    return [Training(load(folder)) for folder in folders]


def predict(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    output: str | os.PathLike[str] = "",
    hyperparameters: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What a model makes of data, a dict a row, in the image of its run or here; one that failed has `error`.

    Args:
        model: a run's name or folder; a model's folder, archive, or `model://NAME`.
        data: a file or folder in the form of the training data.
        output: a file that gets the rows, too: .csv, .parquet or .jsonl.
        hyperparameters: of a ready program's predict, as `score_threshold`.

    Raises:
        TrainshedError: nothing could be predicted.
    """
    # By name: places know the runner, not the other way round.
    given = (os.fspath(model), os.fspath(data), os.fspath(output), os.environ, hyperparameters)
    rows: list[dict[str, Any]] = import_module("trainshed.places.predict").predict(*given)
    return rows


def as_frame(rows: list[dict[str, Any]]) -> Any:
    """Rows as a DataFrame where pandas is installed, else as they are."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def node_of(value: Any) -> Node:
    """Returns a Python value as if it had been read from a file; floats are spelled as Python spells them."""
    if isinstance(value, Mapping):
        inner = {str(name): node_of(item) for name, item in value.items()}
        return Node(inner, "job", os.getcwd(), "", 1 + sum(item.size for item in inner.values()))
    if isinstance(value, (list, tuple)):
        return Node([node_of(item) for item in value], "job", os.getcwd())
    if isinstance(value, float):
        spelled = value if isinstance(value, SpelledFloat) else SpelledFloat(repr(value))
        return Node(spelled, "job", os.getcwd(), str(spelled))
    if value is None or isinstance(value, (bool, int)):
        text = {None: "", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
        return Node(value, "job", os.getcwd(), text)
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise JobError([Problem("job", f"a job cannot contain a value of type {type(value).__name__}")])
    return Node(text, "job", os.getcwd(), text)


def _say(message: str) -> None:
    tell(message)
