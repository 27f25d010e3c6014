"""`trainshed run --on slurm`: the job of a file and flags, submitted to Slurm and followed to its end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trainshed.base.errors import EXIT_INTERRUPTED, JobError, Problem, did_you_mean
from trainshed.base.files import remove, write_atomic
from trainshed.base.secrets import new_token
from trainshed.contract.wire.variables import ROSTER_TOKEN, RUN_ID, SECRET_NAMES, of_setting
from trainshed.machine.isolation import isolated
from trainshed.machine.signals import SignalPipe
from trainshed.runner.acting.submission import Follow, Queue, Submission
from trainshed.runner.display.summary import shown
from trainshed.runner.files import layout
from trainshed.runner.files.run import Run
from trainshed.runner.files.staging import stage
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import SLURM, refused
from trainshed.runner.state.stored import Stored

from ..processes import inherited
from .client import Client
from .following import stop_from_elsewhere, to_the_end
from .script import BATCH_SCRIPT, CANCELLED, RUNTIMES, Options, batch_script

_OURS = ("nodes", "ntasks-per-node", "ntasks", "output", "error", "open-mode", "array", "wrap")  # the script relies on them


def with_options(job: Job, pairs: list[str]) -> Job:
    """The job with options of sbatch, NAME=VALUE each, over those that it names."""
    given = {name.replace("_", "-"): value for name, value in job.places.get(SLURM.name, {}).items()}
    for pair in pairs:
        name, _, value = pair.removeprefix("--").partition("=")
        given[name.replace("_", "-")] = value
    return replace(job, places={**job.places, SLURM.name: given}) if pairs else job


def read_options(job: Job) -> Options:
    """The job's `slurm` mapping. Raises JobError."""
    problems = refused(SLURM, job)
    given: dict[str, str] = {}
    for name, value in job.places.get(SLURM.name, {}).items():
        if isinstance(value, (dict, list)):
            problems.append(Problem(SLURM.name, "must be one value", name))
            continue
        given[name] = "" if value in (True, None) else str(value)
    sbatch = {name.replace("_", "-"): value for name, value in given.items()}
    runtime = sbatch.pop("runtime", "auto")
    if runtime not in RUNTIMES:
        problems.append(
            Problem(SLURM.name, f"must be one of {', '.join(RUNTIMES)}", "runtime", runtime, did_you_mean(runtime, RUNTIMES))
        )
    for name in sbatch:
        if not name.replace("-", "").isalnum():
            problems.append(Problem(SLURM.name, "is not a valid option of sbatch", name))
        elif name in _OURS:
            problems.append(Problem(SLURM.name, "is set by trainshed; `instances` says how many nodes", name))
    if problems:
        raise JobError(problems)
    return Options(sbatch, runtime)


def script_of(run: Run, options: Options, environ: Mapping[str, str]) -> str:
    """The run's batch script."""
    job = run.job
    variables = (*job.environment, *job.references, *([SECRET_NAMES] if job.references else []))
    return batch_script(run, options, train_command(environ), variables)


class SlurmSubmission(Submission):
    """One job on its way to Slurm, and to its end."""

    def check(self) -> None:
        """Raises SlurmError where this machine cannot submit jobs, JobError where an option is wrong."""
        self.options = read_options(self.job)
        self.client = Client(self.environ)
        self.client.check()

    def fill(self) -> None:
        """The hosts' trees, the batch script, channels that are fetched from here."""
        run, screen = self.run, self.screen
        if self.again is not None:
            for name in (SLURM.key_file, CANCELLED):
                remove(f"{run.folder}/{name}")
        place(run, script_of(run, self.options, self.environ), screen.say)
        stage(run, self.environ, screen.say, status=screen.status, blind=SLURM.obstacle("fast_file"))

    def submit(self, secrets: Mapping[str, str]) -> str:
        """Gives the batch script to sbatch."""
        run, job = self.run, self.job
        environment = {**environment_of(run, self.environ), **secrets}
        self.number = self.client.submit(f"{run.folder}/{BATCH_SCRIPT}", environment, run.folder)
        self.screen.say(f"{run.name}: job {self.number} of Slurm, {job.instances} node(s), in {shown(run.folder)}")
        self.status.data["Trainshed"] |= {SLURM.key: self.number}
        return f"Slurm has the job as number {self.number}"

    def follow(self, signals: SignalPipe) -> int:
        """Until Slurm has ended it."""
        return to_the_end(self.run, self.number, self.client, self.screen, signals, self.status)


class Slurm(Queue):
    """Runs jobs on Slurm."""

    submits = SlurmSubmission
    kept = ("SlurmState", "Restarts", "Nodes")

    def with_flags(self, job: Job, options: Mapping[str, Any]) -> Job:
        """The job with the options of `--sbatch`."""
        return with_options(job, options["sbatch"])

    def check(self, job: Job, environ: Mapping[str, str]) -> None:
        """Raises JobError where an option is wrong."""
        read_options(job)

    def preview(self, job: Job, environ: Mapping[str, str]) -> str:
        """The batch script."""
        return script_of(layout.plan(job, in_containers=False, now=time.time()), read_options(job), environ)

    def reach(self, stored: Stored, run: Run, environ: Mapping[str, str]) -> Follow:
        """Follows it by the number that sbatch itself has written into the run's folder."""
        client = Client(environ)
        client.check()
        return partial(to_the_end, run, int(stored.ours[SLURM.key]), client)

    def stop(self, stored: Stored, environ: Mapping[str, str], *, kill: bool = False) -> None:
        """With its grace, unless it is to be killed."""
        stop_from_elsewhere(stored, environ, kill=kill)


def train_command(environ: Mapping[str, str]) -> str:
    """The command that starts `train` as a process of a node: this Python, on the shared file system as the run is."""
    return shlex.join(isolated("trainshed.container.main"))


def place(run: Run, script: str, say: Callable[[str], None] = lambda _: None) -> None:
    """Fills the run's folder. The nodes' names are Slurm's to say, so no file lists the hosts. Raises TrainshedError."""
    layout.place(run, interface="", say=say)
    for host in run.hosts:
        os.unlink(f"{host.folder}/input/config/resourceconfig.json")
    os.makedirs(f"{run.folder}/{SLURM.name}", exist_ok=True)
    write_atomic(f"{run.folder}/{BATCH_SCRIPT}", script)


def environment_of(run: Run, environ: Mapping[str, str]) -> dict[str, str]:
    """sbatch's environment, which it hands on to the job: values stay off command lines and out of files."""
    own = {
        "TRAINING_JOB_NAME": run.name,
        RUN_ID: run.id,
        ROSTER_TOKEN: new_token(),
        of_setting("interrupted_exit_code"): str(EXIT_INTERRUPTED),
    }
    kept = {name: value for name, value in environ.items() if name.startswith(("SLURM_CONF", "SBATCH_"))}
    return {**inherited(environ), **kept, **own, **run.job.environment}
