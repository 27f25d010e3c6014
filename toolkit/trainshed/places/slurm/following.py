"""A job that Slurm has, from its submission to the end that `status.json` tells: for who submitted it and who comes later.

One process at a time follows a job: it holds `slurm/follower.lock` in the run's folder. A job outlives its follower; the
next one takes it up again, by the number that sbatch itself has written into `slurm/number`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trainshed.base.errors import EXIT_SIGNAL_BASE, EXIT_TIMEOUT
from trainshed.base.files import write_atomic
from trainshed.base.locks import is_held
from trainshed.base.units import duration
from trainshed.machine.signals import SignalPipe
from trainshed.runner.acting.submission import finish
from trainshed.runner.display.screen import Screen
from trainshed.runner.files.ending import Ending, HostEnd, Verdict
from trainshed.runner.files.grace import KILL_SECONDS
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import Run
from trainshed.runner.job.places import SLURM
from trainshed.runner.state.records import failure_of, record_of
from trainshed.runner.state.status import StatusFile
from trainshed.runner.state.stored import Stored, load

from .client import RUNNING, Client, State
from .follow import End, Follower, nodes_of
from .script import CANCELLED

PAUSE = 0.5  # seconds between two looks at a run that somebody else follows


def to_the_end(run: Run, number: int, client: Client, screen: Screen, signals: SignalPipe, status: StatusFile) -> int:
    """Follows a job until it is over, collects, writes how it ended; its exit status.

    Raises:
        TrainshedError: Slurm does not answer any more.
    """
    metrics = Metrics.of(run.job.metric_definitions)
    changed = partial(note_state, status)
    end = Follower(run, number, client, screen, metrics, signals, changed).to_the_end()
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


def _finish(run: Run, end: End, status: StatusFile, metrics: Metrics, screen: Screen) -> int:
    """Collects, writes the last status, shows the summary; the job's exit status."""
    names = nodes_of(end.state, len(run.hosts))
    if names:  # `train` calls the hosts by the nodes' names
        run = replace(run, hosts=tuple(replace(host, name=name) for host, name in zip(run.hosts, names, strict=True)))
    ends = tuple(HostEnd(host.name, int(record_of(host).get("exit_code") or 0)) for host in run.hosts)
    ending = Ending(ends, end.stop_signal, seconds=end.seconds)
    return finish(run, _judge(run, end), ending, status, metrics, screen)


def _judge(run: Run, end: End) -> Verdict:
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
