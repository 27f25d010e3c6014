"""Finds what `metrics.log` has kept beside numbers (`media_files`).

Anybody may have written it: what has another form is left out.
"""

from __future__ import annotations

import os
import re

from trainshed.base import quick_json
from trainshed.base.files import leads_away, listed, read_bytes
from trainshed.base.record import Record

from .media import KINDS, LARGEST
from .media_files import FOLDER
from .points import LONGEST_NAME, finite, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_INDEX = re.compile(r"[0-9]{1,20}-[0-9]{1,20}\.jsonl")
_FILE = re.compile(r"[0-9]{1,12}\.([a-z0-9]{3,4})")
_MOST_INDEXES = 512  # processes of a host
_LARGEST_INDEX = 32 << 20  # bytes
_LONGEST = 400  # characters of a caption


class Medium(Record):
    """One thing that a run has kept beside numbers.

    kind: `image`, `figure`, `table`, `histogram`, `text` or `audio`.
    path: of its file, below `output`, a folder of one host.
    call: the how manieth of its name its process has logged, from 1.
    time, step, epoch, rank: as of a metric's `Point`.
    caption: a person's words; cut: what was left out of the value.
    """

    name: str
    kind: str
    path: str
    output: str
    call: int
    time: float
    step: int | None = None
    epoch: float | None = None
    rank: int | None = None
    caption: str = ""
    cut: str = ""

    def read(self) -> bytes:
        """The file's content. Raises OSError or ValueError: it is gone, a link, or too large."""
        found = None if leads_away(self.output, os.path.dirname(self.path)) else read_bytes(self.path, LARGEST, links=False)
        if found is None:
            raise FileNotFoundError(f"{self.path} is not there any more")
        return found


def media_of(outputs: Iterable[str]) -> dict[str, tuple[Medium, ...]]:
    """What a run has kept, by name, in the order of steps: of each name that of the lowest rank that logged it.

    Of a job that was interrupted, steps that it has made again are left out, as of metrics.

    Args:
        outputs: the output folders of its hosts.
    """
    lowest: dict[str, int] = {}
    lives: dict[str, list[list[Medium]]] = {}
    for life in (life for output in dict.fromkeys(outputs) for life in _lives(output)):
        for (name, rank), found in life.items():
            if rank < lowest.setdefault(name, rank):
                lowest[name], lives[name] = rank, []
            if rank == lowest[name]:
                lives.setdefault(name, []).append(found)
    return {name: _joined(lives[name]) for name in sorted(lives)}


def _joined(lives: list[list[Medium]]) -> tuple[Medium, ...]:
    kept: list[Medium] = []
    for life in sorted(lives, key=lambda life: life[0].time):
        first = life[0].step
        kept = [one for one in kept if first is None or one.step is None or one.step < first] + life
    return tuple(kept)


def _lives(output: str) -> Iterable[dict[tuple[str, int], list[Medium]]]:
    """What each process has kept in its life, by name and rank."""
    folder = f"{output}/metrics/{FOLDER}"
    if leads_away(output, folder):
        return
    for index in [name for name in listed(folder) if _INDEX.fullmatch(name)][-_MOST_INDEXES:]:
        base = f"{folder}/{index.removesuffix('.jsonl')}"
        present = set(listed(base))
        try:
            lines = (read_bytes(f"{folder}/{index}", _LARGEST_INDEX, cut=True, links=False) or b"").splitlines()
        except OSError:
            continue
        life: dict[tuple[str, int], list[Medium]] = {}
        for line in lines:
            one = _medium(line, base, output)
            if one is not None and os.path.basename(one.path) in present:
                life.setdefault((one.name, -1 if one.rank is None else one.rank), []).append(one)
        yield life


def _medium(line: bytes, base: str, output: str) -> Medium | None:
    try:
        told = quick_json.loads(line)
        name, kind, file = (told[key] for key in ("MetricName", "Kind", "File"))
        match = _FILE.fullmatch(file)
        good = (
            match is not None and match[1] in KINDS[kind].endings and isinstance(name, str) and 0 < len(name) <= LONGEST_NAME
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not good or not 0 < len(name) <= LONGEST_NAME:
        return None
    step, rank, call = (whole(told.get(key)) for key in ("Step", "Rank", "Call"))
    words = [_words(told.get(key)) for key in ("Caption", "Cut")]
    time, epoch = finite(told.get("Timestamp")) or 0.0, finite(told.get("Epoch"))
    return Medium(name, kind, f"{base}/{file}", output, call or 0, time, step, epoch, rank, *words)


def _words(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""
