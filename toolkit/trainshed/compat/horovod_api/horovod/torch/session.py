"""This process's part in Horovod."""

from __future__ import annotations

import atexit
import os
import sys

from .engine.place import place_of
from .engine.worker import Worker


class _Session:
    """This process's part in Horovod: nothing before `init` and after `shutdown`."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.generation = 0
        self._process = 0
        self._unnamed: dict[tuple[str, int | None], int] = {}

    def start(self) -> Worker:
        self._process = os.getpid()  # a child that it forks has no part in this
        self.worker = Worker(place_of(os.environ), os.environ, self.generation)
        self.generation += 1
        self._unnamed.clear()
        if self.generation == 1:
            atexit.register(self.end_process)
        return self.worker

    def next_name(self, stem: str, process_set: int | None) -> str:
        """A name that ranks agree on without a word: they count alike, in each process set."""
        number = self._unnamed.get((stem, process_set), 0) + 1
        self._unnamed[stem, process_set] = number
        return f"{stem}.{number}"

    def end_process(self) -> None:
        """A script that ends well says so; one that fails is heard of when it is over, so that it is the first to fail."""
        if os.getpid() != self._process or self.worker is None or getattr(sys, "last_value", None) is not None:
            return
        self.worker.finish()
        self.worker.wait_for_others()


session = _Session()


def worker() -> Worker:
    """Returns the worker that runs operations.

    Raises:
        ValueError: `hvd.init()` was not called.
    """
    if session.worker is None:
        raise ValueError("Horovod has not been initialized: call hvd.init() first")
    return session.worker
