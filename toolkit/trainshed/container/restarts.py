"""Restart in place: a failed script is started again on the same host, which resumes from its newest checkpoint.

Only failures count against the budget (`trainshed_max_restarts`): an interruption ends the job, and bringing it back is
the platform's part. A job that fails three times without a newer checkpoint in between is broken, not unlucky: it stops.
For jobs on several hosts torch's elastic agent does this (`trainshed_engine=torchrun`), since all of them must agree.
"""

from __future__ import annotations

import os

from .supervisor.launch_plan import LaunchPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.contract.outcome import Failure

    from .supervisor.launch_plan import Outcome

WITHOUT_PROGRESS = 3


def newest_step(folder: str) -> int:
    """The highest step in the names of checkpoints (`step-12`, `checkpoint-12`, `model_12.pt` ...); -1 without any."""
    import re

    try:
        names = os.listdir(folder)
    except OSError:
        return -1
    numbers = [re.findall(r"\d+", name) for name in names if not name.startswith(".")]
    return max((int(found[-1]) for found in numbers if found), default=-1)


class Restarts:
    """Counts the restarts of one job and decides on the next."""

    def __init__(self, allowed: int, checkpoints: str, say: Callable[[str], None]) -> None:
        self.done = 0
        self._allowed, self._checkpoints, self._say = allowed, checkpoints, say
        self._newest = newest_step(checkpoints) if allowed else -1
        self._without_progress = 0

    def again(self, outcome: Outcome, failure: Failure) -> bool:
        """Whether to start the script once more after this failure; says why, or why not."""
        if not self._allowed or outcome.stop_signal or outcome.timed_out:
            return False
        newest = newest_step(self._checkpoints)
        self._without_progress = 0 if newest > self._newest else self._without_progress + 1
        self._newest = max(newest, self._newest)
        if self._without_progress >= WITHOUT_PROGRESS:
            self._say(f"not restarted: {self._without_progress} failures in a row without a newer checkpoint")
            return False
        if self.done >= self._allowed:
            self._say(f"not restarted: all {self._allowed} restarts are used up")
            return False
        self.done += 1
        resume = f"resuming from step {newest}" if newest >= 0 else "from the beginning"
        self._say(f"restart {self.done} of {self._allowed}, {resume}: {failure.summary}")
        return True

    def plan(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan of the next attempt: the same, its number where torch's programs look for it."""
        counts = {"TORCHELASTIC_RESTART_COUNT": str(self.done), "TORCHELASTIC_MAX_RESTARTS": str(self._allowed)}
        return plan.replace(processes=tuple(spec.replace(env={**spec.env, **counts}) for spec in plan.processes))
