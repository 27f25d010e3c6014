"""Many runs from Python: the commands' own functions, with values instead of text.

    tuning = trainshed.tune(job="train.py", search={"lr": {"low": 1e-4, "high": 0.1}}, objective="minimize loss", max_jobs=8)
    tuning.best.metrics, tuning.trials()

As a job does, a tuning job and a pipeline run in a process of their own: in notebooks and threads, and beyond the caller's
end. The same call goes on with what was stopped or killed.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import trainshed
from trainshed.base.errors import EXIT_INTERNAL, JobError, Problem, TrainshedError
from trainshed.base.voice import tell
from trainshed.runner.api import Training, What, as_frame, asked_job, find, node_of
from trainshed.runner.job.field_parsers import usable_name
from trainshed.runner.job.nodes import Node
from trainshed.runner.job.read import in_order
from trainshed.runner.job.request import is_job_file
from trainshed.runner.job.yamlfile import read_nodes
from trainshed.runner.state.stored import load

from .batches.folder import COMPLETED, Folder
from .pages.markup import framed
from .steps import running
from .steps.drawing import picture, table
from .steps.steps_file import pipeline_of
from .steps.steps_folder import PIPELINES, SKIPPED, StepsFolder
from .steps.steps_plan import RUN, TUNE
from .tune import sessions
from .tune.board import page as told
from .tune.describe import describe
from .tune.trial import best_of
from .tune.tuning_file import LONGEST_NAME, Parts, parts_of, tuning_of_parts
from .tune.tuning_folder import TUNES, TuningFolder, read_asked
from .tune.tuning_page import page as tuning_page

__all__ = ["Batch", "Comparison", "Pipeline", "Tuning", "compare", "report", "steps", "tune"]
_LOOK = 0.2  # seconds between two looks at a batch
_Own = TypeVar("_Own", bound="Batch")


class Batch:
    """Runs that one process of its own starts: a tuning job, or a pipeline of steps."""

    _held: Folder

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._shown = 0

    @property
    def folder(self) -> str:
        """Its folder."""
        return self._held.path

    @property
    def running(self) -> bool:
        """Tells whether a process works in it."""
        return bool(self._held.worker) or (self._process is not None and self._process.poll() is None)

    def wait(self: _Own, *, echo: bool = True, check: bool = True) -> _Own:
        """Waits for the end; Ctrl-C (a notebook's stop button) stops it, and the same call goes on with it later.

        Args:
            echo: print what happens.
            check: raise TrainshedError if it could not be run, or has come to nothing.
        """
        try:
            while self.running if self._process is None else self._process.poll() is None:  # another's may go on
                self._print_log(echo)
                time.sleep(_LOOK)
            self._print_log(echo)
        except KeyboardInterrupt:
            self.stop()
            raise
        if check:
            self._refuse_failed()
        return self

    def stop(self: _Own, *, kill: bool = False) -> _Own:
        """Asks it to end, and its runs with it. Raises TrainshedError where it cannot be stopped from here."""
        while not self._held.worker and self.running:  # it begins
            time.sleep(_LOOK)
        self._end(kill)
        return self

    def _end(self, kill: bool) -> None:
        raise NotImplementedError

    def _wrong(self) -> str:
        """Why it has come to nothing; "" where it has not."""
        raise NotImplementedError

    def _start(self, work: Callable[[], int]) -> None:
        """Has a process of its own do the work."""
        root = os.path.dirname(os.path.dirname(os.path.abspath(trainshed.__file__)))
        code = f"import sys; sys.path.insert(0, {root!r}); from trainshed.studio.python_api import main; main()"
        log = self._held.log
        self._shown = os.path.getsize(log) if os.path.exists(log) else 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what it says is in its log
            start_new_session=True,  # the terminal's signals are not for it
        )
        assert self._process.stdin is not None
        with self._process.stdin:
            self._process.stdin.write(pickle.dumps(work))
        Thread(target=self._process.wait, daemon=True).start()  # no zombie, whether somebody waits or not

    def _refuse_failed(self) -> None:
        if self._process is not None and self._process.stdout is not None and not self._process.stdout.closed:
            with self._process.stdout as answer:
                said = json.loads(answer.read() or "{}")
            if said:
                raise TrainshedError(said["message"], hint=said["hint"], details=said["details"])
        if wrong := self._wrong():
            raise TrainshedError(f"{os.path.basename(self.folder)}: {wrong}")

    def _print_log(self, echo: bool) -> None:
        try:
            with open(self._held.log, "rb") as file:
                file.seek(self._shown)
                lines, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._shown += len(lines) + len(end)
        for line in lines.decode("utf-8", "replace").splitlines() if echo else ():
            print(line.partition(" ")[2], flush=True)  # without its time


class Tuning(Batch):
    """A tuning job that is in progress or has ended: a `Batch`."""

    def __init__(self, folder: TuningFolder) -> None:
        super().__init__()
        self._held: TuningFolder = folder

    @property
    def status(self) -> dict[str, Any]:
        """Tells how it stands, in the shape of the platform's DescribeHyperParameterTuningJob."""
        return describe(*self._standing(), read_asked(self._held))

    @property
    def best(self) -> Training | None:
        """The run of the best trial so far; None while there is none."""
        view = sessions.standing(self._held)[0]
        found = best_of(view.trials, view.tuning.objectives)
        return None if found is None else Training(load(self._held.run(found.number)))

    def trials(self) -> Any:
        """Returns the trials so far: a DataFrame where pandas is installed, else a list of dicts."""
        view = sessions.standing(self._held)[0]
        names = [one.metric for one in view.tuning.objectives]
        return as_frame([
            {"trial": one.number, "state": one.state, **{name: _typed(text) for name, text in one.values.items()},
             **dict(zip(names, (one.value, *one.further), strict=False)), "seconds": one.seconds,
             "folder": self._held.run(one.number)}
            for one in view.trials
        ])  # fmt: skip

    def _standing(self) -> tuple[Any, TuningFolder, str, str]:
        view, status, reason = sessions.standing(self._held)
        return view, self._held, status, reason

    def _end(self, kill: bool) -> None:
        sessions.end(self._held, os.environ, tell, kill=kill)

    def _wrong(self) -> str:
        _, status, reason = sessions.standing(self._held)
        return reason or status if self.best is None else ""

    def _repr_html_(self) -> str:
        view, status, reason = sessions.standing(self._held)
        return framed(tuning_page(view, status, reason, time.time()), 560)

    def __repr__(self) -> str:
        view, status, reason = sessions.standing(self._held)
        return told(view, status, reason, self._held.shown, time.time()).rstrip()


class Pipeline(Batch):
    """A pipeline of steps that is in progress or has ended: a `Batch`."""

    def __init__(self, folder: StepsFolder) -> None:
        super().__init__()
        self._held: StepsFolder = folder

    def steps(self) -> Any:
        """Tells how each step stands: a DataFrame where pandas is installed, else a list of dicts."""
        return as_frame([box.plain() for box in running.standing(self._held)])

    def run(self, step: str) -> Training:
        """Returns the run of a step. Raises TrainshedError where it has none."""
        found = next((box for box in running.standing(self._held) if box.name == step), None)
        if found is None or not found.run:
            raise TrainshedError(f"{step} has no run" if found else f"there is no step {step!r}")
        return Training(load(found.run))

    def _end(self, kill: bool) -> None:
        running.end(self._held, os.environ, tell, kill=kill)

    def _wrong(self) -> str:
        bad = [box for box in running.standing(self._held) if box.state not in (COMPLETED, SKIPPED)]
        return "; ".join(f"{box.name} {box.words}{f': {box.detail}' if box.detail else ''}" for box in bad)

    def _repr_html_(self) -> str:
        return picture(os.path.basename(self.folder), running.standing(self._held))

    def __repr__(self) -> str:
        return table(running.standing(self._held)).rstrip()


class Comparison:
    """Runs side by side; the first is the base."""

    def __init__(self, folders: list[str]) -> None:
        from .compare.facts import read_run
        from .compare.table import rows

        self._runs = [read_run(folder) for folder in folders]
        self._rows = rows(*self._runs)

    def rows(self) -> Any:
        """Returns a row for each run: a DataFrame where pandas is installed, else a list of dicts."""
        cells = [{row.name: row.values[number] for row in self._rows} for number in range(len(self._runs))]
        return as_frame([{"run": run.name, **row} for run, row in zip(self._runs, cells, strict=True)])

    def _repr_html_(self) -> str:
        from .compare.page import page

        return framed(page(self._runs, self._rows), 640)

    def __repr__(self) -> str:
        from .compare.table import text_of

        return text_of(self._runs, self._rows).rstrip()


def tune(
    file: str | os.PathLike[str] | Mapping[str, Any] = "",
    /,
    *,
    job: What = "",
    wait: bool = True,
    echo: bool = True,
    check: bool = True,
    **fields: Any,
) -> Tuning:
    """Searches hyperparameters, or goes on with it: a tuning file, a mapping of its fields, or fields alone.

    Args:
        job: the job of each trial: what `trainshed.run` takes, a function included.
        fields: the other fields of a tuning file, which win over those of the file.
        wait, echo, check: as of `Tuning.wait`.

    Raises:
        JobError: something is wrong; holds every problem.
        TrainshedError: it could not be run, or no trial has an objective.
    """
    problems: list[Problem] = []
    given = {**fields, "job": job} if job else fields
    values, path = _values(file, given, "tuning", problems)
    parts = parts_of(values, path, problems)
    tuning = tuning_of_parts(parts, os.environ, path, _stem(path, parts), problems)
    if problems:
        raise JobError(in_order(problems))
    made = Tuning(TuningFolder(f"{TUNES}/{tuning.name}"))
    made._start(partial(sessions.tune, tuning, path, made.folder, os.environ.copy()))
    return made.wait(echo=echo, check=check) if wait else made


def steps(
    file: str | os.PathLike[str] | Mapping[str, Any] = "",
    /,
    *,
    params: Mapping[str, Any] | None = None,
    from_step: str = "",
    no_cache: bool = False,
    wait: bool = True,
    echo: bool = True,
    check: bool = True,
    **fields: Any,
) -> Pipeline:
    """Runs a pipeline, or goes on with it: a pipeline's file, a mapping of its fields, or fields alone.

    Args:
        params: values of parameters. from_step: runs this step again, and all that need it. no_cache: runs all again.
        fields: those of a pipeline's file; `run` of a step is what `trainshed.run` takes, a function included.
        wait, echo, check: as of `Pipeline.wait`.

    Raises:
        JobError: something is wrong; holds every problem.
        TrainshedError: it could not be run, or a step has failed.
    """
    problems: list[Problem] = []
    values, path = _values(file, fields, "pipeline", problems)
    present = values.get("params")
    known = {name: value for name, value in (params or {}).items() if present is None or name in (present.value or ())}
    if known:
        values["params"] = _merged(present, node_of(known))
    unknown = {name: "" for name in params or () if name not in known}
    pipeline = pipeline_of(values, path, os.environ, unknown, problems)
    made = Pipeline(StepsFolder(f"{PIPELINES}/{pipeline.name}"))
    work = partial(running.run, pipeline, made.folder, os.environ.copy(), from_step=from_step, no_cache=no_cache)
    made._start(work)
    return made.wait(echo=echo, check=check) if wait else made


def compare(base: Training | str, /, *others: Training | str) -> Comparison:
    """Compares runs, or runs of these names, with the first one. Raises TrainshedError."""
    return Comparison([(one if isinstance(one, Training) else find(one)).folder for one in (base, *others)])


def report(run: Training | str, path: str = "") -> str:
    """Writes a run's report; returns its path. Raises TrainshedError."""
    return (run if isinstance(run, Training) else find(run)).report(path)


def main() -> None:
    """The process of a batch: its work comes on standard input; what goes wrong goes to standard output, as JSON."""
    work: Callable[[], int] = pickle.load(sys.stdin.buffer)  # from the process that started this one, through its pipe
    answer, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(answer, False)
    for fd in (0, 1):
        os.dup2(null, fd)
    code, said = EXIT_INTERNAL, {}
    try:
        code = work()
    except TrainshedError as error:
        code, said = error.exit_code, {"message": error.message, "hint": error.hint, "details": error.details}
    except Exception as error:
        words = f"trainshed itself failed: {type(error).__name__}: {error}"
        said = {"message": words, "hint": "please report it", "details": ""}
    if said:
        try:
            os.write(answer, json.dumps(said).encode())
        except BrokenPipeError:  # whoever asked has ended meanwhile
            pass
    os._exit(code)


def _values(
    file: str | os.PathLike[str] | Mapping[str, Any], fields: Mapping[str, Any], kind: str, problems: list[Problem]
) -> tuple[dict[str, Node], str]:
    """(the fields of a batch's file, its path); functions, programs and job files of jobs have become fields of jobs."""
    values: dict[str, Node] = {}
    path = f"{os.getcwd()}/{kind}"
    if not isinstance(file, Mapping) and file:
        path = os.path.abspath(file)
        root = read_nodes(os.fspath(file), problems)
        if root is None:
            raise JobError(problems)
        values, file = dict(root.value), {}
    given = {**file, **fields} if isinstance(file, Mapping) else fields
    made = {
        "job": lambda job: _job_node(job, given.get("search"), problems),
        "steps": lambda one: _steps_node(one, problems),
    }
    for name, value in given.items():
        values[name] = _merged(values.get(name), made.get(name, node_of)(value))
    return values, path


def _merged(present: Node | None, node: Node) -> Node:
    if present is None or not isinstance(present.value, dict) or not isinstance(node.value, dict):
        return node
    return Node({**present.value, **node.value}, node.where, node.folder)


def _job_node(job: What, search: Any, problems: list[Problem]) -> Node:
    """A job as the fields of one. search: of the tuning job, whose values are arguments of a function, too."""
    path = os.fspath(job) if isinstance(job, (str, os.PathLike)) else ""
    if is_job_file(path) or not (path or callable(job) or isinstance(job, Mapping)):
        return node_of(job)  # read as where a file names it
    asked = asked_job(job, {}, problems, search if isinstance(search, Mapping) else ())
    return Node(asked.values, "job", os.getcwd())


def _steps_node(steps: Any, problems: list[Problem]) -> Node:
    """Steps by name, whose jobs may be functions or programs; what is none is refused later, in words."""
    if not isinstance(steps, Mapping):
        return node_of(steps)
    made = {}
    for name, step in steps.items():
        if not isinstance(step, Mapping):
            made[str(name)] = node_of(step)
            continue
        inner = {str(key): node_of(value) for key, value in step.items() if key not in (RUN, TUNE)}
        if RUN in step:
            inner[RUN] = _job_node(step[RUN], (), problems)
        if TUNE in step:
            tuned = step[TUNE]
            values = _values(tuned, {}, name, problems)[0] if isinstance(tuned, Mapping) else None
            inner[TUNE] = node_of(tuned) if values is None else Node(values, "job", os.getcwd())
        made[str(name)] = Node(inner, "job", os.getcwd())
    return Node(made, "job", os.getcwd())


def _stem(path: str, parts: Parts) -> str:
    """The name of a tuning job that has none: of its file, else of its program."""
    program = parts.job.get("program")
    base = path if os.path.isfile(path) or program is None else str(program.text)
    return usable_name(os.path.splitext(os.path.basename(base))[0])[:LONGEST_NAME].strip("-")


def _typed(text: str) -> Any:
    """A hyperparameter's text as the number that it spells."""
    try:
        return json.loads(text)
    except ValueError:
        return text
