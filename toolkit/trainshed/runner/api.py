"""Running jobs from Python: the commands' own functions, with values instead of text.

    training = run("job.yaml", hyperparameters={"epochs": 3}, wait=False)
    training.logs()                    # what it has printed so far
    training.stop().status["SecondaryStatus"]

A job runs in a separate process. So it works in notebooks and in threads, and it goes on when the caller ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import JobError, Problem, TrainshedError
from trainshed.base.voice import tell
from trainshed.contract.hyperparameters import SpelledFloat
from trainshed.metrics.media_reading import Medium, media_of
from trainshed.observe.goodput import share_of

from .control.detached import start
from .control.operations import clone, public_status, remove, state_of, stop, to_resume
from .control.parent import with_parent
from .display.follow import follow, logs_of, tagged
from .job import places, read
from .job.job import Job
from .job.nodes import Node
from .job.request import is_job_file, read_file
from .state.outputs import last_values, outputs_of
from .state.run_goodput import goodput_of
from .state.stored import Stored, every, load, newest
from .state.stored import find as find_stored

What = str | os.PathLike[str] | Mapping[str, Any] | Callable[..., Any]


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

    def clone(self) -> str:
        """A job file that makes it again."""
        return clone(self._load())

    def remove(self, *, force: bool = False) -> None:
        """Removes it with all that it left. Raises TrainshedError if it runs and `force` is not given."""
        remove(self._load(), os.environ, _say, force=force)

    def _load(self) -> Stored:
        self._stored = load(self._stored.folder)
        return self._stored

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
    values: dict[str, Node] = {}
    extra: dict[str, Any] = {}
    origin, name = "job", ""
    if isinstance(file, Mapping):
        values = dict(_node(dict(file)).value)
    elif callable(file):
        from .files.function_program import as_program

        values["program"] = _node(as_program(file, fields.get("hyperparameters", {}), os.environ))
    elif file and is_job_file(path := os.fspath(file)):
        origin, name = path, os.path.splitext(os.path.basename(path))[0]
        values, extra = read_file(path, problems)
    elif file:
        values["program"] = _node(path)
    for field, value in fields.items():
        node, present = _node(value), values.get(field)
        if isinstance(node.value, dict) and present is not None and isinstance(present.value, dict):
            node = Node({**present.value, **node.value}, node.where, node.folder)
        values[field] = node
    return replace(read.read(values, os.environ, origin, name, problems), **extra)


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


def runs() -> list[Training]:
    """The runs of this machine that are known, oldest first."""
    return [Training(stored) for stored in every(os.environ)]


def _node(value: Any) -> Node:
    """A Python value as if it had been read from a file; floats are spelled as Python spells them."""
    if isinstance(value, Mapping):
        inner = {str(name): _node(item) for name, item in value.items()}
        return Node(inner, "job", os.getcwd(), "", 1 + sum(item.size for item in inner.values()))
    if isinstance(value, (list, tuple)):
        return Node([_node(item) for item in value], "job", os.getcwd())
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
