"""What happened to a run while it was measured: restarts, interruptions, failures, findings of rules, checkpoints."""

from __future__ import annotations

import os

from trainshed.base.record import Record

from .facts import entries, instant, mapping, number, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .facts import HostFacts, RunFacts

MOST = 200  # of all kinds together, but the checkpoints
MOST_CHECKPOINTS = 100


class Event(Record):
    """One thing that happened. time: seconds since 1970. step: where it is known."""

    time: float
    kind: str
    words: str
    step: int | None = None


def events_of(run: RunFacts, folder: str = "") -> list[Event]:
    """A run's events in their order. folder: where its checkpoints are, "" for nowhere."""
    hosts = [host for attempt in run.attempts for host in attempt.hosts]
    found = [*_of_runner(run.status), *(event for host in hosts for event in of_host(host)), *_findings(hosts)]
    several = {(event.kind, round(event.time), event.words): event for event in found if event.time > 0}
    kept = sorted(several.values(), key=lambda event: event.time)[-MOST:]
    saved = [Event(one["changed"], "checkpoint", one["name"]) for one in saved_in(folder)]
    return sorted([*kept, *saved], key=lambda event: event.time)


def _of_runner(status: dict[str, Any]) -> Iterator[Event]:
    for one in entries(status.get("SecondaryStatusTransitions")):
        kind = {"Interrupted": "interruption", "Restarting": "restart"}.get(words(one.get("Status")))
        if kind:
            yield Event(instant(one.get("StartTime")), kind, words(one.get("StatusMessage")))


def of_host(host: HostFacts) -> Iterator[Event]:
    """What one host's record tells."""
    record = host.record
    for restart in entries(record.get("restarts")):
        yield Event(number(restart.get("at")), "restart", words(restart.get("reason")))
    ended, interruption = number(record.get("ended")), mapping(record.get("interruption"))
    if interruption:
        step = f" (after step {words(interruption.get('step'))})" if words(interruption.get("step")) else ""
        yield Event(ended, "interruption", words(interruption.get("reason")) + step)
    elif record.get("failure"):
        yield Event(ended, "failure", words(mapping(record["failure"]).get("summary")))


def _findings(hosts: list[HostFacts]) -> Iterator[Event]:
    for host in hosts:
        for one in host.findings:
            yield Event(number(one.time), "rule", f"{one.rule}: {one.text}", one.step)


def saved_in(folder: str) -> list[dict[str, Any]]:
    """The newest entries of a folder of checkpoints, the newest first: `name`, `changed`, and whether it is a `folder`."""
    found: list[dict[str, Any]] = []
    try:
        with os.scandir(folder or os.devnull) as listed:
            for entry in listed:
                if not entry.name.startswith("."):
                    status = entry.stat(follow_symlinks=False)
                    found.append({"name": entry.name, "changed": status.st_mtime, "folder": entry.is_dir()})
    except OSError:
        return []
    return sorted(found, key=lambda one: one["changed"], reverse=True)[:MOST_CHECKPOINTS]
