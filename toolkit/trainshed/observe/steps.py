"""Times of each rank's training steps: the lines that a rank writes, and their reader.

    profiler/steps/algo-1.rank-0.1790000000123.json

holds what one process measured, one JSON object a line. First, and again where more becomes known, facts:

    {"Facts": {"Rank": 0, "World": 2, "Host": "algo-1", "Device": "cpu", "Workers": 0, "Cpus": 8}}

then windows of one or more steps, of at least a second each (longer and longer ones, so that a file stays small):

    {"Time": 1790000010.5, "Step": 120, "Steps": 10, "Seconds": 1.02, "Longest": 0.21, "Samples": 320,
     "Cpu": 0.9, "At": 4120, "Phases": {"data": 0.61, "forward": 0.2, ...}, "Peaks": {"forward": 123456789, ...}}

A step ends with the optimizer's step, so microbatches that accumulate count as one. `Phases` add up to `Seconds`.
"""

from __future__ import annotations

import json
import os

from trainshed.base.files import open_plain
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FOLDER = "steps"  # below the profiler's folder
# What a step consists of. data: waiting for the next batch. copy: batches on their way to the device. communication:
# waiting for other ranks. checkpoint: the loop stands still for a checkpoint. rest: all that none of these accounts for.
PHASES = ("data", "copy", "forward", "backward", "communication", "optimizer", "checkpoint", "rest")

_IN_WORDS = {
    "data": "wait for data",
    "copy": "copies to the device",
    "checkpoint": "checkpoints",
    "rest": "loop outside of the step",
}


def phase_in_words(phase: str) -> str:
    """Says what a rank does there, after "its"."""
    return _IN_WORDS.get(phase, phase)


class Window(Record):
    """Some successive steps of one rank.

    time: when the last of them ended, seconds since 1970.
    step: the number of the last of them in this process, from 1. steps: how many they are.
    seconds: how long they took. longest: how long the longest of them took.
    samples: how many samples the loader's batches held; None where nobody knows.
    phases: seconds by names of `PHASES`; they add up to `seconds`.
    peaks: by phase, the most memory that was allocated on the device, bytes; {} on CPUs.
    cpu: seconds of CPU time that the process used meanwhile; None where nobody knows.
    at: the number of the last of them as the script counts them for its Checkpointer; None where it has none.
    """

    time: float
    step: int
    steps: int
    seconds: float
    longest: float
    phases: dict[str, float]
    samples: int | None = None
    peaks: dict[str, int] = {}  # noqa: RUF012
    cpu: float | None = None
    at: int | None = None


class RankSteps(Record):
    """The measurements of one rank in one life of its process.

    facts: of its latest `Facts` lines; all may be absent: `World`, `Host`, `Device`, `Workers` (of the loader), `Cpus`
        (that the rank may use), `Batch` (samples of the loader's batches), `Pid`; of its start, in seconds since 1970:
        `Began` (the process), `Ready` (its first step began), `First` (that ended); `Imported` (seconds that imports took),
        `Resumed` (the step that its Checkpointer restored).
    """

    rank: int
    facts: dict[str, Any]
    windows: tuple[Window, ...]

    @property
    def steps(self) -> int:
        """How many steps were measured."""
        return sum(window.steps for window in self.windows)

    @property
    def seconds(self) -> float:
        """How long they took."""
        return sum(window.seconds for window in self.windows)

    def phases(self) -> dict[str, float]:
        """Seconds of all steps by phase, every one of `PHASES`."""
        return {name: sum(window.phases.get(name, 0.0) for window in self.windows) for name in PHASES}


def read_steps(*folders: str) -> list[RankSteps]:
    """Reads what all ranks of a run have measured, by rank; of several lives of a rank the later ones come later.

    Args:
        folders: the hosts' profiler folders (`<output>/profiler`).
    """
    found = []
    for folder in dict.fromkeys(folders):
        try:
            names = sorted(os.listdir(f"{folder}/{FOLDER}"))
        except OSError:
            continue
        found += [read_rank(f"{folder}/{FOLDER}/{name}") for name in names if name.endswith(".json")]
    known = [one for one in found if one is not None]
    return sorted(known, key=lambda one: (one.rank, one.windows[0].time))


def read_rank(path: str) -> RankSteps | None:
    """One process's file; None where it holds no window yet. Lines of any other form are passed over."""
    facts: dict[str, Any] = {}
    windows: list[Window] = []
    for fields in _objects(path):
        more = fields.get("Facts")
        if isinstance(more, dict):
            facts.update(more)
        elif (window := window_of(fields)) is not None:
            windows.append(window)
    rank = facts.get("Rank")
    if not windows:
        return None
    return RankSteps(rank if isinstance(rank, int) else 0, facts, tuple(windows))


def window_of(fields: dict[str, Any]) -> Window | None:
    """The window that a line holds, None for any other object."""
    try:
        phases = {name: float(value) for name, value in fields["Phases"].items() if name in PHASES}
        samples = fields.get("Samples")
        window = Window(
            time=float(fields["Time"]),
            step=int(fields["Step"]),
            steps=int(fields["Steps"]),
            seconds=float(fields["Seconds"]),
            longest=float(fields.get("Longest", 0.0)),
            phases=phases,
            samples=None if samples is None else int(samples),
            peaks={name: int(value) for name, value in fields.get("Peaks", {}).items()},
            cpu=None if fields.get("Cpu") is None else float(fields["Cpu"]),
            at=None if fields.get("At") is None else int(fields["At"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    total = window.time + window.seconds + sum(phases.values())
    return window if window.steps > 0 and total - total == 0 else None


def line_of(window: Window) -> str:
    """The window as one line of JSON, with its newline."""
    fields: dict[str, Any] = {
        "Time": round(window.time, 3),
        "Step": window.step,
        "Steps": window.steps,
        "Seconds": round(window.seconds, 6),
        "Longest": round(window.longest, 6),
        "Phases": {name: round(value, 6) for name, value in window.phases.items()},
    }
    if window.samples is not None:
        fields["Samples"] = window.samples
    if window.cpu is not None:
        fields["Cpu"] = round(window.cpu, 6)
    if window.at is not None:
        fields["At"] = window.at
    if window.peaks:
        fields["Peaks"] = window.peaks
    return json.dumps(fields) + "\n"


def _objects(path: str) -> Iterator[dict[str, Any]]:
    try:
        with open_plain(path, links=False) as file:
            for line in file:
                try:
                    fields = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(fields, dict):
                    yield fields
    except OSError:
        return
