"""The closing summary: how it ended, how long what took, what came out, where it lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.secrets import mask_text
from trainshed.base.units import duration, size
from trainshed.contract.wire.findings import findings_in
from trainshed.observe.goodput import rows as rows_of_goodput

from ..files.collect import Archive
from ..files.ending import RunEnd
from ..files.metrics import Metrics
from ..files.run import Run
from ..state.records import record_of
from ..state.status import savings

MOST_METRICS = 12
MOST_FINDINGS = 5
NO_MODEL = "the script wrote nothing to SM_MODEL_DIR"
REPORTS = ("report.html", "trainshed-report.html")  # the second where the script has a report of its own


def render(
    run: Run,
    verdict: RunEnd,
    seconds: dict[str, float],
    metrics: Metrics,
    archives: tuple[Archive, Archive] | None,
    total: float,
    about: Mapping[str, Any] | None = None,
) -> str:
    """The summary's text.

    Args:
        seconds: phase -> seconds, in order.
        archives: (model, output), None where nothing was collected.
        total: seconds from the start to now.
        about: what `status.json` holds: attempts, and what spot saved.
    """
    phases = " · ".join(f"{name} {duration(value)}" for name, value in seconds.items())
    rows = [(verdict.status.lower(), f"{run.name} in {duration(total)}" + (f"  ({phases})" if phases else ""))]
    if verdict.exit_code:
        where = f" on {verdict.failed_host}" if verdict.failed_host and len(run.hosts) > 1 else ""
        why = f": {verdict.reason}" if verdict.status == "Stopped" else ""
        rows.append(("exit", f"{verdict.exit_code}{where}{why}"))
    rows += _attempts(about or {})
    rows += rows_of_goodput(((about or {}).get("Trainshed") or {}).get("Goodput"))
    rows += _metrics(metrics)
    rows += _findings(run)
    if archives:
        model, output = archives
        rows.append(("model", _archive(model, NO_MODEL)))
        rows.append(("output", _archive(output, "nothing")))
        rows += [("warning", archive.problem) for archive in archives if archive.problem]
        rows += [("note", note) for archive in archives for note in archive.notes]
    rows += _checkpoints(run)
    logs = [run.log(host.name) for host in run.hosts]
    rows.append(("logs", shown(logs[0] if len(logs) == 1 else os.path.dirname(logs[0]))))
    records = [host.record for host in run.hosts if os.path.isfile(host.record)]
    if records:
        rows.append(("record", shown(records[0]) + (f" and {len(records) - 1} more" if len(records) > 1 else "")))
    failures = [host.failure for host in run.hosts if host.name == verdict.failed_host and os.path.isfile(host.failure)]
    rows += [("failure", f"{shown(path)}  (traceback and last output)") for path in failures]
    rows.append(("folder", shown(run.folder)))
    reports = [path for name in REPORTS if os.path.isfile(path := f"{run.hosts[0].output}/data/{name}")]
    rows += [("report", shown(path)) for path in reports[-1:]]
    rows = [(name, one_line(text)) for name, text in rows]
    lines = [f"  {name:<10} {text}" if number else f"{name:<12} {text}" for number, (name, text) in enumerate(rows)]
    if verdict.status == "Failed" and verdict.reason:
        lines += ["", *(f"  {line}" for line in headline(verdict.reason))]
    return mask_text("\n".join(lines)) + "\n"


def headline(reason: str) -> list[str]:
    """Says what failed, where, and the hint: a reason's lines up to its traceback, which log and failure file hold."""
    first = reason.strip().split("\n\n")[0].splitlines()
    starts = [number for number, line in enumerate(first) if line.startswith("Traceback (most recent call last)")]
    lines = first[: starts[0]] if starts else first
    return [line.rstrip() for line in lines or first[-1:]]


def _attempts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    attempts = (about.get("Trainshed") or {}).get("Attempts") or []
    rows = []
    if len(attempts) > 1:
        rows.append(
            ("attempts", ", ".join(f"{one['Outcome'].lower()} after {duration(one['Seconds'])}" for one in attempts))
        )
    saved = savings(dict(about))
    if saved is not None:
        training, billable = about["TrainingTimeInSeconds"], about["BillableTimeInSeconds"]
        rows.append(("spot", f"training seconds {training}, billable seconds {billable}, savings {saved:.1f} %"))
    return rows


def _findings(run: Run) -> list[tuple[str, str]]:
    """What rules have found, each rule once."""
    found = {one.rule: one for host in run.hosts for one in findings_in(host.output)}
    shown = [f"{one.rule}: {one.text}" for one in list(found.values())[:MOST_FINDINGS]]
    more = [f"and {len(found) - MOST_FINDINGS} more"] if len(found) > MOST_FINDINGS else []
    return [("" if number else "rules", text) for number, text in enumerate([*shown, *more])]


def _metrics(metrics: Metrics) -> list[tuple[str, str]]:
    names = list(metrics.final)
    rows = []
    for number, (name, one) in enumerate(list(metrics.final.items())[:MOST_METRICS]):
        text = f"{name} {one.first:.6g}" + (f" -> {one.last:.6g}" if one.count > 1 else "")
        rows.append(("" if number else "metrics", text))
    if len(names) > MOST_METRICS:
        rows.append(("", f"and {len(names) - MOST_METRICS} more in status.json"))
    return rows + [("warning", remark) for remark in metrics.remarks]


def _checkpoints(run: Run) -> list[tuple[str, str]]:
    """A job that has trained on without checkpoints."""
    found: dict[str, str] = {}
    for host in run.hosts:
        told = record_of(host).get("checkpoints")
        if isinstance(told, dict) and told.get("problem"):
            found.setdefault(str(told["problem"]), host.name)
    several = len(run.hosts) > 1
    return [("warning", f"{name}: {problem}" if several else problem) for problem, name in found.items()]


def _archive(archive: Archive, empty: str) -> str:
    files = "1 file" if archive.files == 1 else f"{archive.files} files"
    if not archive.path and archive.problem:
        return f"not packed; kept in {shown(archive.kept)}  ({files}, {size(archive.size)})"
    if not archive.files:
        return "nothing that could be packed" if archive.problem or archive.notes else empty
    try:
        packed = f", packed {size(os.path.getsize(archive.path))}"
    except OSError:
        packed = ""
    checksum = f", sha256 {archive.sha256[:12]}" if archive.sha256 else ""
    return f"{shown(archive.path)}  ({files}, {size(archive.size)}{packed}{checksum})"


def shown(path: str) -> str:
    """A path relative to the working directory where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path
