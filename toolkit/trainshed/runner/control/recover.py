"""Runs whose runner was killed: ends their hosts, collects their results, writes how they ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from trainshed.base.errors import EXIT_SIGNAL_BASE, TrainshedError

from ..acting import acting
from ..acting.leftovers import LeftoverProcesses, Leftovers
from ..files.collect import Archive, collect, settled
from ..files.ending import Ending, HostEnd, RunEnd
from ..files.metrics import Metrics
from ..files.mounts import clear
from ..files.owner import hand_over
from ..files.run import Run
from ..job.places import HERE
from ..state.records import record_of
from ..state.status import StatusFile, seconds_of
from ..state.stored import Stored
from ..state.verdict import judge

_LOST = "its runner was killed while the job was "
EXIT_LOST = EXIT_SIGNAL_BASE + signal.SIGKILL  # what a killed runner would have exited with


def leftovers_of(run: Stored, environ: Mapping[str, str]) -> Leftovers:
    """What is left of a run on this machine.

    Raises:
        TrainshedError: the engine that has its containers does not answer, or is another one.
    """
    return acting(HERE).leftovers(run.id, run.engine if run.in_containers else None, environ)


def still_running(run: Stored, environ: Mapping[str, str]) -> list[str]:
    """Finds what of a run goes on although its runner is dead: hosts' names, processes. Raises TrainshedError."""
    return leftovers_of(run, environ).running() if run.id else []


def settle(run: Stored, environ: Mapping[str, str], say: Callable[[str], None], *, grace: float | None = None) -> RunEnd:
    """Ends what a dead runner left (SIGTERM, then SIGKILL after the grace), collects it, writes the last status.

    Args:
        grace: seconds; the job's own if None.

    Raises:
        TrainshedError: the run's files are none, or the engine that has its containers cannot be asked.
    """
    made = run.run()
    grace = made.job.grace_seconds if grace is None else grace
    left = leftovers_of(run, environ)
    until = None if left.running() else _last_sign(run, made)
    ends = left.end(grace, len(made.hosts))
    clear(made.folder)
    lost, notes = left.fetch(made)
    for problem in (*lost, *notes):
        say(f"warning: {problem}")
    status = StatusFile(made, before=run.status, first="Uploading", until=until)
    ending = Ending(tuple(ends), lost=lost)
    verdict = _verdict(run, ends, judge(made, ending) if ends else None)
    archives: tuple[Archive, ...] = ()
    try:
        if os.path.isdir(made.artifacts):
            archives = collect(made, verdict)
            verdict = settled(verdict, archives)
    finally:
        status.ended(verdict, ending, Metrics(), archives[0].path if archives else "", archives)
        hand_over(made, environ)
    for archive in archives:
        if archive.problem:
            say(f"warning: {archive.problem}")
    for problem in left.remove() if not lost else ():
        say(f"warning: {problem}")
    return verdict


def _last_sign(run: Stored, made: Run) -> float:
    """When the run was last seen to do something: nobody noted its end, and days may have gone by since."""
    signs = [seconds_of(run.status.get("LastModifiedTime")) or made.started]
    for host in made.hosts:
        for path in (made.log(host.name), host.record):
            with suppress(OSError):
                signs.append(os.lstat(path).st_mtime)
    return min(max(signs), time.time())


def _verdict(run: Stored, ends: list[HostEnd], judged: RunEnd | None) -> RunEnd:
    lost = f"{_LOST}{str(run.status.get('SecondaryStatus') or 'Starting').lower()}"
    if judged is None:
        states = {str(record_of(host).get("state")) for host in run.run().hosts}
        if states == {"Completed"}:
            return RunEnd("Completed", "Completed", 0)
        return RunEnd("Failed", "Failed", EXIT_LOST, reason=lost)
    if judged.status == "Completed" and any(end.asked for end in ends):
        return RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + signal.SIGTERM, reason=f"stopped; {lost}")
    return judged


def was_lost(run: Stored) -> bool:
    """Returns whether a run that has ended did so because its runner was killed: `settle` has written that."""
    last = (run.status.get("SecondaryStatusTransitions") or [{}])[-1]
    return run.ended and run.said[0] != "Completed" and _LOST in str(last.get("StatusMessage"))


def remove_leftovers(run: Stored, environ: Mapping[str, str]) -> None:
    """Kills and removes whatever there is of a run beside its folder. Raises TrainshedError where that fails."""
    clear(run.folder)
    if not run.id:
        return
    try:
        left = leftovers_of(run, environ)
    except TrainshedError:
        if not run.ended:  # its runner could not remove them, so they may still be there
            raise
        left = LeftoverProcesses(run.id)
    if problems := left.remove():
        raise TrainshedError(problems[0])
