"""Picks metrics out of the log as it goes by: `metric loss=0.12 step=10` lines, and the job's own regular expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainshed.contract.metrics import LOG_PREFIX

LONGEST_LINE = 16_384  # characters that regular expressions are tried on
# Where a value was measured, not what: these are no metrics.
PLACES = frozenset({"step", "epoch", "batch", "iteration", "global_step", "round", "rank"})
_LINE = re.compile(rb"^(?:\[[^\]\n]*\] )*" + LOG_PREFIX.encode() + rb"(.*)$", re.MULTILINE)
_PAIR = re.compile(r"([A-Za-z_][\w./:-]*)=(\S+)")
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)


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
    unreadable: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(definitions: Iterable[tuple[str, str]]) -> Metrics:
        """For a job's definitions."""
        return Metrics(tuple((name, re.compile(regex)) for name, regex in definitions))

    def scan(self, block: bytes) -> None:
        """Takes whole lines."""
        if LOG_PREFIX.encode() in block:
            for match in _LINE.finditer(block):
                self._metric_line(match[1].decode("utf-8", "replace").strip())
        if self.definitions:
            for line in block.decode("utf-8", "replace").splitlines():
                self._defined(line[:LONGEST_LINE])

    def _metric_line(self, text: str) -> None:
        found = False
        for name, value in _PAIR.findall(text):
            if name in PLACES:
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
            match = regex.search(line)
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
