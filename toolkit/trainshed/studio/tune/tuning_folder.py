"""What the folder of a tuning job keeps: files that are replaced as a whole, so that a kill at any moment leaves them whole.

    tunes/digits/
        tune.json             what was asked for, as it was understood; secrets masked
        tuner.lock            held by the tuner that works here; its PID is in it
        code/                 the code of all trials, as it was when the tuning job started
        trials/0001.json      a trial: its values, state, objective
        trials/0001.lock      held by its runner for as long as that lives
        trials/0001/          its run (runner/files/run.py)
        outcome.json          how it ended, once it has
        front/                with several objectives: links to the runs that no other one beats
        best, best.yaml       a link to the best trial's run, and a job file that makes it again
        tuner.log             what the tuner has said
        report.html

A trial's file that is damaged or gone is made again from its run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from trainshed.base.disk_full import Shortage
from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean
from trainshed.base.files import read_bytes, read_object, remove, write_atomic
from trainshed.base.locks import locked
from trainshed.base.secrets import MASK
from trainshed.runner.job.job import Job
from trainshed.runner.job.write import plain_hyperparameters
from trainshed.runner.state.job_json import job_of, masked, typed
from trainshed.runner.state.stored import load

from .space import CATEGORICAL, KINDS, LOG, REVERSE_LOG, Parameter
from .trial import IN_PROGRESS, Trial, trial_of
from .tuning import MAXIMIZE, MINIMIZE, POPULATION, SAMPLERS, STRATEGIES, Tuning, runs_trials

TUNES = "tunes"
FORMAT = 1
_NUMBER = re.compile(r"[0-9]{4,6}")
LARGEST = 16 << 20  # bytes of a file of ours
PATIENCE = 2.0  # seconds: a tuner that was killed may have left a child that has not let go of the lock yet


class NoTuningError(TrainshedError):
    """There is no such tuning job."""

    exit_code = EXIT_JOB


class TuningFolder:
    """The folder of one tuning job. path: absolute."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._lock = -1

    def run(self, number: int) -> str:
        """The folder of a trial's run."""
        return f"{self.path}/trials/{number:04d}"

    def record(self, number: int) -> str:
        """The file of a trial."""
        return f"{self.path}/trials/{number:04d}.json"

    def lock_of(self, number: int) -> str:
        """The lock of a trial's runner."""
        return f"{self.path}/trials/{number:04d}.lock"

    @property
    def asked(self) -> str:
        """The file that says what was asked for."""
        return f"{self.path}/tune.json"

    @property
    def code(self) -> str:
        """The code of all trials."""
        return f"{self.path}/code"

    def claim(self) -> None:
        """Makes the folder, and makes this process its only tuner until it ends.

        Raises:
            TrainshedError: another tuner works there, or the folder cannot be used.
        """
        try:
            os.makedirs(f"{self.path}/trials", exist_ok=True)
            fd = os.open(f"{self.path}/tuner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unusable(error, self.path) from error
        deadline = time.monotonic() + PATIENCE
        while not locked(fd):
            if time.monotonic() > deadline:
                pid = os.read(fd, 20).decode("ascii", "replace").strip()
                os.close(fd)
                raise TrainshedError(
                    f"{shown(self.path)} is being tuned already" + (f", by process {pid}" if pid.isdigit() else ""),
                    hint="`trainshed tune status` shows it; use another --output for a second tuning job",
                )
            time.sleep(0.05)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:  # a full disk costs the PID in a message
            pass
        self._lock = fd

    def release(self) -> None:
        """Lets another tuner work here."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def tuner(self) -> int:
        """PID of the tuner that works here, 0 if none does; -1 where one does and it is not known which."""
        try:
            fd = os.open(f"{self.path}/tuner.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            if locked(fd):
                return 0
            pid = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            return int(pid) if pid.isdigit() else -1
        finally:
            os.close(fd)

    def save(self, trial: Trial) -> None:
        """Keeps a trial. Raises TrainshedError where that is not possible."""
        self.write(self.record(trial.number), json.dumps(trial.plain()) + "\n")

    def write(self, path: str, text: str) -> None:
        """Replaces one of the folder's files. Raises TrainshedError."""
        try:
            write_atomic(path, text)
        except OSError as error:
            raise unusable(error, self.path) from error

    def trials(self, space: tuple[Parameter, ...], say: Callable[[str], None] = lambda _: None) -> list[Trial]:
        """The trials by their numbers. What cannot be read is made again from the trial's run; nothing is written.

        Args:
            say: told what had to be made again.
        """
        try:
            names = os.listdir(f"{self.path}/trials")
        except OSError:
            return []
        numbers = {int(stem) for name in names if _NUMBER.fullmatch(stem := name.removesuffix(".json")) and int(stem)}
        found = []
        for number in sorted(numbers):
            trial = trial_of(_object(self.record(number)), number)
            if trial is None:
                trial = _from_run(self.run(number), number, space)
                if trial is None:
                    say(f"trial {number} was not started, and its file is damaged: it is planned anew")
                    continue
                say(f"the file of trial {number} is damaged or gone: it is made again from its run")
            found.append(trial)
        return found

    def shortage(self) -> Shortage:
        """Who runs while the disk of this folder is full."""
        return Shortage(self.path, lambda error: unusable(error, self.path))

    def link(self, name: str, target: str) -> None:
        """Makes a link in the folder lead somewhere else, at once. Raises TrainshedError."""
        aside = f"{self.path}/.{os.path.basename(name)}.{os.getpid()}.tmp"
        try:
            remove(aside)
            os.symlink(target, aside)
            os.replace(aside, f"{self.path}/{name}")
        except OSError as error:
            raise unusable(error, self.path) from error

    def keep_links(self, name: str, links: Mapping[str, str]) -> None:
        """Makes a folder in the folder hold these links and no others. Raises TrainshedError."""
        place = f"{self.path}/{name}"
        try:
            os.makedirs(place, exist_ok=True)
            for held in os.listdir(place):
                if held not in links:
                    os.unlink(f"{place}/{held}")
        except OSError as error:
            raise unusable(error, self.path) from error
        for held, target in links.items():
            self.link(f"{name}/{held}", target)

    def end(self, status: str, reason: str) -> None:
        """Writes how the tuning job ended. status: of HyperParameterTuningJobStatus. Raises TrainshedError."""
        told = {"status": status, "reason": reason, "ended": time.time()}
        self.write(f"{self.path}/outcome.json", json.dumps(told) + "\n")

    @property
    def shown(self) -> str:
        """Its path for a person: as short as it can be here."""
        return shown(self.path)

    def outcome(self) -> dict[str, Any]:
        """How it ended: `status`, `reason`, `ended`; {} where it has not."""
        found = read_object(f"{self.path}/outcome.json", LARGEST)
        good = isinstance(found.get("status"), str) and isinstance(found.get("reason"), str)
        return found if good and isinstance(found.get("ended"), (int, float)) else {}


def unusable(error: OSError, folder: str) -> TrainshedError:
    """What is wrong with a tuning job's folder, in words."""
    return TrainshedError(
        f"cannot write in the tuning job's folder: {error.filename or folder}: {error.strerror}",
        hint="nothing is lost; make room, then go on with `trainshed tune --resume`",
    )


def shown(path: str) -> str:
    """A path as short as it can be for a person here."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


def find(text: str) -> TuningFolder:
    """A tuning job by its folder, its name or the beginning of that; the one that was started last for "".

    Raises:
        NoTuningError: there is none, or several begin so.
    """
    if text and os.path.isfile(f"{text}/tune.json"):
        return TuningFolder(text)
    if "/" in text:
        raise NoTuningError(f"{text} is not the folder of a tuning job: it has no tune.json")
    try:
        names = [name for name in os.listdir(TUNES) if os.path.isfile(f"{TUNES}/{name}/tune.json")]
    except OSError:
        names = []
    if not names:
        raise NoTuningError(
            "there are no tuning jobs in ./tunes", hint="name the folder of one, or start one: trainshed tune TUNE.yaml"
        )
    if not text:
        return TuningFolder(max((f"{TUNES}/{name}" for name in names), key=lambda path: _changed(f"{path}/tune.json")))
    begins = [text] if text in names else [name for name in names if name.startswith(text)]
    if len(begins) == 1:
        return TuningFolder(f"{TUNES}/{begins[0]}")
    if begins:
        raise NoTuningError(f"{len(begins)} tuning jobs begin with {text!r}: {', '.join(sorted(begins))}")
    near = did_you_mean(text, names)
    raise NoTuningError(f"there is no tuning job {text!r} in ./tunes" + (f": {near}" if near else ""))


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def described(tuning: Tuning, file: str, created: float, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """`tune.json`: what `tuning_of` reads, secrets masked.

    Args:
        file: where it was read from.
        created: when the tuning job began, seconds since the epoch.
    """
    found = asdict(replace(tuning, job=Job("")))
    return {"format": FORMAT, "file": file, "created": created, **found, "job": masked(tuning.job, secrets)}


def tuning_of(data: Mapping[str, Any]) -> Tuning:
    """The tuning job that `tune.json` describes, whoever may have written that. Raises ValueError where it is none."""
    try:
        if data["format"] != FORMAT:
            raise ValueError("format")
        tuning: Tuning = typed(Tuning, {name: data[name] for name in data if name not in ("format", "file", "created")})
        tuning = replace(tuning, job=job_of(data["job"]))
        _check_bounds(tuning)
        return tuning
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


def read_asked(folder: TuningFolder) -> dict[str, Any]:
    """`tune.json` as it is; {} where it is missing or damaged."""
    return _object(folder.asked)


def stored_tuning(folder: TuningFolder) -> Tuning:
    """The tuning job of a folder. Raises TrainshedError where its file is damaged."""
    try:
        return tuning_of(read_asked(folder))
    except ValueError:
        raise TrainshedError(
            f"{shown(folder.asked)} is damaged", hint="start the tuning job again by its own file: the trials are all there"
        ) from None


def _check_bounds(tuning: Tuning) -> None:
    """Values are as a tuning file may have them, as far as anything rests on it. Raises ValueError."""
    limits, early = tuning.limits, tuning.early
    good = limits.max_parallel >= 1 and limits.max_failed >= 1 and early.least >= 1 and early.factor >= 2
    good = good and (tuning.strategy.kind != POPULATION or tuning.strategy.size >= 2)
    good = good and 1 <= early.brackets <= 10 and tuning.strategy.kind in STRATEGIES and tuning.strategy.sampler in SAMPLERS
    good = (
        good
        and all(one.goal in (MINIMIZE, MAXIMIZE) for one in tuning.objectives)
        and bool(tuning.space)
        and runs_trials(tuning.place)
    )
    for one in tuning.space:
        good = good and one.kind in KINDS and one.low <= one.high and (one.kind != CATEGORICAL or bool(one.categories))
        good = good and (
            not one.step or (one.step.replace(".", "", 1).replace("e-", "", 1).isdigit() and float(one.step) > 0)
        )
        good = good and (one.scale != LOG or one.low > 0) and (one.scale != REVERSE_LOG or 0 <= one.low <= one.high < 1)
    if not good:
        raise ValueError("a value that no tuning file has")


def _object(path: str) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(path, LARGEST) or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _from_run(folder: str, number: int, space: tuple[Parameter, ...]) -> Trial | None:
    """A trial as its run tells it: its values are among the run's hyperparameters."""
    run = load(folder)
    try:
        job = run.run().job
    except TrainshedError:
        return None
    texts = {name: _text(value) for name, value in plain_hyperparameters(job).items()}
    values: dict[str, str] = {}
    for parameter in space:
        if parameter.active(values):
            text = texts.get(parameter.name, MASK)
            if parameter.place(text) is None:
                return None
            values[parameter.name] = text
    try:
        began = run.run().started
    except TrainshedError:
        began = 0.0
    return Trial(number, values, IN_PROGRESS, created=began)


def _text(value: Any) -> str:
    from trainshed.runner.job.encode import encode

    return value if isinstance(value, str) else encode(value)
