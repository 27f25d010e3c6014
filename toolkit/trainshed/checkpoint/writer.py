"""Writes snapshots in a thread of its own: one at a time, its errors kept for the loop.

A thread suffices: everything long in it (the disk, checksums, waiting for the GPU) runs without the interpreter's lock.
It is no daemon, so a script that simply ends still gets its last checkpoint.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

NICE = 5  # added to the niceness of this process


class Writer:
    """At most one job at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0  # how long the last job took

    @property
    def busy(self) -> bool:
        """Whether a job is being worked on."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Begins a job; waits for the one before it."""
        self.wait()
        began = time.monotonic()

        def run() -> None:
            try:
                # Training comes first. Linux keeps a niceness for each thread; the helpers of this one inherit it.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + NICE)
            except OSError:
                pass
            try:
                job()
            except BaseException as error:
                self._error = error
            self.seconds = time.monotonic() - began

        self._thread = threading.Thread(target=run, name="trainshed-checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_error(self) -> BaseException | None:
        """The error of the last job, once."""
        error, self._error = self._error, None
        return error
