"""Reads items in ranges, several at once, each tried again for a while; what comes out is in order."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from trainshed.base.errors import TrainshedError

from .items import Item, Passing, Source
from .progress import TransferProgress

RANGE = 8 << 20  # bytes of one request
AHEAD = 4  # ranges of an item that are under way
AT_ONCE = 16  # requests: with RANGE the bound of what is in memory, beside what waits for a slow disk
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each further try
Value = TypeVar("Value")


class FetchCancelled(Exception):
    """Fetching was given up."""


class PendingRange:
    """The answer that a thread will bring."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._value: bytes = b""
        self._error: BaseException | None = None

    def run(self, work: Callable[[], bytes]) -> None:
        """In the thread that does the work."""
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        self._there.set()

    def get(self, over: threading.Event) -> bytes:
        """Waits for it. Raises what the work raised, and Over."""
        while not self._there.wait(0.5):
            if over.is_set():
                raise FetchCancelled
        if self._error is not None:
            raise self._error
        return self._value


class Crew:
    """Threads that do work. Daemons: at a Ctrl-C nobody waits for a storage that does not answer."""

    def __init__(self, count: int, over: threading.Event) -> None:
        self.over = over
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, name=f"fetch-{number}", daemon=True).start()

    def ask(self, work: Callable[[], bytes]) -> PendingRange:
        """Has it done by the next thread that is free."""
        answer = PendingRange()
        self._work.put(lambda: answer.run(work))
        return answer

    def close(self) -> None:
        """Lets the threads end when they are done with what they do."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if not self.over.is_set():
                work()


def patiently(work: Callable[[], Value], what: str, over: threading.Event, progress: TransferProgress) -> Value:
    """Does it, again and again where an error may pass. Raises TrainshedError: it did not; Over."""
    for pause in (*PAUSES, None):
        if over.is_set():
            raise FetchCancelled
        try:
            return work()
        except Passing as error:
            if pause is None:
                tries = len(PAUSES) + 1
                raise TrainshedError(
                    f"{what}: {error}, {tries} times in a row", hint="what has come is kept: start the job again later"
                ) from None
            progress.note(f"{what}: {error}")
            over.wait(pause)
    raise AssertionError


def blocks(
    source: Source, item: Item, start: int, crew: Crew, over: threading.Event, progress: TransferProgress
) -> Iterator[bytes]:
    """The item's bytes from `start` on, in order. Raises Changed, TrainshedError, Over."""
    under_way: deque[PendingRange] = deque()
    at = start

    def reading(begin: int, end: int) -> Callable[[], bytes]:
        return lambda: patiently(lambda: source.read(item, begin, end), item.url, over, progress)

    while at < item.size or under_way:
        while at < item.size and len(under_way) < AHEAD:
            end = min(at + RANGE, item.size)
            under_way.append(crew.ask(reading(at, end)))
            at = end
        yield under_way.popleft().get(over)
