"""The loop of a batch: threads, signals, a full disk."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from trainshed.base import disk_full
from trainshed.base.errors import TrainshedError
from trainshed.studio.batches.loop import Loop
from trainshed.studio.steps.steps_folder import StepsFolder

MAIN = threading.main_thread()


class Policy(Loop[str]):
    """Runs `names`, each of which is over when its task is. signals: come one a turn. error: of a turn."""

    def __init__(self, folder: Path, *names: str, signals: tuple[signal.Signals, ...] = (), error: str = "") -> None:
        self.said: list[str] = []
        super().__init__(StepsFolder(str(folder)), self.said.append, parallel=2)
        self.left, self.signals, self.error = dict.fromkeys(names, True), list(signals), error
        self.paused: list[str] = []
        self.halted: list[tuple[str, bool]] = []
        self.threads: list[bool] = []
        self.released = threading.Event()

    def work(self, name: str) -> str:
        self.threads.append(threading.current_thread() is MAIN)
        if name.startswith("bad"):
            raise TrainshedError(f"{name} cannot be started")
        return name

    def over(self, name: object) -> None:
        self.threads.append(threading.current_thread() is MAIN)
        del self.left[str(name)]

    def turn(self) -> bool:
        if self.error and not self.tasks:
            raise TrainshedError(self.error)
        if self.signals:
            os.kill(os.getpid(), self.signals.pop(0))
        for name in self.left:
            if name in self.tasks or not self.lives(name):
                continue
            if self.stop_signal:
                self.end_run(name)
            elif not self.signals:
                self.task(name, lambda name=name: self.work(name), self.over)  # type: ignore[misc]
        return not self.left

    def running(self) -> list[str]:
        return list(self.left)

    def lives(self, key: str) -> bool:
        return key not in {name for name, _ in self.halted}

    def pause(self, key: str) -> None:
        self.paused.append(key)

    def halt(self, key: str, *, kill: bool) -> None:
        if not kill and key == "deaf":
            self.released.wait(60)
            return
        self.halted.append((key, kill))
        self.released.set()

    def stopping(self) -> str:
        return "stopping"

    def finish(self) -> int:
        return self.stop_status if self.stop_signal else 0


def test_work_is_done_in_threads_and_what_it_gives_is_taken_in_the_main_one(tmp_path: Path) -> None:
    loop = Policy(tmp_path, "a", "b", "c")

    assert loop.run() == 0 and not loop.left and not loop.tasks
    assert sorted(loop.threads) == [False] * 3 + [True] * 3


def test_what_a_task_cannot_do_ends_the_batch_and_leaves_the_rest_running(tmp_path: Path) -> None:
    loop = Policy(tmp_path, "bad")
    with pytest.raises(TrainshedError, match="bad cannot be started"):
        loop.run()

    assert loop.left and not loop.paused, "the disk is not full: the run is found again by its lock"


@pytest.mark.safety
def test_a_signal_ends_what_runs_and_the_status_says_which(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    loop = Policy(tmp_path, "a", "b", signals=(signal.SIGTERM, signal.SIGUSR1))

    assert loop.run() == 128 + signal.SIGTERM and loop.stopped == "stopped by SIGTERM"
    assert sorted(loop.halted) == [("a", False), ("b", False)] and loop.said == ["stopping"]
    assert signal.getsignal(signal.SIGTERM) == before, "the handlers of before are back"


@pytest.mark.safety
def test_a_second_signal_kills_what_does_not_listen(tmp_path: Path) -> None:
    loop = Policy(tmp_path, "deaf", signals=(signal.SIGINT, signal.SIGINT))

    assert loop.run() == 128 + signal.SIGINT and ("deaf", True) in loop.halted
    assert loop.said == ["stopping", "killing what runs"]


@pytest.mark.safety
def test_what_runs_goes_on_later_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_full, "LEAST_ROOM", 1 << 60)
    loop = Policy(tmp_path, "a", "b", error="cannot write")
    assert loop.room.fd >= 0
    with pytest.raises(TrainshedError, match="cannot write"):
        loop.run()

    assert loop.paused == ["a", "b"] and loop.room.fd == -1, "the room that was kept is free for it"
