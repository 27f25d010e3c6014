"""Findings of rules: files `output/rules/HOST.json` with one JSON object a line, a `Finding`."""

from __future__ import annotations

import json
import os

from trainshed.base.files import read_bytes
from trainshed.base.record import Record

MOST = 200  # that are read of a host
_LARGEST = 1 << 20  # bytes of a file


class Finding(Record):
    """A finding of a rule.

    rule, action: as the job asked for it. text: a sentence. time: seconds since 1970.
    step, rank: of the point at which it fired, None where that had none.
    """

    rule: str
    action: str
    text: str
    time: float
    step: int | None = None
    rank: int | None = None

    @property
    def place(self) -> str:
        """`step 7, rank 0`, or what of that is known."""
        known = [f"step {self.step}" if self.step is not None else "", f"rank {self.rank}" if self.rank is not None else ""]
        return ", ".join(filter(None, known))


def findings_in(output: str) -> list[Finding]:
    """The findings in an output folder, in the order of their files and lines; what has another form is left out."""
    folder = f"{output}/rules"
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
        lines = [line for name in names for line in (read_bytes(f"{folder}/{name}", _LARGEST, cut=True) or b"").splitlines()]
    except OSError:
        return []
    return [finding for line in lines[:MOST] if (finding := _finding(line)) is not None]


def _finding(line: bytes) -> Finding | None:
    try:
        finding = Finding(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = all(isinstance(text, str) for text in (finding.rule, finding.action, finding.text))
    places = all(number is None or type(number) is int for number in (finding.step, finding.rank))
    return finding if texts and places and type(finding.time) in (int, float) else None
