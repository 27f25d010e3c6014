"""Runs jobs (writing a snapshot, uploading a copy) in one background thread, one at a time.

A thread suffices: everything long in it (the disk, checksums, waiting for the GPU) runs without the interpreter's lock.
It is not a daemon, so a script that simply ends still gets its last checkpoint.

Who owns what: the loop's thread owns the Writer and calls all of its methods. The job runs in the background thread and
must not use collectives. `_error` and `seconds` are written by that thread before it ends, and read by the loop's thread
after `wait`, or once `busy` is false.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

NICE = 5  # added to the niceness of this process


class Writer:
    """Runs at most one job at a time; see the module for which thread may do what."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0  # how long the last job took

    @property
    def busy(self) -> bool:
        """Tells whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Starts a job; waits for the previous one first."""
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
        """Waits for the job that is running, if any."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_error(self) -> BaseException | None:
        """Returns the error of the last job and forgets it; None if there was none."""
        error, self._error = self._error, None
        return error
