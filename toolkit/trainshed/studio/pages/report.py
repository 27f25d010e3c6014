"""The report of a run: one page with all that its files tell, below a size that every mail takes."""

from __future__ import annotations

import math
import time

import trainshed
from trainshed.base.units import duration, size
from trainshed.contract.wire.fingerprints import RECORD_KEY, described, in_shape
from trainshed.observe.steps import read_steps
from trainshed.observe.system import read_system

from .chart import draw
from .curves import RunLine, chart_of, groups
from .events import events_of
from .facts import entries, mapping, number, words
from .markup import bounded, document, more, picture, section, table, text
from .media_part import draw_media
from .profiled import draw_steps, draw_system
from .schedule import draw_schedule
from .style import STYLE
from .time_spent import draw_spent
from .timeline import draw_timeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .curves import Group
    from .facts import RunFacts

LARGEST = 290_000  # bytes of a page, without pictures
LARGEST_PICTURES = 700_000  # characters of all of them
PARTS = 240  # columns of a curve, where there is room
_LEAST_PARTS = 40
_MOST_CHARTS = 36
_MOST_IN_SUMMARY = 8
_MOST_MEDIA = 0.3  # of the page may be pictures
_MOST_FIXED = 0.6  # of the page may be other things than charts


# Parts that a page can do without, the first of them first.
_SPARED = ("schedule", "settings", "media", "tables", "timeline", "rules")


def report(run: RunFacts, largest: int = LARGEST) -> str:
    """The page. What does not fit is drawn coarser, then left out and said.

    Args:
        largest: bytes that it may have.
    """
    wanted = groups(list(run.curves))
    system, steps = read_system(*run.profilers), read_steps(*run.profilers)
    fixed = _fixed(run) | {"media": draw_media(run.media, int(largest * _MOST_MEDIA))}
    spared = list(_SPARED)
    while spared and sum(len(part.encode()) for part in fixed.values()) > largest * _MOST_FIXED:
        fixed[spared.pop(0)] = ""
    missing = [name for name in _SPARED if name not in spared]
    shown, parts = wanted[:_MOST_CHARTS], PARTS
    pictures = len(_pictures(run))
    while True:
        profile = section("Where the time of a step goes", draw_steps(steps, system, run.start, parts // 2))
        profile += section("The machines", draw_system(system, run.start, parts // 2))
        charts = _curves(run, shown, len(wanted) - len(shown), parts)
        page = _page(run, fixed, charts, profile if len(profile) < largest / 2 or parts > _LEAST_PARTS else "", missing)
        beyond = len(page.encode()) - pictures - largest
        if beyond <= 0 or not (shown or parts > _LEAST_PARTS):
            return page
        drawn = max(1, len(charts) + len(profile))
        kept = max(0.2, 0.95 * (drawn - beyond) / drawn)  # of what is drawn there is room for so much
        if parts > _LEAST_PARTS:
            parts = max(_LEAST_PARTS, int(parts * kept))
        else:
            shown = shown[: int(len(shown) * kept)]


def summary(run: RunFacts) -> str:
    """A page of how a run stands, why it failed, and its first charts."""
    wanted = groups(list(run.curves))
    shown = wanted[:_MOST_IN_SUMMARY]
    body = _card(run) + _failure(run) + _curves(run, shown, len(wanted) - len(shown), PARTS)
    return document(run.name or "training", f"<main>{body}</main>", STYLE)


def _fixed(run: RunFacts) -> dict[str, str]:
    """The parts that do not depend on how finely curves are drawn."""
    return {
        "card": _card(run),
        "failure": _failure(run),
        "goodput": draw_spent(run.goodput, run.goodput_of),
        "rules": _rules(run),
        "tables": _tables(run),
        "timeline": section("What happened when", draw_timeline(run)),
        "schedule": section("Pipeline schedule", draw_schedule(run)),
        "settings": _settings(run),
    }


def _page(run: RunFacts, fixed: dict[str, str], charts: str, profile: str, missing: list[str]) -> str:
    before, after = ("card", "failure", "goodput", "rules", "tables"), ("timeline", "schedule", "settings")
    drawn = [_pictures(run), charts, fixed["media"], profile]
    body = "".join([*map(fixed.__getitem__, before), *drawn, *map(fixed.__getitem__, after)])
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    lost = f"; left out, since it would be too large: {text(', '.join(missing))}" if missing else ""
    foot = f"<footer>made by trainshed {text(trainshed.__version__)}, {made}{lost}</footer>"
    return document(f"{run.name or 'training'}: report", f"<main>{body}{foot}</main>", STYLE)


def _card(run: RunFacts) -> str:
    record = run.record
    job, cluster, versions = (mapping(record.get(name)) for name in ("job", "cluster", "versions"))
    state = run.state
    kind = {"Completed": "good", "Failed": "bad"}.get(state, "warn")
    seconds = _seconds(run)
    hosts = cluster.get("hosts")
    facts = [
        ("started", _moment(run.start)),
        ("took", duration(seconds) if seconds else ""),
        ("program", words(job.get("program"))),
        ("distribution", words(mapping(job.get("distribution")).get("kind"))),
        ("hosts", str(len(hosts)) if isinstance(hosts, list) and hosts else ""),
        ("world size", words(cluster.get("world_size"))),
        ("hardware", _hardware(mapping(cluster.get("hardware")))),
        ("torch", words(versions.get("torch"))),
        ("exit status", words(record.get("exit_code"))),
        ("attempts", str(_attempts(run)) if _attempts(run) > 1 else ""),
    ]
    for name in ("TrainingTimeInSeconds", "BillableTimeInSeconds"):
        if number(run.status.get(name)):
            facts.append((name.partition("Time")[0].lower() + " seconds", words(run.status[name])))
    tags = mapping(mapping(run.status.get("Trainshed")).get("Tags"))
    facts += [(f"tag {name}", words(value)) for name, value in list(tags.items())[:12]]
    shown = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts if value)
    return (
        f'<div class="card"><div class="top"><h1>{text(run.name or "training")}</h1>'
        f'<span class="state {kind}">{text(state)}</span></div><dl class="facts">{shown}</dl></div>'
    )


def _attempts(run: RunFacts) -> int:
    counted = len(entries(mapping(run.status.get("Trainshed")).get("Attempts")))
    return max(counted, len(run.attempts), 1 + len(entries(run.record.get("restarts"))))


def _seconds(run: RunFacts) -> float:
    ends = [number(host.record.get("ended")) for host in run.hosts]
    return max(0.0, max(ends, default=0.0) - run.start) if run.start else 0.0


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds > 0 else ""


def _hardware(hardware: dict[str, object]) -> str:
    said = [f"{words(hardware.get('cpus'))} CPUs"] if number(hardware.get("cpus")) else []
    if number(hardware.get("gpus")):
        said.append(f"{words(hardware['gpus'])} GPUs")
    if number(hardware.get("memory_bytes")) or isinstance(hardware.get("memory_bytes"), int):
        said.append(size(float(str(hardware["memory_bytes"]))))
    return ", ".join(said)


def _failure(run: RunFacts) -> str:
    told = run.failure
    host = next((host for host in run.hosts if host.failure), None)
    reason = words(run.status.get("FailureReason"))
    if not (told or reason or host):
        return ""
    summary = words(told.get("summary")) or (reason.splitlines() or [""])[0]
    rows = [(name, words(told.get(name))) for name in ("kind", "host", "rank", "place", "hint")]
    body = f"<p><b>{text(summary, 1200)}</b></p>" + table([row for row in rows if row[1]], kind="pairs")
    whole = host.failure if host else reason
    if whole:
        body += f"<pre>{text(whole, 12000)}</pre>"
    return f'<section class="fail"><h2>Why it failed</h2>{body}</section>'


def _rules(run: RunFacts) -> str:
    parts = []
    for attempt in run.attempts:
        for host in attempt.hosts:
            for finding in host.findings:
                place = ", ".join(filter(None, (host.name if len(attempt.hosts) > 1 else "", finding.place)))
                what = f"<b>{text(finding.rule)}</b>: {text(finding.text, 1200)}"
                parts.append(f'<div class="rule">{what}{f" <small>({text(place)})</small>" if place else ""}</div>')
    body, left_out = bounded(parts)
    return section("What rules have found", body + more(left_out))


def _tables(run: RunFacts) -> str:
    """What the program tells of its data and its models, of the first host that tells anything."""
    found = next((host.tables for host in run.hosts if host.tables), ())
    return "".join(section(one.title, table(one.rows, one.columns)) for one in found)


def _pictures(run: RunFacts) -> str:
    """What the program has drawn of its model, of the first host that has any; as many as fit."""
    found = next((host.pictures for host in run.hosts if host.pictures), ())
    figures = [picture(one.title, one.kind, one.content, one.note) for one in found]
    body, left_out = bounded(figures, LARGEST_PICTURES)
    return section("What the model does", f'<div class="drawn">{body}</div>{more(left_out)}' if body else "")


def _curves(run: RunFacts, shown: list[Group], left_out: int, parts: int) -> str:
    if not run.curves:
        return ""
    happened, window = events_of(run, run.checkpoints), (parts, -math.inf, math.inf)
    lines = [[RunLine(name, run.curves[name], run.start) for _, name in group.members] for group in shown]
    figures = "".join(
        draw(chart_of(group.title, held, window, happened=happened)) for group, held in zip(shown, lines, strict=True)
    )
    notes = []
    if not run.whole:
        notes.append("the first part of the metrics only: there was no time to read them all")
    if left_out > 0:
        notes.append(f"{left_out} more metrics are in the run's files: `trainshed metrics show`")
    boxes = (
        '<div class="opts"><label><input type="checkbox" id="log"> logarithmic</label>'
        '<label><input type="checkbox" id="smooth" checked> smoothed</label></div>'
    )
    return section("Metrics", f'{boxes}<div class="grid">{figures}</div>', "; ".join(notes))


def _settings(run: RunFacts) -> str:
    record = run.record
    job = mapping(record.get("job"))
    hyperparameters = mapping(job.get("hyperparameters")) or mapping(run.status.get("HyperParameters"))
    left = section("Hyperparameters", table([(k, _shown(v)) for k, v in list(hyperparameters.items())[:200]], kind="pairs"))
    settings = {name: value for name, value in mapping(job.get("settings")).items() if value not in ("", None, [], {})}
    versions = mapping(record.get("versions"))
    rows: list[tuple[str, str]] = [(name, words(version)) for name, version in versions.items()]
    image = words(mapping(run.status.get("AlgorithmSpecification")).get("TrainingImage"))
    rows += [("image", image)] if image else []
    rows += [("channel", f"{words(one.get('name'))}: {words(one.get('path'))}") for one in entries(job.get("channels"))[:40]]
    rows += [(f"data of {name}", described(one)) for name, one in list(in_shape(record.get(RECORD_KEY)).items())[:40]]
    rows += [(f"trainshed_{name}", _shown(value)) for name, value in list(settings.items())[:80]]
    right = section("Environment", table(rows, kind="pairs"))
    compiler = mapping(record.get("compiler"))
    if words(compiler.get("choice")):
        right += section("Compiler", table([(k, words(v)) for k, v in compiler.items() if words(v)], kind="pairs"))
    return f'<div class="two"><div>{left}</div><div>{right}</div></div>' if left or right else ""


def _shown(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
