"""`trainshed run --on slurm`: the job of a file and flags, submitted to Slurm and followed to its end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import EXIT_INTERRUPTED, EXIT_SIGNAL_BASE, EXIT_TIMEOUT, JobError, Problem, did_you_mean
from trainshed.base.files import write_atomic
from trainshed.base.secrets import mask_text, new_token
from trainshed.base.units import duration
from trainshed.contract.wire.variables import ROSTER_TOKEN, RUN_ID, SECRET_NAMES, of_setting
from trainshed.machine.isolation import isolated
from trainshed.machine.signals import Interrupted, SignalPipe, stop_raises

from ...display.screen import Screen
from ...display.summary import render, shown
from ...files import layout
from ...files.collect import collect, settled
from ...files.ending import Ending, HostEnd, Verdict
from ...files.metrics import Metrics
from ...files.run import Run
from ...job.job import Job
from ...job.references import look_up, secrets_of
from ...state import index
from ...state.job_json import described
from ...state.records import failure_of, phases_of, record_of
from ...state.status import StatusFile, iso
from ..processes import inherited
from .client import RUNNING, Client, State
from .follow import End, Follower, nodes_of
from .script import RUNTIMES, Options, batch_script

_OURS = ("nodes", "ntasks-per-node", "ntasks", "output", "error", "open-mode", "array", "wrap")  # the script relies on them


def run_on_slurm(job: Job, pairs: list[str], *, dry_run: bool = False, detach: bool = False) -> int:
    """Submits the job, follows it to its end; its exit status.

    Args:
        pairs: options of sbatch as NAME=VALUE.
        dry_run: print the batch script, submit nothing.
        detach: return as soon as Slurm has the job.

    Raises:
        JobError: an option is wrong.
        TrainshedError: the job could not be submitted.
    """
    options = read_options(job, pairs)
    screen = Screen()
    try:
        return submit_and_follow(job, options, screen, os.environ, dry_run=dry_run, detach=detach)
    except Interrupted as error:
        screen.say(str(error))
        return EXIT_SIGNAL_BASE + error.number
    finally:
        screen.close()


def read_options(job: Job, pairs: list[str]) -> Options:
    """The job's `slurm` mapping, and flags over it. Raises JobError."""
    problems: list[Problem] = []
    given: dict[str, str] = {}
    for name, value in job.places.get("slurm", {}).items():
        if isinstance(value, (dict, list)):
            problems.append(Problem("slurm", "must be one value", name))
            continue
        given[name] = "" if value in (True, None) else str(value)
    for pair in pairs:
        name, _, value = pair.removeprefix("--").partition("=")
        given[name] = value
    sbatch = {name.replace("_", "-"): value for name, value in given.items()}
    runtime = sbatch.pop("runtime", "auto")
    if runtime not in RUNTIMES:
        problems.append(
            Problem("slurm", f"must be one of {', '.join(RUNTIMES)}", "runtime", runtime, did_you_mean(runtime, RUNTIMES))
        )
    for name in sbatch:
        if not name.replace("-", "").isalnum():
            problems.append(Problem("slurm", "is not a valid option of sbatch", name))
        elif name in _OURS:
            problems.append(Problem("slurm", "is set by trainshed; `instances` says how many nodes", name))
    if problems:
        raise JobError(problems)
    return Options(sbatch, runtime)


def submit_and_follow(
    job: Job, options: Options, screen: Screen, environ: Mapping[str, str], *, dry_run: bool = False, detach: bool = False
) -> int:
    """The exit status of the job. Raises TrainshedError where it could not be submitted, Interrupted before it was."""
    run = layout.plan(job, in_containers=False, now=time.time())
    variables = (*job.environment, *job.references, *([SECRET_NAMES] if job.references else []))
    text = batch_script(run, options, train_command(environ), variables)
    if dry_run:
        print(mask_text(text, secrets_of(job, {})), end="")
        return 0
    signals = SignalPipe()
    try:
        client = Client(environ)
        with stop_raises("before the job was submitted"):
            client.check()
            secrets = look_up(job, environ)
            screen.secrets = secrets_of(job, secrets)
            claimed = layout.claim(run)
            if claimed is not run:  # another run of this name was first
                run, text = claimed, batch_script(claimed, options, train_command(environ), variables)
            place(run, text, screen.say, screen.secrets)
            index.note(run, environ)
        status = StatusFile(run, secrets=screen.secrets)
        number = client.submit(f"{run.folder}/slurm/job.sh", {**environment_of(run, environ), **secrets})
        screen.say(f"{run.name}: job {number} of Slurm, {job.instances} node(s), in {shown(run.folder)}")
        status.data["Trainshed"] |= {"SlurmJobId": number}
        status.to("Pending", f"Slurm has the job as number {number}")
        if detach:
            return 0
        metrics = Metrics.of(job.metric_definitions)
        follower = Follower(run, number, client, screen, metrics, signals, lambda state: note_state(status, state))
        end = follower.to_the_end()
        return finish(run, end, status, metrics, screen)
    finally:
        signals.close()


def train_command(environ: Mapping[str, str]) -> str:
    """What starts `train` as a process of a node: this Python, which lies on the shared file system as the run does."""
    return shlex.join(isolated("trainshed.container.main"))


def place(run: Run, script: str, say: Callable[[str], None] = lambda _: None, secrets: tuple[str, ...] = ()) -> None:
    """Makes the run's folder. The nodes' names are Slurm's to say, so no file lists the hosts. Raises TrainshedError."""
    layout.place(run, interface="", say=say)
    for host in run.hosts:
        os.unlink(f"{host.folder}/input/config/resourceconfig.json")
    os.makedirs(f"{run.folder}/slurm", exist_ok=True)
    write_atomic(f"{run.folder}/slurm/job.sh", script)
    write_atomic(f"{run.folder}/job.json", json.dumps(described(run, secrets=secrets), indent=2) + "\n")


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


def note_state(status: StatusFile, state: State) -> None:
    """A transition of `status.json`."""
    known: dict[str, Any] = {"SlurmState": state.state, "Restarts": state.restarts, "Nodes": state.nodes}
    status.data["Trainshed"] |= known
    if state.state == RUNNING:
        status.to("Training", f"Running on {state.nodes}", TrainingStartTime=iso(time.time()))
    elif not state.over:
        status.to("Pending", state.reason or state.state)


def finish(run: Run, end: End, status: StatusFile, metrics: Metrics, screen: Screen) -> int:
    """Collects, writes the last status, shows the summary; the job's exit status."""
    names = nodes_of(end.state, len(run.hosts))
    if names:  # `train` calls the hosts by the nodes' names
        run = replace(run, hosts=tuple(replace(host, name=name) for host, name in zip(run.hosts, names, strict=True)))
    verdict = judge(run, end)
    status.to("Uploading")
    archives = collect(run, verdict, screen.status)
    verdict = settled(verdict, archives)
    ends = tuple(HostEnd(host.name, int(record_of(host).get("exit_code") or 0)) for host in run.hosts)
    ending = Ending(ends, end.stop_signal, seconds=end.seconds)
    status.ended(verdict, ending, metrics, archives[0].path, archives)
    screen.block(render(run, verdict, phases_of(run.hosts), metrics, archives, time.time() - run.started))
    return verdict.exit_code


def judge(run: Run, end: End) -> Verdict:
    """How the job ended, from Slurm's state and the nodes' records."""
    state = end.state
    if end.stop_signal:
        name = signal.Signals(end.stop_signal).name
        return Verdict("Stopped", "Stopped", EXIT_SIGNAL_BASE + end.stop_signal, reason=f"stopped by {name}")
    if state is None:
        return Verdict("Failed", "Failed", 1, reason="Slurm no longer knows how the job ended (neither scontrol nor sacct)")
    if state.state == "COMPLETED":
        return Verdict("Completed", "Completed", 0)
    if state.state == "TIMEOUT":
        limit = duration(run.job.max_runtime_seconds) if run.job.max_runtime_seconds else "the partition's"
        return Verdict("Stopped", "MaxRuntimeExceeded", EXIT_TIMEOUT, reason=f"it reached its time limit, {limit}")
    if state.state == "CANCELLED":
        return Verdict("Stopped", "Stopped", EXIT_SIGNAL_BASE + signal.SIGTERM, reason="cancelled by scancel")
    failed = next((host for host in run.hosts if failure_of(host)), None)
    code = state.code or (EXIT_SIGNAL_BASE + state.signal if state.signal else 1)
    named = (record_of(failed).get("failure") or {}).get("host") if failed else None
    reason = failure_of(failed) if failed else f"Slurm: {state.state} {state.reason}".rstrip() + "; look at logs/slurm.log"
    if state.state not in ("FAILED", "COMPLETING"):
        reason = f"Slurm: {state.state}; {reason}" if failed else reason
    return Verdict("Failed", "Failed", code, named or (failed.name if failed else ""), reason)
