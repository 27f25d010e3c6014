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

from trainshed.base.errors import TrainshedError
from trainshed.base.files import read_object, remove
from trainshed.base.secrets import MASK
from trainshed.runner.job.job import Job
from trainshed.runner.job.write import plain_hyperparameters
from trainshed.runner.state.job_json import job_of, masked, typed
from trainshed.runner.state.stored import load
from trainshed.studio.batches.folder import IN_PROGRESS, LARGEST, Folder, shown

from .space import CATEGORICAL, KINDS, LOG, REVERSE_LOG, Parameter
from .trial import Trial, trial_of
from .tuning import MAXIMIZE, MINIMIZE, POPULATION, SAMPLERS, STRATEGIES, TuningJob, runs_trials

TUNES = "tunes"
FORMAT = 1
_NUMBER = re.compile(r"[0-9]{4,6}")


class TuningFolder(Folder):
    """The folder of one tuning job. path: absolute."""

    home, about_file, lock_file, log_file, parts = TUNES, "tune.json", "tuner.lock", "tuner.log", ("trials",)
    noun, done = "tuning job", "tuned"
    start = "name the folder of one, or start one: trainshed tune TUNE.yaml"
    resume = "go on with `trainshed tune --resume`"
    busy = "{} is being tuned already"
    busy_hint = "`trainshed tune status` shows it; use another --output for a second tuning job"

    def run(self, number: int) -> str:
        """The folder of a trial's run."""
        return f"{self.path}/trials/{number:04d}"

    def record(self, number: int) -> str:
        """The file of a trial."""
        return f"{self.path}/trials/{number:04d}.json"

    @property
    def asked(self) -> str:
        """The file that says what was asked for."""
        return f"{self.path}/tune.json"

    def save(self, trial: Trial) -> None:
        """Keeps a trial. Raises TrainshedError where that is not possible."""
        self.write(f"trials/{trial.number:04d}.json", json.dumps(trial.plain()) + "\n")

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
            trial = trial_of(read_object(self.record(number), LARGEST), number)
            if trial is None:
                trial = _from_run(self.run(number), number, space)
                if trial is None:
                    say(f"trial {number} was not started, and its file is damaged: it is planned anew")
                    continue
                say(f"the file of trial {number} is damaged or gone: it is made again from its run")
            found.append(trial)
        return found

    def link(self, name: str, target: str) -> None:
        """Makes a link in the folder lead somewhere else, at once. Raises TrainshedError."""
        aside = f"{self.path}/.{os.path.basename(name)}.{os.getpid()}.tmp"
        with self.guarded():
            remove(aside)
            os.symlink(target, aside)
            os.replace(aside, f"{self.path}/{name}")

    def keep_links(self, name: str, links: Mapping[str, str]) -> None:
        """Makes a folder in the folder hold these links and no others. Raises TrainshedError."""
        place = f"{self.path}/{name}"
        with self.guarded():
            os.makedirs(place, exist_ok=True)
            for held in os.listdir(place):
                if held not in links:
                    os.unlink(f"{place}/{held}")
        for held, target in links.items():
            self.link(f"{name}/{held}", target)

    def end(self, status: str, reason: str) -> None:
        """Writes how the tuning job ended. status: of HyperParameterTuningJobStatus. Raises TrainshedError."""
        told = {"status": status, "reason": reason, "ended": time.time()}
        self.write("outcome.json", json.dumps(told) + "\n")

    def outcome(self) -> dict[str, Any]:
        """How it ended: `status`, `reason`, `ended`; {} where it has not."""
        found = read_object(f"{self.path}/outcome.json", LARGEST)
        good = isinstance(found.get("status"), str) and isinstance(found.get("reason"), str)
        return found if good and isinstance(found.get("ended"), (int, float)) else {}


def described(tuning: TuningJob, file: str, created: float, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """`tune.json`: what `tuning_of` reads, secrets masked.

    Args:
        file: where it was read from.
        created: when the tuning job began, seconds since the epoch.
    """
    found = asdict(replace(tuning, job=Job("")))
    return {"format": FORMAT, "file": file, "created": created, **found, "job": masked(tuning.job, secrets)}


def tuning_of(data: Mapping[str, Any]) -> TuningJob:
    """The tuning job that `tune.json` describes, whoever may have written that. Raises ValueError where it is none."""
    try:
        if data["format"] != FORMAT:
            raise ValueError("format")
        tuning: TuningJob = typed(
            TuningJob, {name: data[name] for name in data if name not in ("format", "file", "created")}
        )
        tuning = replace(tuning, job=job_of(data["job"]))
        _check_bounds(tuning)
        return tuning
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


def read_asked(folder: TuningFolder) -> dict[str, Any]:
    """`tune.json` as it is; {} where it is missing or damaged."""
    return read_object(folder.asked, LARGEST)


def stored_tuning(folder: TuningFolder) -> TuningJob:
    """The tuning job of a folder. Raises TrainshedError where its file is damaged."""
    try:
        return tuning_of(read_asked(folder))
    except ValueError:
        raise TrainshedError(
            f"{shown(folder.asked)} is damaged", hint="start the tuning job again by its own file: the trials are all there"
        ) from None


def _check_bounds(tuning: TuningJob) -> None:
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
