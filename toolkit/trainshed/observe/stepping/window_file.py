"""A rank's file of windows: as long as it likes to run, a few hundred kilobytes."""

from __future__ import annotations

import json
import os
import time

from ..steps import FOLDER, PHASES, Window, line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .segments import Step

FIRST_WIDTH = 1.0  # seconds of the first windows
_OF_PROCESS = ("Device", "Threads", "Pipeline")
LINES_EACH = 600  # after so many windows they become twice as long


class WindowFile:
    """Collects steps into windows, and writes them. A full disk costs windows and is said once.

    Args:
        folder: the profiler's.
        facts: of this rank; `Rank` and `Host` are in its name.
        say: prints a message for the user.
        peaks: by phase, the memory that was allocated at most; asked for once a window.
    """

    def __init__(
        self,
        folder: str,
        facts: dict[str, Any],
        say: Callable[[str], None],
        peaks: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._folder, self._say, self._peaks = folder, say, peaks
        self._facts = dict(facts)
        self._new = dict(facts)
        self._fd, self._pid = -1, os.getpid()
        self._troubled = False
        self._width, self._lines = FIRST_WIDTH, 0
        self._step = 0
        self._cpu = time.process_time()
        self._steps, self._seconds, self._longest = 0, 0.0, 0.0
        self._sums: dict[str, float] = {}
        self._samples: int | None = 0
        self.at: int | None = None  # the latest step by the script's own count

    @property
    def steps(self) -> int:
        """How many steps there have been."""
        return self._step

    def tell(self, **facts: Any) -> None:
        """Adds to the facts; they are written with the next window."""
        for name, value in facts.items():
            if self._facts.get(name) != value:
                self._facts[name] = self._new[name] = value

    def close(self) -> dict[str, Any]:
        """Ends the file; those facts that hold for the process's next one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        return {name: self._facts[name] for name in _OF_PROCESS if name in self._facts}

    def add(self, step: Step) -> None:
        """One more step."""
        self._step += 1
        self._steps += 1
        self._seconds += step.seconds
        self._longest = max(self._longest, step.seconds)
        for name, seconds in step.phases.items():
            self._sums[name] = self._sums.get(name, 0.0) + seconds
        self._samples = None if step.samples is None or self._samples is None else self._samples + step.samples
        if self._seconds >= self._width:
            self.flush()

    def flush(self) -> None:
        """Writes what has been collected."""
        if not self._steps or os.getpid() != self._pid:
            return
        phases = {name: self._sums.get(name, 0.0) for name in PHASES[:-1]}
        phases["rest"] = max(0.0, self._seconds - sum(phases.values()))
        window = Window(
            time=time.time(),
            step=self._step,
            steps=self._steps,
            seconds=self._seconds,
            longest=self._longest,
            phases=phases,
            samples=self._samples,
            peaks=self._peaks(),
            cpu=time.process_time() - self._cpu,
            at=self.at,
        )
        self._cpu = time.process_time()
        head = json.dumps({"Facts": self._new}) + "\n" if self._new else ""
        self._reset()
        if self._write(head + line_of(window)):
            self._new = {}
            self._lines += 1
            if self._lines == LINES_EACH:
                self._width, self._lines = 2 * self._width, 0

    def _reset(self) -> None:
        self._steps, self._seconds, self._longest = 0, 0.0, 0.0
        self._sums, self._samples = {}, 0

    def _write(self, text: str) -> bool:
        try:
            if self._fd < 0:
                folder = f"{self._folder}/{FOLDER}"
                os.makedirs(folder, exist_ok=True)
                name = f"{self._facts['Host']}.rank-{self._facts['Rank']}.{time.time_ns() // 1_000_000}-{self._pid}"
                path = f"{folder}/{name.replace('/', '_')}.json"
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size, data = os.fstat(self._fd).st_size, text.encode()
            if os.write(self._fd, data) == len(data):
                return True
            os.ftruncate(self._fd, size)  # half a line would spoil the next one
            raise OSError(28, "No space left on device")
        except OSError as error:
            if not self._troubled:
                self._troubled = True
                self._say(f"the steps cannot be written to {self._folder}: {error.strerror}")
            return False
