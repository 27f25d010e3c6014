"""How stored runs stand, for a person: the table of `trainshed ps` and the page of `trainshed status`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from trainshed.base.errors import one_line, visible
from trainshed.base.units import duration
from trainshed.contract.wire.fingerprints import described, in_shape
from trainshed.observe.goodput import rows as rows_of_goodput

from ..state.outputs import metrics_in, metrics_of
from ..state.run_goodput import goodput_of
from ..state.status import savings, seconds_of
from ..state.stored import Stored
from .columns import in_columns
from .summary import NO_MODEL, shown

MOST_HOSTS = 4  # with data of their own that are shown
Standing = tuple[str, str]  # a run's status, and what more there is to say


def table(runs: Iterable[tuple[Stored, Standing]], *, everything: bool) -> str:
    """`trainshed ps`: one line a run; those that are over only where everything is asked for."""
    rows: list[tuple[str, ...]] = [("NAME", "STATUS", "PHASE", "STARTED", "HOSTS", "FOLDER")]
    for run, (status, more) in runs:
        if run.ended and not everything:
            continue
        told = facts(run, (status, more))
        kind = f"of {told['image']}" if told["image"] else run.place.hosts
        hosts = f"{'?' if told['hosts'] is None else told['hosts']} {kind}"
        row = (run.name, status, more or "-", ago(told["started"]), hosts, shown(run.folder))
        rows.append(tuple(map(one_line, row)))
    return in_columns(rows)


def facts(run: Stored, standing: Standing) -> dict[str, Any]:
    """`trainshed ps --json`: the same of one run, as JSON values."""
    status, more = standing
    resources = run.status.get("ResourceConfig") or {}
    image = (run.status.get("AlgorithmSpecification") or {}).get("TrainingImage", "")
    return {
        "name": run.name, "status": status, "phase": more, "started": run.status.get("CreationTime"),
        "hosts": resources.get("InstanceCount"), "image": image, "folder": run.folder,
    }  # fmt: skip


def ago(stamp: Any) -> str:
    """`12 s ago` for an ISO time."""
    seconds = seconds_of(stamp) or 0.0
    return f"{duration(max(0.0, time.time() - seconds))} ago" if seconds else "?"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _empty_archives(run: Stored) -> set[str]:
    """Their paths; an archive is there of a script that wrote nothing, too."""
    archives = run.ours.get("Archives")
    told = [one for one in archives if isinstance(one, dict)] if isinstance(archives, list) else []
    return {f"{run.folder}/output/{os.path.basename(str(one.get('Path')))}" for one in told if one.get("Files") == 0}


def describe(run: Stored, standing: Standing) -> str:
    """`trainshed status`: how a run stands, for a person."""
    status, more = standing
    data = run.status
    rows = [(status.lower(), run.name + (f": {more}" if more else ""))]
    rows.append(("started", f"{data.get('CreationTime', '?')}, {ago(data.get('CreationTime'))}"))
    if parent := _mapping(run.ours.get("FromRun")):
        rows.append(("from", f"the model of {parent.get('Run')}"))
    tags = run.ours.get("Tags")
    if isinstance(tags, dict):
        rows.append(("tags", ", ".join(f"{name}={text}" for name, text in tags.items())))
    phases = []
    for one in data.get("SecondaryStatusTransitions") or []:
        start, end = (seconds_of(one.get(name)) or 0.0 for name in ("StartTime", "EndTime"))
        end = end or (time.time() if run.runner else start)
        phases.append(str(one.get("Status")) + (f" {duration(end - start)}" if end > start else ""))
    rows.append(("phases", " -> ".join(phases)))
    if "TrainingTimeInSeconds" in data:
        text = f"training {data['TrainingTimeInSeconds']}, billable {data['BillableTimeInSeconds']}"
        saved = savings(data)
        rows.append(("seconds", text + (f", savings {saved:.1f} %" if saved is not None else "")))
    rows += rows_of_goodput(goodput_of(run))
    if "ExitCode" in run.ours:
        rows.append(("exit", str(run.ours["ExitCode"])))
    for channel, hosts in _mapping(run.ours.get("Data")).items():
        shown_hosts = {described(one): name for name, one in reversed(list(in_shape(hosts).items()))}
        for text, name in list(reversed(shown_hosts.items()))[:MOST_HOSTS]:  # those of hosts that have the same are one
            rows.append(("data", f"{channel}: {text}" + (f" on {name}" if len(shown_hosts) > 1 else "")))
    for number, (metric, one) in enumerate(metrics_of(run.folder, metrics_in(data)).items()):
        rows.append(("" if number else "metrics", f"{metric} {one.last:.6g}"))
    empty = _empty_archives(run)
    for name, path in (
        ("model", f"{run.folder}/output/model.tar.gz"),
        ("logs", f"{run.folder}/logs"),
        ("folder", run.folder),
    ):
        if os.path.exists(path):
            rows.append((name, NO_MODEL if path in empty else shown(path)))
    rows = [(one_line(name), one_line(text)) for name, text in rows]
    lines = [f"  {name:<10} {text}" if number else f"{name:<12} {text}" for number, (name, text) in enumerate(rows)]
    if data.get("FailureReason"):
        lines += ["", *(f"  {line}" for line in visible(str(data["FailureReason"])).split("\n"))]
    return "\n".join(lines) + "\n"
