"""What one run's folder says of it, as a row of the catalogue. Files are anybody's: what has another form is left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from trainshed.base.secrets import mask_mapping, mask_text
from trainshed.contract.hyperparameters import decode_value
from trainshed.metrics.reading import MetricsReader, Summary
from trainshed.observe.goodput import share_of
from trainshed.runner.state.outputs import metrics_in, metrics_of
from trainshed.runner.state.stored import Stored, load
from trainshed.studio.pages.facts import instant
from trainshed.studio.pages.timeline import paused

from . import labels
from .tables import STATES, Row

LONGEST = 1000  # characters of a text that is kept
MOST_VALUES = 1000  # hyperparameters of a run
_GROUPS = ("group", "tuning", "pipeline")  # tags that make groups, the one that counts first
_DEEPEST = 4  # levels of a nested hyperparameter that get names of their own


def row_of(folder: str, signature: str, readers: dict[str, MetricsReader] | None = None) -> Row | None:
    """A run's row; None where the folder holds no run.

    Args:
        signature: of its files before they were read.
        readers: of the metrics of runs that go on, by folder, where those are looked at again and again.
    """
    run = load(folder)
    if not (run.status or run.about):
        return None
    labelled = labels.read(run.folder, labels.of_job(run))
    tags = {_text(name): _text(text) for name, text in labelled.tags.items()}
    facts = facts_of(run, labelled)
    facts["note"] = _cut(str(facts["note"])) if facts["note"] else None
    hps = {name: (number, _cut(text)) for name, (number, text) in hyperparameters(run).items()}
    live = _state(run)[1]
    reader = None if readers is None else readers.pop(folder, MetricsReader())
    if readers is not None and reader is not None and live:
        readers[folder] = reader
    return Row(signature, live, facts, measured(run, reader), hps, tags)


def _state(run: Stored) -> tuple[str, bool]:
    """(state, whether its processes may still change it)."""
    said = run.said[0]
    said = said if said in STATES else "InProgress"
    if run.copied:  # nothing runs for a copy: its run was going on when it was made
        return (said if run.ended else "Lost"), False
    told = run.standing()
    return ("Lost", False) if told is None else (said, not run.ended)


def facts_of(run: Stored, labelled: labels.Labels) -> dict[str, str | bytes | float | None]:
    """The facts of a run by name (`tables.COLUMNS`), None for what it does not have."""
    state, live = _state(run)
    status, about = run.status, _mapping(run.about.get("job"))
    started = instant(status.get("CreationTime")) or instant(run.about.get("started"))
    ended = instant(status.get("TrainingEndTime"))
    last = ended or (time.time() if live else instant(status.get("LastModifiedTime")))
    resources = _mapping(status.get("ResourceConfig"))
    reason = str(status.get("FailureReason") or "")
    transitions = status.get("SecondaryStatusTransitions") or []
    if not reason and state == "Stopped" and transitions:
        reason = str(transitions[-1].get("StatusMessage") or "")
    algorithm = _mapping(status.get("AlgorithmSpecification"))
    facts: dict[str, str | float | None] = {
        "name": run.name,
        "state": state,
        "phase": _phase(run) or None,
        "cause": _first_line(reason),
        "started": started or None,
        "ended": ended or None,
        "duration": round(max(0.0, last - started - paused(status)), 3) if started and last else None,
        "billable": _billable(run, _whole(resources.get("InstanceCount"))),
        "hosts": _whole(resources.get("InstanceCount")),
        "place": run.place.name,
        "program": _said(about.get("program")),
        "image": _said(algorithm.get("TrainingImage")),
        "instance": _said(resources.get("InstanceType")),
        "machine": _said(_mapping(run.ours.get("Runner")).get("Machine")),
        "exit": _whole(run.ours.get("ExitCode")),
        "attempts": len(run.ours.get("Attempts") or ()) or None,
        "goodput": share_of(run.ours.get("Goodput")),
        "parent": _said(_mapping(run.ours.get("FromRun")).get("Run")),
        "group": next(filter(None, map(labelled.tags.get, _GROUPS)), None),
        "note": "\n".join(text for _, text in labelled.notes) or None,
        "id": run.id or None,
        "copy_of": run.copied or None,
    }
    return {**{name: _clean(value) for name, value in facts.items()}, "folder": run.folder}


def _phase(run: Stored) -> str:
    if run.copied:
        return f"a copy of {run.copied}"
    told = run.standing()
    return f"its runner was killed while {run.said[1]}" if told is None else told[1]


def _billable(run: Stored, hosts: int | None) -> float | None:
    seconds = _whole(run.status.get("BillableTimeInSeconds"))
    return None if seconds is None else float(seconds * (hosts or 1))


def measured(run: Stored, reader: MetricsReader | None = None) -> dict[str, Summary]:
    """The metrics of a run, by names that SQLite takes. reader: what has been read of it before."""
    return {_text(name): one for name, one in metrics_of(run.folder, metrics_in(run.status), reader).items()}


def hyperparameters(run: Stored) -> dict[str, tuple[float | None, str]]:
    """The hyperparameters by name, each as a number where it is one, and as text; nested ones by `outer.inner`."""
    given = run.status.get("HyperParameters") or _mapping(run.about.get("job")).get("hyperparameters")
    decoded = {_text(str(name)): decode_value(value) for name, value in _mapping(given).items()}
    found: dict[str, tuple[float | None, str]] = {}
    for name, value in _leaves(mask_mapping(decoded)):
        if len(found) >= MOST_VALUES:
            break
        found[name] = (_float(value) if not isinstance(value, str) else None, _spelled(value))
    return found


def _leaves(values: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        full = _text(f"{before}{name}")
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _leaves(value, f"{full}.", depth + 1)
        else:
            yield full, value


def _spelled(value: Any) -> str:
    text = value if isinstance(value, str) else str(value) if isinstance(value, float) else json.dumps(value, default=str)
    return _text(mask_text(text))


def _number(value: float) -> float | None:
    return value if value == value else None


def _float(value: Any) -> float | None:
    """A number as SQLite holds it; None for anything else, and for what is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return _number(float(value))
    except (ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 53 else None


def _said(value: Any) -> str | None:
    return _cut(mask_text(value)) or None if isinstance(value, str) else None


def _first_line(text: str) -> str | None:
    return next((_cut(mask_text(line.strip())) for line in text.splitlines() if line.strip()), None)


def _clean(value: str | float | None) -> str | float | None:
    return _text(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    return _text(text) if len(text) <= LONGEST else _text(text[: LONGEST - 3]) + "..."


def _text(value: str) -> str:
    """A text that SQLite takes: bytes that are not UTF-8 are spelled out."""
    return value.encode("utf-8", "backslashreplace").decode()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
