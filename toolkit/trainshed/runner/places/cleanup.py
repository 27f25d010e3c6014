"""Containers and networks of a run, found by their labels: also those that a dead runner left behind."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .container_command import LABEL
from .container_engine import Engine, EngineError, reason

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
