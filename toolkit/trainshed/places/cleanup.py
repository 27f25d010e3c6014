"""Containers and networks of a run, found by their labels: also those that a dead runner left behind."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.base.errors import exit_status
from trainshed.runner.acting.leftovers import await_clients, end_leftovers
from trainshed.runner.files.ending import HostEnd
from trainshed.runner.files.grace import REPORT_SECONDS
from trainshed.runner.files.run import Run

from .container_command import LABEL
from .container_engine import Engine, EngineError, find_engine, reason
from .copying import fetch_all

_NEVER_STARTED = ("created", "configured", "initialized")  # Docker's and Podman's words
RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class LeftoverContainer:
    """A container: its id, the host it is, whether it runs, and (once it has ended) its exit status.

    copies: whether its files are to be copied out of it.
    started: whether it has ever run; if not, its exit status says nothing.
    """

    id: str
    host: str
    running: bool
    code: int
    out_of_memory: bool = False
    copies: bool = False
    started: bool = True


def containers(engine: Engine, run_id: str) -> list[LeftoverContainer]:
    """The run's containers, in the order of their hosts' names. Raises EngineError."""
    ids = _ids(engine, run_id, "ps", "--all", "--no-trunc")
    if not ids:
        return []
    done = engine.run("inspect", *ids)  # one that goes away meanwhile makes it fail, and is left out
    try:
        known = json.loads(done.stdout)
    except ValueError:
        return []
    found = []
    for one in known:
        state, labels = one.get("State") or {}, (one.get("Config") or {}).get("Labels") or {}
        found.append(
            LeftoverContainer(
                str(one.get("Id")),
                str(labels.get(f"{LABEL}.host")),
                bool(state.get("Running")),
                int(state.get("ExitCode") or 0),
                bool(state.get("OOMKilled")),
                f"{LABEL}.copies" in labels,
                str(state.get("Status")) not in _NEVER_STARTED,
            )
        )
    return sorted(found, key=lambda one: one.host)


def remove_all(engine: Engine, run_id: str) -> list[str]:
    """Removes the run's containers (running ones are killed) and its network; what could not be done."""
    problems = []
    try:
        for listing, removal in (("ps", ("rm", "--force", "--volumes")), ("network", ("network", "rm"))):
            options = ("ps", "--all", "--no-trunc") if listing == "ps" else ("network", "ls", "--no-trunc")
            ids = _ids(engine, run_id, *options)
            if not ids:
                continue
            done = engine.run(*removal, *ids)
            if done.returncode != 0 and (left := _ids(engine, run_id, *options)):
                problems.append(f"{', '.join(one[:12] for one in left)} cannot be removed: {reason(done.stderr)}")
    except EngineError as error:
        problems.append(error.message)
    return problems


def _ids(engine: Engine, run_id: str, *listing: str) -> list[str]:
    if not RUN_ID.fullmatch(run_id):  # from a file that somebody else may have written
        return []
    return engine.run(*listing, "--quiet", "--filter", f"label={LABEL}.run={run_id}").stdout.split()


class LeftoverContainers:
    """Hosts that are containers.

    Args:
        place: address of the engine that the run was started with, "" where nothing says which.

    Raises:
        EngineError: it does not answer, or is another one than this command uses.
    """

    def __init__(self, run_id: str, place: str, environ: Mapping[str, str]) -> None:
        self.run_id, self.engine = run_id, find_engine(environ)
        if place and place != self.engine.place:
            known = place if place == "podman" else f"the engine at {place}"
            raise EngineError(
                f"the run's containers are in {known}, but this command uses {self.engine.place}",
                hint="set DOCKER=podman" if place == "podman" else f"set DOCKER_HOST={place}",
            )

    def running(self) -> list[str]:
        """Names the hosts."""
        return [one.host for one in containers(self.engine, self.run_id) if one.running]

    def end(self, grace: float, hosts: int) -> list[HostEnd]:
        """The engine asks and kills them; nothing is known where some have never run."""
        await_clients(self.run_id)
        found = containers(self.engine, self.run_id)
        asked = {one.id for one in found if one.running}
        if asked:
            seconds = str(int(grace + REPORT_SECONDS) if grace else 0)
            self.engine.run("stop", "-t", seconds, *asked, timeout=None)
            found = containers(self.engine, self.run_id)
        if len(found) < hosts or not all(one.started for one in found):
            return []
        return [HostEnd(one.host, *_exit(one), one.id in asked) for one in found]

    def fetch(self, run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Copies out of them what could not be mounted into them."""
        copying = {one.host for one in containers(self.engine, run.id) if one.copies}
        return fetch_all(self.engine, run, [host for host in run.hosts if host.name in copying])

    def remove(self) -> list[str]:
        """Removes them, their network, and the commands that made them."""
        await_clients(self.run_id)
        if problems := remove_all(self.engine, self.run_id):
            return problems
        end_leftovers(self.run_id)
        return []


def _exit(one: LeftoverContainer) -> tuple[int, str]:
    if one.out_of_memory:
        return one.code or exit_status(-signal.SIGKILL), "its memory limit was reached (--memory)"
    return one.code, ""
