"""What the page of one run shows beside curves and logs: phases, failure, settings, checkpoints, what can be done."""

from __future__ import annotations

from typing import Any

from trainshed.base.errors import one_line, visible
from trainshed.base.secrets import mask_text
from trainshed.runner.state.outputs import attempts_of
from trainshed.runner.state.stored import Stored
from trainshed.studio.catalogue import labels
from trainshed.studio.catalogue.indexed import facts_of
from trainshed.studio.pages.events import saved_in
from trainshed.studio.pages.facts import RunFacts, instant, mapping, read_attempts, words

from .catalog import key_of
from .logbook import logs_of

LONGEST_FAILURE = 20_000


def details(run: Stored) -> dict[str, Any]:
    """Everything at once; texts are plain, for the page to show as text."""
    facts = RunFacts(run.name, read_attempts(attempts_of(run.folder)[-1:]), {}, run.status)
    job = mapping(facts.record.get("job"))
    hyperparameters = mapping(run.status.get("HyperParameters")) or mapping(job.get("hyperparameters"))
    versions = mapping(facts.record.get("versions"))
    return {
        "run": headline(run),
        "phases": _phases(run),
        "failure": _failure(facts, run),
        "findings": [
            [_line(one.rule), _line(one.text, 1000), _line(one.place)] for host in facts.hosts for one in host.findings[-50:]
        ],
        "hyperparameters": [[_line(name), _line(value)] for name, value in list(hyperparameters.items())[:300]],
        "environment": [[_line(name), _line(value)] for name, value in versions.items()],
        "checkpoints": [{**one, "name": one_line(one["name"])} for one in saved_in(run.checkpoints)],
        "logs": list(logs_of(run.folder)),
        "attempts": len(attempts_of(run.folder)),
        "can": {
            "stop": not run.ended and not run.copied and not run.elsewhere,
            "resume": bool(run.about)
            and not run.runner
            and not run.elsewhere
            and (run.ended or not run.submitted)
            and run.said[0] != "Completed",
            "clone": bool(run.about),
            "remove": run.ended and not run.copied,
            "label": True,
        },
    }


def headline(run: Stored) -> dict[str, Any]:
    """What stands above all else, as the catalogue has it."""
    labelled = labels.read(run.folder, labels.of_job(run))
    facts = facts_of(run, labelled)
    names = ("name", "state", "phase", "started", "duration", "hosts", "place", "image", "note")
    told = {name: _line(facts[name]) if isinstance(facts[name], str) else facts[name] for name in names}
    tags = {_line(name): _line(text) for name, text in labelled.tags.items()}
    notes = [[at[:16].replace("T", " "), visible(text)] for at, text in labelled.notes[-50:]]
    return {**told, "key": key_of(run.folder), "folder": _line(run.folder), "tags": tags, "notes": notes}


def _phases(run: Stored) -> list[dict[str, Any]]:
    return [
        {
            "name": _line(one.get("Status")),
            "start": instant(one.get("StartTime")),
            "end": instant(one.get("EndTime")),
            "said": _line(one.get("StatusMessage") or ""),
        }
        for one in (run.status.get("SecondaryStatusTransitions") or [])[-200:]
    ]


def _failure(facts: RunFacts, run: Stored) -> dict[str, Any] | None:
    told = facts.failure
    reason = words(run.status.get("FailureReason"))
    whole = next((host.failure for host in facts.hosts if host.failure), reason)
    if not (told or whole):
        return None
    rows = [[name, _line(told[name])] for name in ("kind", "host", "rank", "place", "hint") if words(told.get(name))]
    summary = words(told.get("summary")) or (reason.splitlines() or [""])[0]
    return {"summary": _line(summary, 2000), "rows": rows, "whole": visible(mask_text(whole[:LONGEST_FAILURE]))}


def _line(value: object, limit: int = 500) -> str:
    return one_line(mask_text(str(value)[: limit + 1]))[:limit]
