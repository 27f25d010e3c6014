"""`trainshed run --on slurm`: the job of a file and flags, submitted to Slurm and followed to its end."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trainshed.base.errors import EXIT_INTERRUPTED, EXIT_SIGNAL_BASE, EXIT_TIMEOUT, JobError, Problem, did_you_mean
from trainshed.base.files import remove, write_atomic
from trainshed.base.locks import is_held
from trainshed.base.secrets import new_token
from trainshed.base.units import duration
from trainshed.contract.wire.variables import ROSTER_TOKEN, RUN_ID, SECRET_NAMES, of_setting
from trainshed.machine.isolation import isolated
from trainshed.machine.signals import SignalPipe
from trainshed.runner.acting.submission import Follow, Queue, Submission, finish
from trainshed.runner.display.screen import Screen
from trainshed.runner.display.summary import shown
from trainshed.runner.files import layout
from trainshed.runner.files.ending import Ending, HostEnd, RunEnd
from trainshed.runner.files.grace import KILL_SECONDS
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import Run
from trainshed.runner.files.staging import stage
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import SLURM, refused
from trainshed.runner.state.records import failure_of, record_of
from trainshed.runner.state.status import StatusFile
from trainshed.runner.state.stored import Stored, load

from ..processes import inherited
from .client import RUNNING, Client, State
from .follow import SlurmFollower, SlurmJobEnd, nodes_of
from .script import BATCH_SCRIPT, CANCELLED, RUNTIMES, SlurmOptions, batch_script

_OURS = ("nodes", "ntasks-per-node", "ntasks", "output", "error", "open-mode", "array", "wrap")  # the script relies on them


def with_options(job: Job, pairs: list[str]) -> Job:
    """The job with options of sbatch, NAME=VALUE each, over those that it names."""
    given = {name.replace("_", "-"): value for name, value in job.places.get(SLURM.name, {}).items()}
    for pair in pairs:
        name, _, value = pair.removeprefix("--").partition("=")
        given[name.replace("_", "-")] = value
    return replace(job, places={**job.places, SLURM.name: given}) if pairs else job


def read_options(job: Job) -> SlurmOptions:
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
    return SlurmOptions(sbatch, runtime)


def script_of(run: Run, options: SlurmOptions, environ: Mapping[str, str]) -> str:
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


# One process at a time follows a job: it holds `slurm/follower.lock` in the run's folder. A job outlives its follower; the
# next one takes it up again, by the number that sbatch itself has written into `slurm/number`.
PAUSE = 0.5  # seconds between two looks at a run that somebody else follows


def to_the_end(run: Run, number: int, client: Client, screen: Screen, signals: SignalPipe, status: StatusFile) -> int:
    """Follows a job until it is over, collects, writes how it ended; its exit status.

    Raises:
        TrainshedError: Slurm does not answer any more.
    """
    metrics = Metrics.of(run.job.metric_definitions)
    changed = partial(note_state, status)
    end = SlurmFollower(run, number, client, screen, metrics, signals, changed).to_the_end()
    return _finish(run, end, status, metrics, screen)


def stop_from_elsewhere(stored: Stored, environ: Mapping[str, str], *, kill: bool = False) -> None:
    """Has a job end that another process follows, maybe on another machine, with its grace; that process says how it ended.

    Raises:
        TrainshedError: Slurm does not answer.
    """
    client, number = Client(environ), int(stored.ours[SLURM.key])
    client.check()
    write_atomic(f"{stored.folder}/{CANCELLED}", b"")  # so that the batch script does not queue it again
    end = time.monotonic() + stored.run().job.grace_seconds + KILL_SECONDS
    asked = False
    while is_held(f"{stored.folder}/{SLURM.lock}") and not load(stored.folder).ended:
        state = client.state(number) if not asked or time.monotonic() > end else None
        if state is not None and state.state == RUNNING and not kill and not asked:
            client.ask_to_stop(number)
        elif state is not None and not state.over:
            client.cancel(number)
        asked = True
        time.sleep(PAUSE)


def note_state(status: StatusFile, state: State) -> None:
    """A transition of `status.json`."""
    known: dict[str, Any] = {"SlurmState": state.state, "Restarts": state.restarts, "Nodes": state.nodes}
    status.data["Trainshed"] |= known
    if state.state == RUNNING:
        status.to("Training", f"Running on {state.nodes}")
    elif not state.over:
        status.to("Pending", state.reason or state.state)


def _finish(run: Run, end: SlurmJobEnd, status: StatusFile, metrics: Metrics, screen: Screen) -> int:
    """Collects, writes the last status, shows the summary; the job's exit status."""
    names = nodes_of(end.state, len(run.hosts))
    if names:  # `train` calls the hosts by the nodes' names
        run = replace(run, hosts=tuple(replace(host, name=name) for host, name in zip(run.hosts, names, strict=True)))
    ends = tuple(HostEnd(host.name, int(record_of(host).get("exit_code") or 0)) for host in run.hosts)
    ending = Ending(ends, end.stop_signal, seconds=end.seconds)
    return finish(run, _judge(run, end), ending, status, metrics, screen)


def _judge(run: Run, end: SlurmJobEnd) -> RunEnd:
    """How the job ended, from Slurm's state and the nodes' records."""
    state = end.state
    if end.stop_signal:
        name = signal.Signals(end.stop_signal).name
        return RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + end.stop_signal, reason=f"stopped by {name}")
    if state is None:
        return RunEnd("Failed", "Failed", 1, reason="Slurm no longer knows how the job ended (neither scontrol nor sacct)")
    if state.state == "COMPLETED":
        return RunEnd("Completed", "Completed", 0)
    if state.state == "TIMEOUT":
        limit = duration(run.job.max_runtime_seconds) if run.job.max_runtime_seconds else "the partition's"
        return RunEnd("Stopped", "MaxRuntimeExceeded", EXIT_TIMEOUT, reason=f"it reached its time limit, {limit}")
    if state.state == "CANCELLED":
        return RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + signal.SIGTERM, reason="cancelled by scancel")
    failed = next((host for host in run.hosts if failure_of(host)), None)
    code = state.code or (EXIT_SIGNAL_BASE + state.signal if state.signal else 1)
    named = (record_of(failed).get("failure") or {}).get("host") if failed else None
    reason = failure_of(failed) if failed else f"Slurm: {state.state} {state.reason}".rstrip() + "; look at logs/slurm.log"
    if state.state not in ("FAILED", "COMPLETING"):
        reason = f"Slurm: {state.state}; {reason}" if failed else reason
    return RunEnd("Failed", "Failed", code, named or (failed.name if failed else ""), reason)
