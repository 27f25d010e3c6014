"""The Python stacks of other processes: asked for by a signal, written by Python's fault handler, read through /proc."""

from __future__ import annotations

import os
import re
import time

from trainshed.base.record import Record
from trainshed.machine.processes import blocks, catches

SIGNAL = 42  # as in hook/sitecustomize.py
NAME = "trainshed-stacks"
WAIT = 10.0  # seconds that a process gets; one that is stopped or waits for a disk does not answer
SETTLED = 0.1  # seconds without another byte after which an answer is complete
QUIET = 0.2  # seconds that all processes together get to come to rest before they are asked
LOOKS = 5  # looks, 2 ms apart, that must find all threads of a process asleep
LONGEST = 1 << 18  # bytes of one dump; the fault handler itself stops at 100 threads of 100 frames
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


class Frame(Record):
    """One call on a stack."""

    file: str
    line: int
    function: str


class StackRequest:
    """A process that has been asked, and its answer so far."""

    def __init__(self, pid: int, path: str, offset: int, blocked: bool) -> None:
        """
        Args:
            path: the file that it writes its stacks to.
            offset: where in that file the answer begins.
            blocked: whether its main thread had the signal blocked before it was asked.
        """
        self.pid = pid
        self.path = path
        self.offset = offset
        self.blocked = blocked
        self.size = offset
        self.since = time.monotonic()  # when the file last grew

    def whole(self) -> bool:
        """Returns whether the answer is complete, or none will come."""
        now = time.monotonic()
        try:
            size = os.stat(self.path).st_size
        except OSError:  # it has ended
            return True
        if size != self.size:
            self.size = size
            self.since = now
        # On a busy machine the handler may be kept from the CPU for longer than that; while it runs, the signal is blocked.
        return size > self.offset and now - self.since >= SETTLED and (self.blocked or not blocks(self.pid, SIGNAL))

    def text(self) -> str:
        """The answer; "" if none has come."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                return file.read(LONGEST).decode("utf-8", "replace")
        except OSError:
            return ""


def ask(pids: list[int]) -> list[StackRequest]:
    """Asks processes for their stacks, but for those that cannot answer: the signal would kill them.

    Args:
        pids: parents before their children. A child that was forked shares its parent's file, so it is not asked.
    """
    asked: list[StackRequest] = []
    files: set[tuple[int, int]] = set()
    end = time.monotonic() + QUIET
    for pid in pids:
        path = _answers_to(pid)
        if not path:
            continue
        try:
            stat = os.stat(path)
            if (stat.st_dev, stat.st_ino) in files:
                continue
            files.add((stat.st_dev, stat.st_ino))
            if catches(pid, SIGNAL):
                _await_rest(pid, end)
                blocked = blocks(pid, SIGNAL)
                os.kill(pid, SIGNAL)
                asked.append(StackRequest(pid, path, stat.st_size, blocked))
        except OSError:
            continue
    return asked


def _await_rest(pid: int, end: float) -> None:
    """Waits until no thread of the process runs, at most until `end` (monotonic clock).

    The fault handler reads the stacks of threads that run meanwhile, and may crash on one that is just changing.
    """
    quiet = 0
    while quiet < LOOKS and time.monotonic() < end:
        quiet = quiet + 1 if _rests(pid) else 0
        time.sleep(0.002)


def _rests(pid: int) -> bool:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(") ")[2][:1] == "R":
                    return False
    except OSError:  # it has ended, or one of its threads
        return False
    return True


def _answers_to(pid: int) -> str:
    """The file that a process writes its stacks to; "" if it has none. Looked up each time: it may close all its files."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                if NAME in os.readlink(f"{folder}/{name}"):
                    return f"{folder}/{name}"
            except OSError:
                continue
    except OSError:
        pass
    return ""


def main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the thread that took the signal, innermost first: the main thread's, unless it blocks the signal."""
    threads = _threads(text)
    current = next((frames for is_current, frames in threads if is_current), None)
    return current if current is not None else threads[-1][1] if threads else ()


def same_place(text: str) -> str:
    """A dump without what differs between two dumps of a process that stands still: the threads' addresses."""
    return "\n".join("Thread" if _THREAD.match(line) else line for line in text.splitlines())


def _threads(text: str) -> list[tuple[bool, tuple[Frame, ...]]]:
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread:
            threads.append((thread[1] == "Current thread", []))
        elif frame and threads:
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            threads[-1][1].append(Frame(frame["file"], number, frame["function"]))
    return [(current, tuple(frames)) for current, frames in threads]
