"""What `trainshed watch` shows: a run as lines of text that fit a terminal; reads the run's files, again where they grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainshed.base.files import open_plain
from trainshed.base.units import duration
from trainshed.metrics.reading import Curve, MetricsReader
from trainshed.observe.bottleneck import verdict_of
from trainshed.observe.place import profiler_folder
from trainshed.observe.steps import PHASES, RankSteps, read_steps
from trainshed.observe.system import read_system
from trainshed.runner.display.follow import logs_of, rank_of
from trainshed.runner.state.outputs import attempts_of, outputs_of
from trainshed.runner.state.stored import Stored
from trainshed.studio.pages.curves import groups
from trainshed.studio.pages.facts import instant, mapping, read_attempts, words
from trainshed.studio.pages.scale import short
from trainshed.studio.pages.timeline import paused

from .sparks import BARS, cut, spark

if TYPE_CHECKING:
    from trainshed.observe.system import Curves

MOST_METRICS = 8
MOST_FINDINGS = 3
SYSTEM_SECONDS = 600.0  # of the machine's past
READ_SECONDS = 0.5  # for what is new in the metrics, of one look
_TAIL = 1 << 16  # bytes of a log's end


@dataclass
class View:
    """What is known of a run at one moment.

    findings: what rules have found, the last ones last.
    log: its last lines.
    """

    run: Stored
    state: str
    curves: dict[str, Curve] = field(default_factory=dict)
    system: Curves = field(default_factory=dict)
    steps: list[RankSteps] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    failure: str = ""
    log: list[str] = field(default_factory=list)


class Watched:
    """A run that is looked at again and again.

    Args:
        rank: whose lines of the log are shown; None for all.
    """

    def __init__(self, rank: int | None = None) -> None:
        self._metrics = MetricsReader()
        self._rank = rank

    def look(self, run: Stored, state: str) -> View:
        """The run as it is now."""
        attempts = attempts_of(run.folder)
        self._metrics.read_on(outputs_of(run.folder), READ_SECONDS)
        profilers = [profiler_folder(output) for output, _ in (attempts[-1] if attempts else [])]
        facts = read_attempts(attempts[-1:])
        findings = [
            f"{finding.rule}: {finding.text}" for attempt in facts for host in attempt.hosts for finding in host.findings
        ]
        failures = [mapping(host.record.get("failure")) for attempt in facts for host in attempt.hosts]
        return View(
            run,
            state,
            self._metrics.curves(),
            read_system(*profilers, since=time.time() - SYSTEM_SECONDS if not run.ended else 0.0),
            read_steps(*profilers),
            findings[-MOST_FINDINGS:],
            next((words(failure.get("summary")) for failure in failures if failure), ""),
            last_lines(run, self._rank),
        )


def last_lines(run: Stored, rank: int | None) -> list[str]:
    """The last lines of all hosts' logs, of one rank where it is asked for."""
    hosts = logs_of(run)
    found: list[str] = []
    for host in hosts:
        try:
            with open_plain(f"{run.folder}/logs/{host}.log", links=False) as file:
                end = file.seek(0, 2)
                file.seek(max(0, end - _TAIL))
                data = file.read(_TAIL)
        except OSError:
            continue
        frames = data.removesuffix(b"\n").split(b"\n")[1 if end > _TAIL else 0 :]
        lines = [frame.rstrip(b"\r").rpartition(b"\r")[2] for frame in frames]
        tagged = any(rank_of(line + b"\n") is not None for line in lines)
        if rank is not None:
            lines = [line for line in lines if rank_of(line) == rank or (rank == 0 and not tagged)]
        tag = f"[{host}] " if len(hosts) > 1 else ""
        texts = (line.decode("utf-8", "replace") for line in lines[-40:])
        found += [text if text.startswith(f"[{host}") else tag + text for text in texts]
    return found


def render(view: View, width: int, height: int, bars: str = BARS) -> list[str]:
    """The lines of a frame: never more than `height`, none wider than `width`."""
    head = [_head(view), ""]
    body = _metrics(view, width, bars) + _system(view, width, bars) + _steps(view)
    if view.failure:
        body += ["", f"failed  {view.failure}"]
    if view.findings:
        body += ["", *(f"rule    {finding}" for finding in view.findings)]
    lines = (head + body)[: max(1, height - 4)]
    room = height - len(lines) - 2
    if view.log and room > 0:
        lines += ["", *view.log[-room:]]
    return [cut(line, width) for line in lines[:height]]


def _head(view: View) -> str:
    started = instant(view.run.status.get("CreationTime"))
    ended = instant(view.run.status.get("TrainingEndTime")) if view.run.ended else time.time()
    took = f", {duration(max(0.0, ended - started - paused(view.run.status)))}" if started else ""
    return f"{view.run.name}  {view.state}{took}"


def _metrics(view: View, width: int, bars: str) -> list[str]:
    names = [name for group in groups(list(view.curves)) for _, name in group.members][:MOST_METRICS]
    if not names:
        return ["no metrics" if view.run.ended else "no metrics yet"]
    label = min(24, max(map(len, names)))
    drawn = []
    for name in names:
        values = view.curves[name].track.values
        steps = view.curves[name].steps()
        at = f"  step {steps[-1]:.0f}" if steps else ""
        line = spark(values, max(8, min(60, width - label - 34)), bars)
        drawn.append(f"{cut(name, label):<{label}}  {short(values[-1]):>10}  {line}{at}")
    more = len(view.curves) - len(names)
    return [*drawn, f"and {more} more: trainshed metrics show"] if more > 0 else drawn


def _system(view: View, width: int, bars: str) -> list[str]:
    shown = (
        ("cpu", "cpus", "CPUUtilization", "cpu"),
        ("memory", "memory", "MemoryUsedPercent", "memory"),
        ("gpu", "", "GPUUtilization", ""),
    )
    drawn = []
    nodes = {node for node, *_ in view.system}
    for (node, kind, name, dimension), points in sorted(view.system.items()):
        for wanted, called, measured, label in shown:
            if kind == wanted and dimension == measured and called in ("", name):
                host = f"{node} " if len(nodes) > 1 else ""
                line = spark([value for _, value in points], max(8, min(60, width - 46)), bars)
                drawn.append(f"{cut(host + (label or name), 24):<24}  {points[-1][1]:>8.0f} %  {line}")
    return ["", *drawn[:8]] if drawn else []


def _steps(view: View) -> list[str]:
    verdict = verdict_of(view.steps, view.system)
    if verdict is None:
        return []
    return ["", f"step    {1000 * verdict.step_seconds:.3g} ms: {_shares(verdict.phases)}", f"        {verdict.sentence()}"]


def _shares(phases: dict[str, float]) -> str:
    whole = sum(phases.values()) or 1.0
    parts: Sequence[str] = [name for name in PHASES if phases.get(name, 0.0) / whole >= 0.01]
    return ", ".join(f"{name} {100 * phases[name] / whole:.0f} %" for name in parts)
