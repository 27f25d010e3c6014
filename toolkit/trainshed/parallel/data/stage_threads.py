"""Messages that pass through stages, each stage on a thread of its own, all in the order in which they were given.

So one message can be between hosts while the next is summed inside them, and every rank takes part in the same calls in the
same order: a process group belongs to one stage alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

M = TypeVar("M")
_PATIENCE = 2.0  # seconds; a thread whose peer has ended may wait longer, for its group's timeout


@dataclass
class _Given(Generic[M]):
    message: M
    done: Callable[[BaseException | None], None]
    error: BaseException | None = None


class StageThreads(Generic[M]):
    """Threads that begin with the first message.

    Args:
        stages: what is done to a message, one after the other; each may block. After one has failed, all later messages
            fail with its error: their peers are not where this rank is.
    """

    def __init__(self, stages: Sequence[Callable[[M], None]]) -> None:
        self._stages = tuple(stages)
        self._queues: list[queue.SimpleQueue[_Given[M] | None]] = []
        self._failed: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def give(self, message: M, done: Callable[[BaseException | None], None]) -> None:
        """Takes a message.

        Args:
            done: called, on a thread of ours, when the last stage is over, with the error if one has failed.
        """
        if not self._threads:
            self._queues = [queue.SimpleQueue() for _ in self._stages]
            self._threads = [
                threading.Thread(target=self._work, args=(number,), name=f"trainshed-reduce-{number}", daemon=True)
                for number in range(len(self._stages))
            ]
            for thread in self._threads:
                thread.start()
        self._queues[0].put(_Given(message, done))

    def close(self) -> None:
        """Ends the threads when they have done what was given; waits a little for them.

        A thread that lives while the interpreter is taken apart could still hold a connection, whose end would then crash.
        """
        if self._threads:
            self._queues[0].put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_PATIENCE)
        self._threads = []

    def _work(self, number: int) -> None:
        last = number == len(self._stages) - 1
        while (given := self._queues[number].get()) is not None:
            given.error = given.error or self._failed
            if given.error is None:
                try:
                    self._stages[number](given.message)
                except BaseException as error:  # whatever it is, the training waits for it
                    given.error = self._failed = error
            if last:
                given.done(given.error)
            else:
                self._queues[number + 1].put(given)
            del given  # its tensors may go
        if not last:
            self._queues[number + 1].put(None)
