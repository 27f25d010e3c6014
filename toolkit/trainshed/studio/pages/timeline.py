"""What happened when: the phases of a run and of its hosts, with interruptions and restarts."""

from __future__ import annotations

import itertools

from trainshed.base.units import duration

from .bars import BarRow, Span, draw, lasting
from .events import of_host
from .facts import entries, instant, number, words
from .markup import legend, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .facts import HostFacts, RunFacts

_MOST_ROWS = 24
_COLOURS = {
    "preparing": "k7", "training": "k0", "starting": "k7", "downloading": "k5", "uploading": "k5", "stopping": "k1",
    "interrupted": "k4", "restarting": "k6",
}  # fmt: skip
_VERBS = {"restart": "restarted", "interruption": "interrupted", "failure": "failed"}
_ENDS = ("Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded")


def draw_timeline(run: RunFacts) -> str:
    """The picture and its table; "" where nothing is known."""
    started = run.start
    rows = [row for row in (_of_runner(run, started),) if row.spans]
    for attempt_number, attempt in enumerate(run.attempts):
        for host in attempt.hosts:
            label = host.name or "host"
            if len(run.attempts) > 1:
                label = f"{label}, no. {attempt_number + 1}"
            rows.append(_of_host(host, label, started))
    rows = [row for row in rows if row.spans]
    left_out = len(rows) - _MOST_ROWS
    note = f'<p class="note">{left_out} more rows are not shown</p>' if left_out > 0 else ""
    picture = draw(rows[:_MOST_ROWS])
    if not picture:
        return ""
    seen = dict.fromkeys((span.kind, span.told.partition(":")[0]) for row in rows[:_MOST_ROWS] for span in row.spans)
    events = [(f"{_at(place)} after the start", said) for row in rows for place, said in row.marks]
    kinds = legend((kind, name, "") for kind, name in seen)
    return f"{kinds}{picture}{note}{table(events, kind='pairs')}"


def _of_runner(run: RunFacts, started: float) -> BarRow:
    spans, marks = [], []
    for one in entries(run.status.get("SecondaryStatusTransitions")):
        status, begin, end = words(one.get("Status")), instant(one.get("StartTime")), instant(one.get("EndTime"))
        if begin and status == "Interrupted":
            marks.append((begin - started, f"interrupted: {words(one.get('StatusMessage'))}"))
        if begin and end > begin and status not in _ENDS:
            spans.append(_span(status.lower(), begin - started, end - started))
    return BarRow("job", tuple(spans), tuple(marks))


def _of_host(host: HostFacts, label: str, started: float) -> BarRow:
    record = host.record
    spans = []
    for phase in entries(record.get("phases")):
        begin, seconds = number(phase.get("started")), number(phase.get("seconds"))
        if begin > 0 and seconds > 0:
            spans.append(_span(words(phase.get("name")), begin - started, begin - started + seconds))
    marks = [(one.time - started, f"{_VERBS[one.kind]}: {one.words}") for one in of_host(host) if one.time > 0]
    return BarRow(label, tuple(spans), tuple(marks))


def _span(name: str, start: float, end: float) -> Span:
    said = f"{name} {lasting(end - start)}"
    return Span(start, end, _COLOURS.get(name, "k3"), said, f"{name}: {duration(end - start)}, from {duration(start)} on")


def _at(seconds: float) -> str:
    return duration(max(0.0, seconds))


def paused(status: dict[str, Any]) -> float:
    """Seconds in which a run was over, or its runner dead, before it was taken up again."""
    phases = entries(status.get("SecondaryStatusTransitions"))
    gaps = [
        instant(after.get("StartTime")) - instant(before.get("EndTime"))
        for before, after in itertools.pairwise(phases)
        if before.get("EndTime")
    ]
    return round(sum(gap for gap in gaps if gap > 0), 3)
