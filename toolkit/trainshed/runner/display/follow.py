"""Reads a run's logs as they grow: `logs`, `attach`, and the Python API."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from trainshed.base.errors import one_line
from trainshed.base.files import listed, open_plain
from trainshed.base.units import duration

from ..files.metrics import Metrics
from ..files.run import RUNNER_LOG
from ..state.outputs import outputs_of
from ..state.stored import Stored, load
from .screen import Screen

PAUSE = 0.1  # seconds between two looks
BLOCK = 1 << 20
LONGEST_LINE = 1 << 20  # bytes; a longer one is passed on in pieces
RUNNER = "runner"  # who says what is in runner.log
_RANK = re.compile(rb"\[(?:[^\]\n:]*:)?([0-9]{1,9})\] ")


@dataclass
class LogTail:
    """One growing file, read by whole lines."""

    path: str
    offset: int = 0
    pending: bytes = b""

    def lines(self, *, rest: bool = False) -> list[bytes]:
        """Lines that have come since the last call, with their ends; with `rest` an unfinished last one, too."""
        try:
            with open_plain(self.path, links=False) as file:
                file.seek(self.offset)
                data = file.read(BLOCK)
        except OSError:
            data = b""
        self.offset += len(data)
        text = self.pending + data
        cut = text.rfind(b"\n") + 1
        if not cut and (len(text) >= LONGEST_LINE or (rest and not data)):
            cut = len(text)
        self.pending = text[cut:]
        found = text[:cut].splitlines(keepends=True) if cut else []
        if found and not found[-1].endswith(b"\n"):
            found[-1] += b"\n"
        return found

    def skip_to_last(self, count: int) -> None:
        """Starts at the last `count` lines; only the file's last megabyte is looked at."""
        try:
            with open_plain(self.path, links=False) as file:
                end = file.seek(0, os.SEEK_END)
                start = max(0, end - BLOCK)
                file.seek(start)
                data = file.read(BLOCK)
        except OSError:
            return
        lines = data.splitlines(keepends=True)
        self.offset = start + len(data) - sum(map(len, lines[len(lines) - min(count, len(lines)) :]))


def logs_of(run: Stored) -> list[str]:
    """Names of the hosts that have a log."""
    return sorted(name.removesuffix(".log") for name in listed(f"{run.folder}/logs") if name.endswith(".log"))


def follow(
    run: Stored, *, hosts: list[str] | None = None, last: int | None = None, forever: bool = True, runner: bool = False
) -> Iterator[tuple[str, bytes] | None]:
    """(host, line) as the run prints them, until it is over; None whenever there is nothing for a moment.

    Args:
        hosts: only these.
        last: start with so many lines of each host's log; None starts at the beginning.
        forever: go on until the run is over; else to the present end.
        runner: also the runner's messages, as those of "runner".
    """
    tails: dict[str, LogTail] = {}
    over = False
    while True:
        for name in [*logs_of(run), *([RUNNER] if runner else [])]:
            if name not in tails and (hosts is None or name in hosts or name == RUNNER):
                tails[name] = LogTail(f"{run.folder}/{RUNNER_LOG}" if name == RUNNER else f"{run.folder}/logs/{name}.log")
                if last is not None:
                    tails[name].skip_to_last(last)
        idle = True
        for name, tail in tails.items():
            while lines := tail.lines(rest=over or not forever):
                idle = False
                yield from ((name, line) for line in lines)
        if idle and (over or not forever):
            return
        if idle:
            # Asked before the last look at the files, so that what was written before the end is not missed.
            now = load(run.folder)
            over = (now.ended and not now.finishing) or now.lost or not (now.status or now.about)
            yield None
            if not over:
                time.sleep(PAUSE)


def tagged(host: str, line: bytes, several: bool) -> bytes:
    """A line with its host before it, where there are several and the line does not say itself."""
    name = one_line(host).encode()
    tag = b"[" + name
    return b"[" + name + b"] " + line if several and not line.startswith(tag) else line


def rank_of(line: bytes) -> int | None:
    """The rank that a line is tagged with."""
    match = _RANK.match(line)
    return int(match[1]) if match else None


def show_logs(
    run: Stored, out: int, *, host: str = "", rank: int | None = None, last: int | None = None, go_on: bool = False
) -> set[int]:
    """Writes a run's log to a descriptor; the ranks whose lines it met. Raises BrokenPipeError when the reader is gone."""
    several = len(logs_of(run)) > 1
    ranks: set[int] = set()
    tags = False
    for entry in follow(run, hosts=[host] if host else None, last=last, forever=go_on):
        if entry is None:
            continue
        name, line = entry
        found = rank_of(line)
        tags = tags or found is not None
        if found is not None or not tags:  # a single process is rank 0 and has no tag
            ranks.add(found or 0)
        if rank is not None and found != rank and (rank != 0 or tags):
            continue
        data = memoryview(tagged(name, line, several and not host))
        while data:
            data = data[os.write(out, data) :]
    return ranks


def attach(run: Stored, screen: Screen) -> Stored:
    """Shows a run's lines and its line of status until it is over; the run as it is then."""
    metrics = Metrics()
    several = len(logs_of(run)) > 1
    for entry in follow(run, last=10, runner=True):
        if entry is None:
            run = load(run.folder)
            screen.status(lambda: describe(run, metrics))  # noqa: B023 (called at once)
            screen.flush()
            continue
        name, line = entry
        if name == RUNNER:
            screen.lines(line, error=True)
        else:
            metrics.scan(line)
            screen.lines(tagged(name, line, several), error=False)
        screen.flush()
    return load(run.folder)


def describe(run: Stored, metrics: Metrics) -> str:
    """The status line, from what the run's files and lines say."""
    parts = [str(run.status.get("SecondaryStatus", "starting")).lower()]
    seconds = run.status.get("TrainingTimeInSeconds")
    if isinstance(seconds, int) and run.ended:
        parts.append(duration(seconds))
    return " · ".join([*parts, *metrics.now(outputs_of(run.folder))])
