"""The process beside a job that searches its log for metrics, so that the log itself never waits for a regular expression.

    python -m trainshed.metrics.searching FOLDER

Standard input has the form of `contract.wire.metric_lines`: a head, then frames. Points go to a file in FOLDER, one JSON
object a line; remarks for people to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time

from trainshed.base.errors import one_line
from trainshed.base.helper_process import report, stand_back

from .scraper import Scraper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


class _Out:
    """The file of points, made with the first one. A full disk costs points and is said; it never ends the search."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/log-{time.time_ns() // 1_000_000}-{os.getpid()}.json"
        self._fd = -1
        self._said = False

    def write(self, text: str) -> None:
        """Appends lines."""
        try:
            if self._fd < 0:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            view = memoryview(text.encode())
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            if not self._said:
                self._said = True
                _tell([f"metrics cannot be written to {self._path}: {error.strerror}"])


def search(stream: BinaryIO, folder: str) -> None:
    """Searches what comes from `stream` until it ends."""
    asked = json.loads(stream.readline())
    scraper = Scraper([(name, regex) for name, regex in asked["definitions"]], asked["format"])
    out = _Out(folder)
    _tell(scraper.remarks())
    while words := stream.readline().split():
        block = stream.read(int(words[1]))
        text = scraper.text(block, time.time(), None if words[0] == b"-" else int(words[0]))
        if text:
            out.write(text)
        _tell(scraper.remarks())
    _tell(scraper.finish())


def _tell(remarks: list[str]) -> None:
    for remark in remarks:
        report(one_line(remark))


if __name__ == "__main__":
    stand_back()
    search(sys.stdin.buffer, sys.argv[1])
