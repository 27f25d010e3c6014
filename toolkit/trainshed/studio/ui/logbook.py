"""Logs of any size, a piece at a time: by place, backwards and forwards, and searched within a limit of time."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from trainshed.base.errors import one_line, visible
from trainshed.base.files import listed, open_plain
from trainshed.runner.files.run import RUNNER_LOG
from trainshed.runner.state.outputs import attempts_of

PIECE = 1 << 16  # bytes of a piece
BLOCK = 1 << 22  # bytes that are searched at once
MOST_HITS = 200
SEARCH_SECONDS = 0.7  # of one request; the page asks on
LONGEST_LINE = 4000  # characters that are shown
LONGEST_QUERY = 500
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_RANK = re.compile(r"(.{1,200})\.rank(\d{1,9})\.log")


def logs_of(folder: str) -> dict[str, str]:
    """Name -> path of a run's logs: of hosts, of their ranks, of the runner."""
    found = {}
    for name in listed(f"{folder}/logs"):
        if name.endswith(".log"):
            found[one_line(name.removesuffix(".log"))] = f"{folder}/logs/{name}"
    ranks = []
    for hosts in attempts_of(folder)[-1:]:
        for _, data in hosts:
            for name in listed(f"{data}/logs"):
                if match := _RANK.fullmatch(name):
                    ranks.append((int(match[2]), f"rank {int(match[2])} ({one_line(match[1])})", f"{data}/logs/{name}"))
    found.update({name: path for _, name, path in sorted(ranks)})
    if os.path.isfile(f"{folder}/{RUNNER_LOG}"):
        found["runner"] = f"{folder}/{RUNNER_LOG}"
    return found


def piece(path: str, place: int, *, back: bool) -> dict[str, Any]:
    """Whole lines from a place on, or those that end there.

    Args:
        place: in bytes, at the start of a line; negative for the end.

    Returns:
        start, end: of the lines, in bytes. size: of the file. lines: [place, text].
    """
    try:
        with open_plain(path, links=False) as file:
            size = os.fstat(file.fileno()).st_size
            place = size if place < 0 else min(place, size)
            first = max(0, place - PIECE) if back else place
            file.seek(first)
            data = file.read(place - first if back else PIECE)
    except OSError:
        return {"start": 0, "end": 0, "size": 0, "lines": []}
    if back and first:
        cut = data.find(b"\n") + 1
        data, first = (data[cut:], first + cut) if cut < len(data) else (data, first)
    if not back:
        cut = data.rfind(b"\n") + 1
        if cut:
            data = data[:cut]
        elif len(data) < PIECE:  # a last line that is being written
            data = b""
    return {"start": first, "end": first + len(data), "size": size, "lines": _lines(data, first)}


def search(path: str, query: str, place: int, seconds: float = SEARCH_SECONDS) -> dict[str, Any]:
    """Lines that hold a text, whatever the case of its ASCII letters, from a place on.

    Returns:
        hits: [place, text] of the lines. next: where to search on. done: whether the whole file has been searched.
    """
    wanted = query.encode("utf-8", "replace")[:LONGEST_QUERY].lower()
    until = time.monotonic() + seconds
    hits: list[tuple[int, str]] = []
    if not wanted:
        return {"hits": hits, "next": 0, "size": 0, "done": True}
    try:
        with open_plain(path, links=False) as file:
            size = os.fstat(file.fileno()).st_size
            place = max(0, place)
            while place < size:
                file.seek(place)
                block = file.read(BLOCK)
                cut = block.rfind(b"\n") + 1
                if not cut or len(block) < BLOCK:
                    cut = len(block)
                if not cut:
                    break
                place = _search(block[:cut], wanted, place, hits)
                if len(hits) >= MOST_HITS or time.monotonic() >= until:
                    break
    except OSError:
        return {"hits": hits, "next": place, "size": 0, "done": True}
    return {"hits": hits, "next": place, "size": size, "done": place >= size}


def _search(block: bytes, wanted: bytes, start: int, hits: list[tuple[int, str]]) -> int:
    """Adds the lines of a block that hold a text; returns where the search goes on."""
    small, at = block.lower(), 0
    while (found := small.find(wanted, at)) >= 0:
        begin = block.rfind(b"\n", 0, found) + 1
        end = block.find(b"\n", found)
        end = len(block) if end < 0 else end
        hits.append((start + begin, shown(block[begin : begin + 4 * LONGEST_LINE][: end - begin])))
        at = end + 1
        if len(hits) >= MOST_HITS:
            return start + at
    return start + len(block)


def _lines(data: bytes, start: int) -> list[tuple[int, str]]:
    lines, place = [], start
    for line in data.split(b"\n"):
        if line or place - start < len(data):
            lines.append((place, shown(line)))
        place += len(line) + 1
    return lines


def shown(line: bytes) -> str:
    """A line as text: the last frame of a progress bar, without colours, what cannot be seen spelled out."""
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = _ANSI.sub("", line[: 4 * LONGEST_LINE].decode("utf-8", "replace"))
    return visible(text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…")
