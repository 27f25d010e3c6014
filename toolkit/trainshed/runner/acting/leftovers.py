"""Finds processes of a run by the variable that all of them inherit, wherever they have hidden in the process tree.

After its runner was killed they may go on, as containers may: `Leftovers` is what both have to offer then.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import time
from typing import Protocol

from trainshed.contract.wire.variables import CLIENT_OF, RUN_ID

from ..files.ending import HostEnd
from ..files.grace import KILL_SECONDS
from ..files.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from psutil import Process

PAUSE = 0.1  # seconds between two looks


class Leftovers(Protocol):
    """What a killed runner has left of its run's hosts. Each method raises TrainshedError where they cannot be asked."""

    def running(self) -> list[str]:
        """Names what goes on."""

    def end(self, grace: float, hosts: int) -> list[HostEnd]:
        """Ends it (SIGTERM, then SIGKILL after the grace). How all hosts ended; nothing where that is not known."""

    def fetch(self, run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Brings home what hosts hold that have ended: (messages of what did not come, notes)."""

    def remove(self) -> list[str]:
        """Kills and removes it; what could not be removed."""


def processes_of(run_id: str, variable: str = RUN_ID) -> list[int]:
    """PIDs of this user's processes that were started with the run's id in their environment."""
    return [process.pid for process in _processes_of(run_id, variable)]


def _processes_of(run_id: str, variable: str) -> list[Process]:
    import psutil

    if not run_id:
        return []
    others = (process for process in psutil.process_iter(["environ"]) if process.pid != os.getpid())
    # A process that has ended or is somebody else's has None for its environment.
    return [process for process in others if (process.info["environ"] or {}).get(variable) == run_id]


def await_clients(run_id: str, seconds: float = 60.0) -> None:
    """Waits for a dead runner's commands that still talk to a container engine: what they make must not come later."""
    end = time.monotonic() + seconds
    while run_id and processes_of(run_id, CLIENT_OF) and time.monotonic() < end:
        time.sleep(0.05)


def end_leftovers(run_id: str, seconds: float = 5.0) -> int:
    """Kills them until none is left (a fork may be under way) or the time is over; how many there were."""
    import psutil

    killed: set[int] = set()
    end = time.monotonic() + seconds
    while (left := _processes_of(run_id, RUN_ID)) and time.monotonic() < end:
        for process in left:
            try:
                process.kill()  # not if its PID has gone to another process since
            except psutil.Error:
                continue
            killed.add(process.pid)
        time.sleep(0.02)
    return len(killed)


def remove_scratch(pid: int) -> None:
    """Removes the temporary folders of a `train` that was killed before it could; its PID is part of their names."""
    for place in {tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"}:
        for folder in glob.glob(f"{glob.escape(place)}/trainshed-{pid}-*"):
            if not os.path.islink(folder):
                shutil.rmtree(folder, ignore_errors=True)


class LeftoverProcesses:
    """Hosts that are processes. The kernel has asked them to end when the runner died."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    def running(self) -> list[str]:
        """Names the processes by their PIDs."""
        return [f"process {pid}" for pid in processes_of(self.run_id)]

    def end(self, grace: float, hosts: int) -> list[HostEnd]:
        """They get what is left of their grace; nobody can tell how they ended."""
        deadline = time.monotonic() + (grace + KILL_SECONDS if grace else 0)
        while processes_of(self.run_id) and time.monotonic() < deadline:
            time.sleep(PAUSE)
        end_leftovers(self.run_id)
        return []

    def fetch(self, run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """All that they write is here."""
        return (), ()

    def remove(self) -> list[str]:
        """Kills them."""
        end_leftovers(self.run_id)
        return []
