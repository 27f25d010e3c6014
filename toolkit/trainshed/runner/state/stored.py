"""Runs as later commands find them in their folders. The files are checked: anybody may have written them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from trainshed.base.errors import EXIT_JOB, JobError, Problem, TrainshedError, did_you_mean, one_line, some
from trainshed.base.files import read_object
from trainshed.base.record import Record
from trainshed.base.secrets import MASK

from ..files.run import Run, hosts_of, number_in
from ..files.user_dirs import RUNS
from ..job.job import Job
from ..job.places import BUILT_IN, HERE, Place, of_engine
from . import identity, index
from .job_json import job_of
from .status import ENDED

LATEST = 1e11  # seconds since the epoch that a year of four digits has
LARGEST = 16 << 20  # bytes of a file of ours
_ENGINE = re.compile(r"[\x21-\x7e]{1,300}")
_ID = re.compile(r"[0-9a-f]{32}")


class NoRunError(TrainshedError):
    """There is no such run."""

    exit_code = EXIT_JOB


@dataclass(frozen=True)
class Stored:
    """A run's folder and what is in its files; both may be missing where its runner was killed early."""

    folder: str
    status: dict[str, Any]
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The run's name."""
        name = self.status.get("TrainingJobName") or self.about.get("run")
        return one_line(name if isinstance(name, str) else os.path.basename(self.folder))

    @property
    def id(self) -> str:
        """The run's id, "" if it is missing or malformed, or the folder is a copy of the run's."""
        run_id = self._said_id
        return run_id if not self.copied else ""

    @property
    def _said_id(self) -> str:
        run_id = self.ours.get("RunId") or self.about.get("id")
        return run_id if isinstance(run_id, str) and _ID.fullmatch(run_id) else ""

    @property
    def checkpoints(self) -> str:
        """The folder of its checkpoints."""
        try:
            return self.run().checkpoints
        except TrainshedError:
            return f"{self.folder}/checkpoints"

    @property
    def copied(self) -> str:
        """The folder whose copy this one is; "" for a run. Nothing runs for a copy, and its id is that of another run."""
        for said in (self.ours, self.about):
            if said.get("FolderId") or said.get("Folder"):
                return "" if identity.is_folder(said, self.folder) else str(said.get("Folder") or "another folder")
        return ""

    def made_here(self, environ: Mapping[str, str]) -> bool:
        """Returns whether a runner made this very folder: it has left its inode in it, or this user's index knows it."""
        known = any(identity.is_inode(said, self.folder) for said in (self.ours, self.about))
        return known or index.knows(self._said_id, self.folder, environ)

    @property
    def ours(self) -> dict[str, Any]:
        """The part of `status.json` beside the platform's fields."""
        value = self.status.get("Trainshed")
        return value if isinstance(value, dict) else {}

    @property
    def ended(self) -> bool:
        """Tells whether its runner has written how it ended."""
        return self.status.get("TrainingJobStatus") in ENDED

    @property
    def runner(self) -> int:
        """PID of the runner, if it lives on this machine; else 0."""
        if self.ended or self.copied or not identity.is_alive(self.ours.get("Runner")):
            return 0
        return int(self.ours["Runner"]["Pid"])

    @property
    def finishing(self) -> bool:
        """Tells whether the runner's process is there: also for a moment after the run's end, while it shows the summary."""
        return not self.copied and bool(identity.is_alive(self.ours.get("Runner")))

    @property
    def place(self) -> Place:
        """The place of its hosts."""
        named = of_engine(str(self.about.get("engine") or ""))
        return named or next((place for place in BUILT_IN.values() if self._job_at(place)), HERE)

    def _job_at(self, place: Place) -> str:
        """What a place calls its job, "" for a run that has none there."""
        job = self.ours.get(place.key) if place.key else None
        good = isinstance(job, (int, str)) and re.fullmatch(place.pattern, str(job)) is not None
        return one_line(str(job)) if good and not self.copied else ""

    @property
    def elsewhere(self) -> str:
        """Name of the other machine that the runner is on, as far as can be known; "" if it is this one."""
        runner = self.ours.get("Runner")
        if self._job_at(self.place):  # the scheduler has it, and can be asked from any machine of the cluster
            return ""
        if self.ended or self.copied or not isinstance(runner, dict) or identity.is_alive(runner) is not None:
            return ""
        return str(runner.get("Machine"))

    @property
    def submitted(self) -> str:
        """Who has the job whether or not a runner lives, like `job 7 of Slurm`; "" for a run on this machine."""
        place = self.place
        there = place.sign and os.path.exists(f"{self.folder}/{place.sign}")
        if there and not self.copied and not self.ended:
            return f"on {some(self._machines, 3)}"
        if not place.acts and not self.copied and not self.ended:
            return f"on {place.title}, which no package here adds"
        job = self._job_at(place)
        return f"job {job} of {place.title}" if job else ""

    @property
    def _machines(self) -> list[str]:
        job = self.about.get("job")
        named = job.get("machines") if isinstance(job, dict) else None
        return [one_line(str(one)) for one in named] if isinstance(named, list) and named else ["other machines"]

    @property
    def lost(self) -> bool:
        """Tells whether the runner died before the run was over."""
        return not self.ended and not self.runner and not self.elsewhere and not self.submitted

    @property
    def said(self) -> tuple[str, str]:
        """(status, phase) as `status.json` has them."""
        return str(self.status.get("TrainingJobStatus", "InProgress")), str(self.status.get("SecondaryStatus", "Starting"))

    def standing(self) -> tuple[str, str] | None:
        """(status, what more there is to say), as the files and the runner's process tell; None where the runner is lost."""
        status, phase = self.said
        if self.ended:
            return status, phase if phase != status else ""
        if self.elsewhere:
            return status, f"{phase}, on {self.elsewhere}"
        if self.runner:
            return status, phase
        return (status, f"{phase}, {self.submitted}") if self.submitted else None

    @property
    def is_part(self) -> bool:
        """Tells whether it is a trial of a tuning job or a step of a pipeline, which have commands of their own."""
        return _whole_at(os.path.dirname(os.path.dirname(self.folder))) is not None

    @property
    def in_containers(self) -> bool:
        """Tells whether its hosts are containers."""
        return bool(self.about.get("containers")) and self.place.here

    @property
    def engine(self) -> str:
        """The address of the container engine that has its hosts, as far as is known."""
        address = self.about.get("engine")
        return address if isinstance(address, str) and _ENGINE.fullmatch(address) else ""

    def run(self) -> Run:
        """The run as it was started; values that were masked stay so. Raises TrainshedError where its files are no run's."""
        try:
            job = job_of(self.about["job"])
            hosts = hosts_of(job, self.folder, in_containers=bool(self.about.get("containers")))
            started = float(self.about["started_seconds"])
            if not 0 <= started < LATEST:
                raise ValueError("started_seconds")
            return Run(job, self.name, self.id, self.folder, started, hosts)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, re.error) as error:
            raise TrainshedError(f"{self.folder}/job.json was not written by trainshed") from error


class _Later(Mapping[str, Any]):
    """The object in a file that is read when somebody asks for what is in it: a list of runs asks for little."""

    def __init__(self, path: str) -> None:
        self._path = path

    @cached_property
    def _read(self) -> dict[str, Any]:
        return read_object(self._path, LARGEST, links=False)

    def __getitem__(self, name: str) -> Any:
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


def load(folder: str, *, later: bool = False) -> Stored:
    """A run by its folder.

    Args:
        later: whether `job.json` is read when it is asked for.
    """
    folder = os.path.abspath(folder)
    status = _in_shape(read_object(f"{folder}/status.json", LARGEST, links=False))
    ours = status.get("Trainshed")
    if isinstance(ours, dict) and status.get("TrainingJobStatus") not in ENDED:
        status["Trainshed"] = {**_numbers_in(folder), **ours}
    about = _Later(f"{folder}/job.json")
    return Stored(folder, status, about if later else about._read)


def opened(folder: str) -> Stored:
    """The run that a person means, by its folder. Raises NoRunError where one of its files is a link."""
    for name in ("status.json", "job.json"):
        if os.path.islink(f"{folder}/{name}"):
            raise NoRunError(
                f"{folder}/{name} is a link, which is not followed: the run's script may have put it there",
                hint="look where it leads to, and remove it",
            )
    return load(folder)


def _numbers_in(folder: str) -> dict[str, int]:
    """What places themselves have left of a run's job: who submitted it may have been killed before it could say so."""
    found = {place.key: number_in(f"{folder}/{place.key_file}") for place in BUILT_IN.values() if place.key_file}
    return {key: number for key, number in found.items() if number is not None}


_SHAPE: dict[str, type] = {
    "SecondaryStatusTransitions": list, "FinalMetricDataList": list, "Trainshed": dict, "ResourceConfig": dict,
    "AlgorithmSpecification": dict, "TrainingJobName": str, "TrainingJobStatus": str, "SecondaryStatus": str,
    "FailureReason": str, "CreationTime": str, "TrainingTimeInSeconds": int, "BillableTimeInSeconds": int,
}  # fmt: skip


def _in_shape(status: dict[str, Any]) -> dict[str, Any]:
    """Without what is of another kind than a runner writes."""
    good: dict[str, Any] = {name: value for name, value in status.items() if _is_in_shape(name, value)}
    for name in ("SecondaryStatusTransitions", "FinalMetricDataList"):
        if name in good:
            good[name] = [entry for entry in good[name] if isinstance(entry, dict)]
    if isinstance(ours := good.get("Trainshed"), dict) and "Attempts" in ours:
        good["Trainshed"] = {**ours, "Attempts": [one for one in _entries(ours["Attempts"]) if _is_attempt(one)]}
    if "TrainingTimeInSeconds" not in good or "BillableTimeInSeconds" not in good:
        good.pop("TrainingTimeInSeconds", None)
    return good


def _is_in_shape(name: str, value: Any) -> bool:
    kind = _SHAPE.get(name, object)
    return isinstance(value, kind) and (kind is not int or (type(value) is int and 0 <= value < LATEST))


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_attempt(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("Outcome"), str):
        return False
    seconds = value.get("Seconds")
    return isinstance(seconds, (int, float)) and 0 <= seconds < LATEST


def every(environ: Mapping[str, str]) -> list[Stored]:
    """The runs that the index knows and those below `./runs`, oldest first."""
    return _in(folder for folder, _ in index.each_once(one.folder for one in index.noted(environ)))


def of_here(environ: Mapping[str, str]) -> list[Stored]:
    """The runs of the working directory, oldest first: below `./runs`, beside it, and those that were started from it."""
    try:
        here = os.path.realpath(".")
    except OSError:  # it has been removed
        return []
    near = {here} if os.path.islink(RUNS) else {here, os.path.realpath(RUNS)}

    def is_of_here(folder: str, started: str) -> bool:
        folder = os.path.realpath(folder)
        return (bool(started) and os.path.realpath(started) == here) or bool({folder, os.path.dirname(folder)} & near)

    noted = [one.folder for one in index.noted(environ) if is_of_here(one.folder, one.started)]
    own = [folder for folder in index.of_runs() if not os.path.islink(folder) and not os.path.islink(RUNS)]
    return _in(folder for folder, _ in index.once([*noted, *own], set()))


def _in(folders: Iterable[str]) -> list[Stored]:
    """The runs in some folders, oldest first."""
    runs = [run for folder in folders if (run := load(folder, later=True)).status or run.about]
    return sorted(runs, key=lambda run: str(run.status.get("CreationTime", "")))


class Named(Protocol):
    """The names by which a run is known."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def folder(self) -> str: ...


def is_folder(text: str) -> bool:
    """Returns whether a person who names a run so means a folder."""
    return "/" in text or text in (".", "..")


def is_runs_folder(path: str) -> bool:
    """Returns whether a path leads to a run's folder."""
    run = load(path) if path else None
    return run is not None and bool(run.status or run.about)


def find(text: str, environ: Mapping[str, str]) -> Stored:
    """A run by its folder, its name, or the beginning of that or of its id.

    Raises:
        NoRunError: there is none, or several are meant.
    """
    if not is_folder(text):
        return opened(chosen(text, _named(text, environ)))
    run = opened(text)
    if not (run.status or run.about):
        there = os.path.exists(f"{text}/status.json")
        what = "its status.json cannot be read, or is damaged" if there else "it has no status.json"
        raise NoRunError(f"{text} is not a run's folder: {what}")
    return run


def newest(environ: Mapping[str, str], say: Callable[[str], None], *, acts: bool) -> Stored:
    """The run that is meant where none is named: the newest of the working directory.

    Args:
        say: told which run is shown, and from where, if it is one of another folder.
        acts: what is done changes or starts something: no run of another folder is taken, and no trial or step.

    Raises:
        NoRunError: there is none.
    """
    if here := [run for run in of_here(environ) if not (acts and run.is_part)]:
        return opened(here[-1].folder)
    if acts:
        _refuse_parts(environ)
    others = sorted(every(environ)[::-1], key=lambda run: acts and run.ended)
    if not others:
        raise NoRunError("there are no runs, neither in ./runs nor in the index", hint="start a run: trainshed run SCRIPT")
    if acts:
        there = some([_told(run) for run in others], 3)
        raise NoRunError(f"this folder has no run of its own; there is {there}", hint="name the run that you mean")
    say(f"this folder has no runs: this is {_told(others[0])}")
    return opened(others[0].folder)


def newest_running(environ: Mapping[str, str]) -> Stored | None:
    """The newest run of the working directory that goes on; None where none does. No trial and no step is meant."""
    going = (run for run in reversed(of_here(environ)) if not (run.ended or run.copied or run.lost or run.is_part))
    return next(going, None)


class _Whole(Record):
    """What a trial or a step is a part of. command: what acts on it."""

    kind: str
    part: str
    command: str
    folder: str


def _whole_at(folder: str) -> _Whole | None:
    """The tuning job or pipeline that has a folder; the user may have files named like one of theirs, but not both."""
    if all(os.path.isfile(f"{folder}/{name}") for name in ("tune.json", "tuner.lock")):
        return _Whole("tuning job", "trial", "tune", folder)
    if all(os.path.isfile(f"{folder}/{name}") for name in ("pipeline.json", "conductor.lock")):
        return _Whole("pipeline", "step", "steps", folder)
    return None


def _refuse_parts(environ: Mapping[str, str]) -> None:
    """Raises NoRunError where all runs of the working directory are trials or steps, with the commands of these."""
    here = os.path.realpath(".") if os.path.isdir(".") else ""
    wholes = [_whole_at(here), *(_whole_at(os.path.dirname(os.path.dirname(run.folder))) for run in of_here(environ)[::-1])]
    whole = next((one for one in wholes if one is not None), None)
    if whole is not None:
        path = shlex.quote(one_line(whole.folder))
        raise NoRunError(
            f"the runs of this folder are {whole.part}s of a {whole.kind}: {one_line(whole.folder)}",
            hint=f"trainshed {whole.command} stop {path} stops it; name a run to mean that {whole.part} alone",
        )


def refuse_run_named(text: str, environ: Mapping[str, str]) -> None:
    """Raises NoRunError where a word that is a folder of another kind is also a run's name, or the beginning of one."""
    meant = [] if is_folder(text) else _fitting(text, _named(text, environ))
    if meant:
        raise _either(text, meant)


def _named(text: str, environ: Mapping[str, str]) -> Sequence[Named]:
    """The runs that a word may mean; all of them where none fits. Files of a run are read where the index does not tell."""
    noted = index.noted(environ)
    known = {one.folder for one in noted}
    others = _in(folder for folder, _ in index.each_once(known) if folder not in known)
    meant = _in(run.folder for run in _fitting(text, [*noted, *others]))
    return meant if _fitting(text, meant) else every(environ)


def chosen(text: str, runs: Sequence[Named]) -> str:
    """The folder of a run by its name, the beginning of that or of its id; also a run's folder in the working directory.

    Raises:
        NoRunError: there is none, or several are meant.
    """
    if not text:
        raise NoRunError("the name of the run is empty")
    meant = _fitting(text, runs)
    if is_runs_folder(text):
        if others := [run for run in meant if os.path.realpath(run.folder) != os.path.realpath(text)]:
            raise _either(text, others)
        return text
    if len(meant) == 1:
        return meant[0].folder
    if not runs:
        raise NoRunError("there are no runs, neither in ./runs nor in the index", hint="start a run: trainshed run SCRIPT")
    if not meant:
        near = did_you_mean(text, [run.name for run in runs])
        raise NoRunError(f"there is no run {text!r}" + (f": {near}" if near else ""), hint="trainshed ls lists them")
    if meant[0].name == text:
        places = some([_folder(run) for run in meant[::-1]], 3)
        raise NoRunError(f"several runs are named {text!r}: in {places}", hint="name the folder instead")
    there = some([_told(run) for run in meant[::-1]], 3)
    raise NoRunError(f"{len(meant)} runs begin with {text!r}: {there}", hint="give more of the name, or the folder")


def _fitting(text: str, runs: Sequence[Named]) -> list[Named]:
    """The runs of a name; without any, those whose names or ids begin so."""
    exact = [run for run in runs if run.name == text]
    return exact or [run for run in runs if run.name.startswith(text) or (len(text) > 5 and run.id.startswith(text))]


def _either(text: str, runs: Sequence[Named]) -> NoRunError:
    there = some([_told(run) for run in runs[::-1]], 3)
    return NoRunError(
        f"{text!r} is a folder here, and may also mean {there}", hint=f"write ./{text} for the folder, or the run's folder"
    )


def _told(run: Named) -> str:
    return f"{run.name} in {_folder(run)}"


def _folder(run: Named) -> str:
    return one_line(run.folder)


def refuse_masked(job: Job, where: str) -> None:
    """A secret that was given as plain text was not kept. Raises JobError where a value is masked."""
    problems = [
        Problem(
            where, "is a secret, which was not kept", f"{field}.{name}", suggestion=f"give it again: {flag} {name}=VALUE"
        )
        for field, values, flag in (
            ("hyperparameters", job.hyperparameters, "--hp"),
            ("environment", job.environment, "--env"),
        )
        for name, value in values.items()
        if MASK in str(value)
    ]
    for field, value in (
        ("program", job.program),
        ("entrypoint", job.entrypoint),
        ("arguments", job.arguments),
        ("config", job.config),
        ("distribution", job.distribution.parameters),
    ):
        if MASK in str(value):
            problems.append(Problem(where, "holds a secret, which was not kept: start a new run from the job file", field))
    if problems:
        raise JobError(problems)
