"""What schedules that were played came to: counts, and a report of each that ended wrong."""

from __future__ import annotations

import collections
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .schedule import Schedule


class Tally:
    """The cases so far.

    played: how many schedules. failed: those that ended wrong and count, with the first problem of each. passed: those that
    ended wrong among others, and as they must when they were played again alone. kinds: how often each fault was played.
    """

    def __init__(self, folder: Path, play: Callable[[Schedule, Path], dict[str, Any]]) -> None:
        """
        Args:
            folder: for a folder of each case that ends wrong.
            play: plays a schedule in a folder that does not exist yet; returns problems, said, ends and seconds.
        """
        self.folder = folder
        self.played, self.longest = 0, 0.0
        self.kinds: collections.Counter[str] = collections.Counter()
        self.failed: list[tuple[Schedule, str]] = []
        self.passed: list[Schedule] = []
        self._play = play
        self._lock = threading.Lock()

    def one(self, schedule: Schedule, folder: str) -> None:
        """Plays a schedule, and prints what is wrong with it."""
        problem = self._problem(schedule, folder, "WRONG")
        with self._lock:
            self.played += 1
            for fault in schedule.faults:
                self.kinds[f"{fault.kind} at {fault.moment}"] += 1
            if problem:
                self.failed.append((schedule, problem))

    def faults(self) -> str:
        """How often each fault was played, in Markdown: a row a fault, a column a moment."""
        pairs = [kind.rpartition(" at ")[::2] for kind in self.kinds]
        moments = sorted({moment for _, moment in pairs})
        rows = [["fault, times at", *moments], ["---"] * (1 + len(moments))]
        for fault in sorted({fault for fault, _ in pairs}):
            rows.append([fault, *(str(self.kinds[f"{fault} at {moment}"] or "") for moment in moments)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def again(self) -> None:
        """Plays each schedule that ended wrong once more, alone; only one that ends wrong again counts."""
        wrong, self.failed = self.failed, []
        for number, (schedule, _) in enumerate(wrong):
            problem = self._problem(schedule, f"{schedule.name}-again-{number}", "WRONG AGAIN, ALONE")
            if problem:
                self.failed.append((schedule, problem))
                continue
            self.passed.append(schedule)
            print(
                f"{schedule.name} ended as it must when it was played again alone: it does not count. The machine was "
                f"too busy for so many cases at once, or the fault is rare: look with --only {schedule.name} --cases 50",
                flush=True,
            )

    def summary(self, minutes: float) -> str:
        """All of it in a sentence."""
        right = f" ({len(self.passed)} more were wrong once, and right when played again alone)" if self.passed else ""
        return (
            f"{self.played} schedules in {minutes:.1f} minutes, {len(self.failed)} wrong{right}; "
            f"the longest took {self.longest:.0f} s."
        )

    def _problem(self, schedule: Schedule, folder: str, word: str) -> str:
        """Plays a schedule; the first thing that is wrong with its end, which is printed with all else, or ""."""
        place = self.folder / folder
        result = self._play(schedule, place)
        with self._lock:
            self.longest = max(self.longest, result["seconds"])
            if not result["problems"]:
                shutil.rmtree(place, ignore_errors=True)
                return ""
            lines = [f"{word} {schedule.name}: {schedule}", *(f"  {problem}" for problem in result["problems"])]
            lines += [f"  {line}" for line in (*result["said"], *result["ends"])]
            lines += [f"  folder: {place}", f"  again: python tests/faults/play --only {schedule.name}"]
            print("\n".join(lines), flush=True)
            return str(result["problems"][0])
