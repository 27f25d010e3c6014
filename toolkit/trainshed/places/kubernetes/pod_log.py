"""The log of a pod, byte by byte as it comes, over as many connections as it takes.

The node puts a time of nanoseconds in front of every line. Asked again, for the lines since some seconds before the last one
(times of two outputs may be a little out of order), it repeats some: those are known by their times. A line without its end
counts as not read.

Source: PodLogOptions of core/v1 (`timestamps`, `sinceTime`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from .api_server import ApiServer, ApiServerUnreachable, Refused, ResponseStream
from .pod_words import CONTAINER

SILENT_SECONDS = 3600.0  # a script may print nothing for so long; then it is asked again
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
MARK_SECONDS = 0.5  # between two marks that are handed on
SLACK_SECONDS = 2  # that lines may be out of order
TRIES = 5  # of a pod that has ended, and whose node does not answer
_GONE = (404, 410)


@dataclass(frozen=True)
class Mark:
    """How far a log was read: how many lines have which time (nanoseconds since the epoch), of the last moments."""

    times: Mapping[int, int] = field(default_factory=dict)

    @property
    def since(self) -> int:
        """The second from which lines are asked for again, 0 for the beginning."""
        return max(self.times, default=0) // 10**9 - SLACK_SECONDS if self.times else 0


@dataclass(frozen=True)
class PodLines:
    """Whole lines of a pod; the mark behind them, now and then; `over` where no more will come."""

    uid: str
    data: bytes
    mark: Mark | None
    over: bool = False


class PodLog(threading.Thread):
    """The log of one pod.

    Args:
        put: gets `PodLines`; may block.
    """

    def __init__(self, api: ApiServer, name: str, uid: str, mark: Mark, put: Callable[[object], None]) -> None:
        super().__init__(daemon=True, name=f"log of {name}")
        self.api, self.uid, self.mark, self.put = api, uid, mark, put
        self.marked = 0.0
        self.path = f"/api/v1/namespaces/{api.namespace}/pods/{name}/log"
        self.ended = threading.Event()  # `train` has ended there: what can be read now is all
        self.closed = threading.Event()
        self.current: ResponseStream | None = None

    def run(self) -> None:
        """Until the pod has ended and all is read, it is gone, or `close`."""
        pause, left = FIRST_PAUSE, TRIES
        while not self.closed.is_set():
            last, before = self.ended.is_set(), self.mark
            try:
                self._read(follow=not last)
                if last:
                    break
            except Refused as error:
                if error.code in _GONE:
                    break
                left -= last  # 400: the container has not started yet, or is gone
            except ApiServerUnreachable:
                left -= last
            if left <= 0:
                break
            pause = FIRST_PAUSE if self.mark != before else min(pause * 2, LONGEST_PAUSE)
            if not (self.ended.is_set() and not last):  # an ended one is read at once, for the last time
                self.closed.wait(pause)
        self.put(PodLines(self.uid, b"", self.mark, over=True))

    def close(self) -> None:
        """Ends it soon."""
        self.closed.set()
        if self.current is not None:
            self.current.end()

    def _read(self, *, follow: bool) -> None:
        query = {"container": CONTAINER, "timestamps": "true", "follow": str(follow).lower()}
        if self.mark.since:
            since = datetime.fromtimestamp(self.mark.since, timezone.utc)
            query["sinceTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        position = Position(self.mark)
        with self.api.stream(self.path, query, SILENT_SECONDS) as stream:
            self.current = stream
            try:
                for block in stream.blocks():
                    if data := position.new(block):
                        due = time.monotonic() - self.marked >= MARK_SECONDS
                        self.marked = time.monotonic() if due else self.marked
                        self.put(PodLines(self.uid, data, position.mark if due else None))
            finally:
                self.current, self.mark = None, position.mark


class Position:
    """The position in a log, from a mark on: what comes again is left out."""

    def __init__(self, mark: Mark) -> None:
        self.times, self.again = dict(mark.times), dict(mark.times)

    @property
    def mark(self) -> Mark:
        """Behind what was read so far."""
        start = Mark(self.times).since * 10**9
        self.times = {when: count for when, count in self.times.items() if when >= start}
        return Mark(dict(self.times))

    def new(self, lines: Iterable[bytes]) -> bytes:
        """The lines that were not read before, without their times."""
        found = []
        for line in lines:
            when, text = split(line)
            if when is None:  # the node's own words, like that a log cannot be read
                found.append(line)
            elif self.again.get(when):
                self.again[when] -= 1
            else:
                found.append(text)
                self.times[when] = self.times.get(when, 0) + 1
        return b"".join(found)


def split(line: bytes) -> tuple[int | None, bytes]:
    """(time in nanoseconds, text) of a line `2026-11-23T20:39:05.123456789Z text`; (None, line) of another one."""
    stamp, space, text = line.partition(b" ")
    if not space or len(stamp) < 20 or stamp[4:5] != b"-" or stamp[10:11] != b"T":
        return None, line
    try:
        whole, _, rest = stamp.decode("ascii").replace("Z", "+00:00").partition(".")
        zone = rest.lstrip("0123456789")
        digits = rest[: len(rest) - len(zone)]
        moment = datetime.fromisoformat(f"{whole}{zone}")
        if moment.tzinfo is None:
            return None, line
        return int(moment.timestamp()) * 10**9 + int((digits + "0" * 9)[:9]), text
    except (ValueError, OverflowError):
        return None, line
