"""Measures what a job uses at present, for the line of status: CPU, memory, GPU, and how old its last checkpoint is."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable

from trainshed.base.units import duration, size

from ..files.run import Run

EVERY_SECONDS = 2.0  # between two looks
GPU_SECONDS = 5.0


class Gauge:
    """Looks at most every two seconds; between that, what was seen last.

    Args:
        roots: PIDs below which the hosts' processes are, as far as this machine sees them.
    """

    def __init__(self, run: Run, roots: Callable[[], list[int]]) -> None:
        self.run, self.roots = run, roots
        self.looked = 0.0
        self.parts: list[str] = []
        self.cpu: tuple[float, dict[int, float]] = (0.0, {})
        self.gpu = _Gpus() if shutil.which("nvidia-smi") else None

    def __call__(self) -> list[str]:
        """`cpu 188 %`, `mem 1.2 GB`, `gpu 93 % 11 GB`, `checkpoint step-80 12 s ago`: those that are known."""
        now = time.monotonic()
        if now - self.looked >= EVERY_SECONDS:
            self.looked = now
            self.parts = [*self._processes(now), *(self.gpu.parts() if self.gpu else []), *self._checkpoint()]
        return self.parts

    def _processes(self, now: float) -> list[str]:
        used = _used_below(self.roots())
        times = {pid: seconds for pid, (seconds, _) in used.items()}
        memory = sum(resident for _, resident in used.values())
        before, earlier = self.cpu
        self.cpu = (now, times)
        parts = []
        if earlier and now > before:
            # Of processes that ended meanwhile nothing is known; those that are new count from their start.
            spent = sum(seconds - earlier.get(pid, 0.0) for pid, seconds in times.items())
            parts.append(f"cpu {100 * spent / (now - before):.0f} %")
        return [*parts, f"mem {size(memory)}"] if memory else parts

    def _checkpoint(self) -> list[str]:
        try:
            with os.scandir(self.run.checkpoints) as entries:
                newest = max(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime, default=None)
                if newest is None:
                    return []
                age = max(0.0, time.time() - newest.stat(follow_symlinks=False).st_mtime)
        except OSError:
            return []
        return [f"checkpoint {newest.name[:30]} {duration(age)} ago"]


def _used_below(roots: list[int]) -> dict[int, tuple[float, int]]:
    """PID -> (CPU seconds, resident bytes) of these processes and their descendants, without those that have ended."""
    import psutil

    used = {}
    for root in roots:
        try:
            top = psutil.Process(root)
            family = [top, *top.children(recursive=True)]
        except psutil.Error:
            continue
        for process in family:
            try:
                times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:
                continue
            used[process.pid] = (times.user + times.system, memory.rss)
    return used


class _Gpus:
    """nvidia-smi, asked in the background: it may take half a second, and hangs where a GPU is lost."""

    QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")

    def __init__(self) -> None:
        self.text = ""
        self.thread: threading.Thread | None = None
        self.asked = 0.0

    def parts(self) -> list[str]:
        now = time.monotonic()
        if (self.thread is None or not self.thread.is_alive()) and now - self.asked >= GPU_SECONDS:
            self.asked = now
            self.thread = threading.Thread(target=self._ask, daemon=True, name="nvidia-smi")
            self.thread.start()
        rows = []
        for line in self.text.splitlines():
            load, _, used = line.partition(",")
            try:
                rows.append((float(load), float(used)))
            except ValueError:  # "[N/A]"
                continue
        if not rows:
            return []
        return [f"gpu {sum(load for load, _ in rows) / len(rows):.0f} % {size(sum(used for _, used in rows) * (1 << 20))}"]

    def _ask(self) -> None:
        try:
            done = subprocess.run(self.QUERY, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return
        self.text = done.stdout if done.returncode == 0 else ""
