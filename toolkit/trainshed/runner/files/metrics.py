"""Picks metrics out of the log as it goes by: `metric loss=0.12 step=10` lines, and the job's own regular expressions."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainshed.base.patterns import compiled

LONGEST_SEARCH = 2.0  # seconds of CPU time of one regular expression on one line
LONGEST_LINE = 16_384  # characters that regular expressions are tried on
# Where a value was measured, not what was: these are not metrics.
PLACES = frozenset({"step", "epoch", "batch", "iteration", "global_step", "round", "rank"})
LOG_PREFIX = "metric "  # of a line that a script prints: `metric loss=0.125 step=10`
_LINE = re.compile(rb"^(?:\[[^\]\n]*\] )*" + LOG_PREFIX.encode() + rb"(.*)$", re.MULTILINE)
_PAIR = re.compile(r"([A-Za-z_][\w./:-]*)=(\S+)")
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)


class _TooSlow(Exception):
    """A regular expression takes too long."""


def _too_slow(_signal: int, _frame: object) -> None:
    raise _TooSlow


@dataclass
class Series:
    """One metric: its first and its last value."""

    first: float
    last: float
    count: int = 1


@dataclass
class Metrics:
    """What has been seen so far. definitions: (name, regex) whose first group is the number."""

    definitions: tuple[tuple[str, re.Pattern[str]], ...] = ()
    series: dict[str, Series] = field(default_factory=dict)
    last_line: str = ""
    places: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    @staticmethod
    def of(definitions: Iterable[tuple[str, str]]) -> Metrics:
        """For a job's definitions."""
        return Metrics(tuple((name, compiled(regex)) for name, regex in definitions))

    def scan(self, block: bytes) -> None:
        """Takes whole lines."""
        if LOG_PREFIX.encode() in block:
            for match in _LINE.finditer(block):
                self._metric_line(match[1].decode("utf-8", "replace").strip())
        if self.definitions:
            for line in block.decode("utf-8", "replace").splitlines():
                self._defined(line[:LONGEST_LINE])

    def _search(self, name: str, regex: re.Pattern[str], line: str) -> re.Match[str] | None:
        """A search that is given up after a while: there are expressions that take longer than the universe."""
        if threading.current_thread() is not threading.main_thread():  # no alarms there
            return regex.search(line)
        before = signal.signal(signal.SIGVTALRM, _too_slow)
        try:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SEARCH)
                return regex.search(line)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                signal.signal(signal.SIGVTALRM, before if before is not None else signal.SIG_DFL)
        except _TooSlow:
            self.definitions = tuple(one for one in self.definitions if one[0] != name)
            self.slow.append(name)
            return None

    def now(self) -> list[str]:
        """For the status line: step and epoch, loss, throughput; without a loss the last two metrics."""
        parts = [f"{name} {value}" for name, value in self.places.items() if name != "rank"]
        shown = [name for name in self.series if "loss" in name.lower()][:2]
        shown += [name for name in self.series if "per_sec" in name or "throughput" in name.lower()][:1]
        for name in shown or list(self.series)[-2:]:
            parts.append(f"{name} {self.series[name].last:.4g}")
        return parts

    def _metric_line(self, text: str) -> None:
        found = False
        for name, value in _PAIR.findall(text):
            if name in PLACES:
                self.places[name] = value[:20]
                continue
            try:
                self._add(name, float(value))
            except ValueError:
                continue
            found = True
        if found:
            self.last_line = text

    def _defined(self, line: str) -> None:
        for name, regex in self.definitions:
            match = self._search(name, regex, line)
            if match is None:
                continue
            number = _NUMBER.match(match[1] or "")
            if number is None:
                self.unreadable.setdefault(name, (match[1] or "")[:40])
                continue
            self._add(name, float(number[0]))
            self.last_line = f"{name}={number[0].strip()}"

    def _add(self, name: str, value: float) -> None:
        series = self.series.get(name)
        if series is None:
            self.series[name] = Series(value, value)
        else:
            series.last = value
            series.count += 1
