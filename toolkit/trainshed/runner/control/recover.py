"""Runs whose runner was killed: ends their hosts, collects their results, writes how they ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

from trainshed.base.errors import EXIT_SIGNAL_BASE, TrainshedError, exit_status

from ..files.collect import Archive, collect, settled
from ..files.ending import Ending, HostEnd, Verdict
from ..files.grace import KILL_SECONDS, REPORT_SECONDS
from ..files.metrics import Metrics
from ..files.mounts import clear
from ..files.owner import hand_over
from ..files.run import Run
from ..places.base import Exit
from ..places.cleanup import LeftoverContainer, containers, remove_all
from ..places.container_engine import Engine, EngineError, find_engine
from ..places.copying import fetch_all
from ..places.leftovers import await_clients, end_leftovers, processes_of
from ..state.records import record_of
from ..state.status import StatusFile
from ..state.stored import Stored
from ..state.verdict import judge

PAUSE = 0.1  # seconds between two looks
_LOST = "its runner was killed while the job was "
EXIT_LOST = EXIT_SIGNAL_BASE + signal.SIGKILL  # what a killed runner would have exited with


def engine_of(run: Stored, environ: Mapping[str, str]) -> Engine | None:
    """The engine that has a run's containers; None where the run has none.

    Raises:
        EngineError: it does not answer, or is another one than the run was started with.
    """
    if not run.in_containers:
        return None
    engine = find_engine(environ)
    if run.engine and run.engine != engine.place:
        place = run.engine if run.engine == "podman" else f"the engine at {run.engine}"
        raise EngineError(
            f"{run.name} has its containers in {place}, but this command uses {engine.place}",
            hint="set DOCKER=podman" if run.engine == "podman" else f"set DOCKER_HOST={run.engine}",
        )
    return engine


def still_running(run: Stored, environ: Mapping[str, str]) -> list[str]:
    """Finds what of a run goes on although its runner is dead: hosts' names, processes. Raises EngineError."""
    if not run.id:
        return []
    engine = engine_of(run, environ)
    if engine is not None:
        return [one.host for one in containers(engine, run.id) if one.running]
    return [f"process {pid}" for pid in processes_of(run.id)]


def settle(run: Stored, environ: Mapping[str, str], say: Callable[[str], None], *, grace: float | None = None) -> Verdict:
    """Ends what a dead runner left (SIGTERM, then SIGKILL after the grace), collects it, writes the last status.

    Args:
        grace: seconds; the job's own if None.

    Raises:
        TrainshedError: the run's files are none, or the engine that has its containers cannot be asked.
    """
    made = run.run()
    grace = made.job.grace_seconds if grace is None else grace
    engine = engine_of(run, environ)
    if engine is not None:
        await_clients(run.id)
    hosts = len(made.hosts)
    ends = _end_containers(engine, run.id, grace, hosts) if engine is not None else _end_processes(run.id, grace)
    clear(made.folder)
    lost = _bring_home(engine, made, say) if engine is not None else ()
    status = StatusFile(made, before=run.status, first="Uploading")
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
    if engine is not None and not lost:
        for problem in remove_all(engine, run.id):
            say(f"warning: {problem}")
    return verdict


def _verdict(run: Stored, ends: list[HostEnd], judged: Verdict | None) -> Verdict:
    lost = f"{_LOST}{str(run.status.get('SecondaryStatus') or 'Starting').lower()}"
    if judged is None:
        states = {str(record_of(host).get("state")) for host in run.run().hosts}
        if states == {"Completed"}:
            return Verdict("Completed", "Completed", 0)
        return Verdict("Failed", "Failed", EXIT_LOST, reason=lost)
    if judged.status == "Completed" and any(end.asked for end in ends):
        return Verdict("Stopped", "Stopped", EXIT_SIGNAL_BASE + signal.SIGTERM, reason=f"stopped; {lost}")
    return judged


def was_lost(run: Stored) -> bool:
    """Returns whether a run that has ended did so because its runner was killed: `settle` has written that."""
    last = (run.status.get("SecondaryStatusTransitions") or [{}])[-1]
    return run.ended and run.said[0] != "Completed" and _LOST in str(last.get("StatusMessage"))


def _bring_home(engine: Engine, run: Run, say: Callable[[str], None]) -> tuple[str, ...]:
    """Copies out of ended containers what could not be mounted into them; what did not come."""
    copying = {one.host for one in containers(engine, run.id) if one.copies}
    lost, notes = fetch_all(engine, run, [host for host in run.hosts if host.name in copying])
    for problem in (*lost, *notes):
        say(f"warning: {problem}")
    return lost


def _end_containers(engine: Engine, run_id: str, grace: float, hosts: int) -> list[HostEnd]:
    """How all hosts ended; nothing where some of them have never run."""
    found = containers(engine, run_id)
    asked = {one.id for one in found if one.running}
    if asked:
        engine.run("stop", "-t", str(int(grace + REPORT_SECONDS) if grace else 0), *asked, timeout=None)
        found = containers(engine, run_id)
    if len(found) < hosts or not all(one.started for one in found):
        return []
    return [HostEnd(one.host, *_exit(one), one.id in asked) for one in found]


def _exit(one: LeftoverContainer) -> tuple[int, str]:
    killed = Exit(one.code or exit_status(-signal.SIGKILL), "its memory limit was reached (--memory)")
    note = killed if one.out_of_memory else Exit(one.code)
    return note.code, note.note


def _end_processes(run_id: str, grace: float) -> list[HostEnd]:
    """The kernel has asked them to end when the runner died; they get their grace, as far as it is not over."""
    if not run_id:
        return []
    deadline = time.monotonic() + (grace + KILL_SECONDS if grace else 0)
    while processes_of(run_id) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    end_leftovers(run_id)
    return []


def remove_leftovers(run: Stored, environ: Mapping[str, str]) -> None:
    """Kills and removes whatever there is of a run beside its folder. Raises TrainshedError where that fails."""
    clear(run.folder)
    if not run.id:
        return
    try:
        engine = engine_of(run, environ)
    except EngineError:
        if not run.ended:  # its runner could not remove them, so they may still be there
            raise
        engine = None
    if engine is not None:
        await_clients(run.id)
    if engine is not None and (problems := remove_all(engine, run.id)):
        raise TrainshedError(problems[0])
    end_leftovers(run.id)
