"""The loop of a batch: tasks in threads, pauses when the disk is full, stops on a signal.

The process that runs it may be killed at any moment. So a policy writes down what it is about to do before it does it, and
asks locks and files what has been done (`held_runs`).
"""

from __future__ import annotations

import select
import signal
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from trainshed.base.disk_reserve import Room
from trainshed.base.errors import EXIT_SIGNAL_BASE, TrainshedError
from trainshed.machine.signals import STOP_SIGNALS, SignalPipe

from .folder import Folder, Say

PAUSE = 0.1  # seconds between two looks
Key = TypeVar("Key", bound=Hashable)


class Loop(Generic[Key]):
    """One session of a batch; a subclass is its policy. The folder must have been claimed. Key: what names a run.

    Args:
        say: told what happens, one line each. parallel: how many runs there are beside each other.
    """

    def __init__(self, folder: Folder, say: Say, parallel: int) -> None:
        self.say = say
        self.pool = ThreadPoolExecutor(4 + 2 * parallel, thread_name_prefix="task")
        self.tasks: dict[Key, tuple[Future[object], Callable[[object], None]]] = {}
        self.room = Room(folder.path)
        self.shortage = folder.shortage()
        self.stop_signal = 0
        self.hurried = False

    # --- the policy ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Takes up what earlier sessions have left."""

    def turn(self) -> bool:
        """Does what is next; whether all is done. Raises TrainshedError where the batch cannot go on."""
        raise NotImplementedError

    def running(self) -> Sequence[Key]:
        """The runs that are not over."""
        raise NotImplementedError

    def lives(self, key: Key) -> bool:
        """Whether a run still goes on, or is just starting."""
        raise NotImplementedError

    def pause(self, key: Key) -> None:
        """Writes down that a run goes on in the next session. Raises TrainshedError."""
        raise NotImplementedError

    def halt(self, key: Key, *, kill: bool) -> None:
        """Asks a run to end and waits until it has; in a thread. Raises TrainshedError."""
        raise NotImplementedError

    def task_failed(self, key: Key, error: TrainshedError) -> None:
        """Takes the error of a task; raises it where the batch cannot go on."""
        raise error

    def stopping(self) -> str:
        """What is said when the first signal comes."""
        raise NotImplementedError

    def finish(self) -> int:
        """Says how it ended; returns the exit status."""
        raise NotImplementedError

    # --- the engine ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Runs the batch to its end; returns the exit status. Raises TrainshedError: what runs then goes on."""
        signals = SignalPipe()
        try:
            self.recover()
            while not self._step():
                self._wait(signals)
            return self.finish()
        except TrainshedError:
            self._pause_if_full()
            raise
        finally:
            self.pool.shutdown(wait=True)
            self.room.free()
            signals.close()

    def task(self, key: Key, work: Callable[[], object], then: Callable[[object], None] = lambda _: None) -> None:
        """Does what takes a while in a thread; `then` gets the result in this one."""
        self.tasks[key] = self.pool.submit(work), then

    def end_run(self, key: Key) -> None:
        """Has a thread end a run: with its grace, or at once after a second signal."""
        kill = self.hurried
        self.task(key, lambda: self.halt(key, kill=kill))

    @property
    def stopped(self) -> str:
        """`stopped by SIGTERM`."""
        return f"stopped by {signal.Signals(self.stop_signal).name}"

    @property
    def stop_status(self) -> int:
        """The exit status after a signal."""
        return EXIT_SIGNAL_BASE + self.stop_signal

    def _step(self) -> bool:
        """One turn; whether there is nothing more to wait for."""
        self.shortage.look(self.running())
        self._collect()
        done = self.turn()
        if self.tasks:
            return False
        return not any(self.lives(key) for key in self.running()) if self.stop_signal else done

    def _collect(self) -> None:
        for key, (future, then) in list(self.tasks.items()):
            if not future.done():
                continue
            del self.tasks[key]
            try:
                then(future.result())
            except TrainshedError as error:
                self.task_failed(key, error)

    def _pause_if_full(self) -> None:
        """Where the disk is full, what runs goes on in the next session, unless it succeeds nevertheless."""
        if self.shortage.has_met(self.running()):
            self.room.free()  # kept for this
            for key in self.running():
                self.pause(key)

    def _wait(self, signals: SignalPipe) -> None:
        """Sleeps until something happens, and takes signals."""
        select.select([signals.fd], [], [], PAUSE)
        for number in signals.take():
            if number not in STOP_SIGNALS:
                continue
            if self.stop_signal and not self.hurried:
                self.hurried = True
                self.say("killing what runs")
                for key in self.running():
                    self.tasks.pop(key, None)  # asked once more, and harder
            elif not self.stop_signal:
                self.stop_signal = number
                self.say(self.stopping())
