"""Restart in place: `train` starts a failed script again on the same host, and it resumes from its newest checkpoint.

Only failures count against the budget (`trainshed_max_restarts`). An interruption ends the job; the
platform brings it back. Ranks on several hosts must agree on a restart, which is the part of torch's
elastic agent (`trainshed_engine=torchrun`). docs/restarts.md says who restarts what.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.contract.outcome import Failure

    from .progress import Progress
    from .supervisor.launch_plan import LaunchPlan, Outcome, ProcessSpec


class Restarts:
    """Counts the restarts of one job and decides on the next.

    Args:
        allowed: the most restarts, 0 for none.
        checkpoints: the folder of the job's checkpoints.
        say: takes a line for the user.
    """

    def __init__(self, allowed: int, checkpoints: str, say: Callable[[str], None]) -> None:
        self.done = 0
        self._allowed = allowed
        self._checkpoints = checkpoints
        self._say = say
        self._progress: Progress | None = None
        if allowed:
            from .progress import Progress, newest_step  # most jobs are never restarted in place

            self._progress = Progress(newest_step(checkpoints))

    def again(self, outcome: Outcome, failure: Failure) -> bool:
        """Whether to start the script once more after this failure; says why, or why not."""
        if self._progress is None or outcome.stop_signal or outcome.timed_out:
            return False
        from .progress import newest_step, resumption

        newest = newest_step(self._checkpoints)
        self._progress = self._progress.after_failure(newest)
        if self._progress.refusal:
            self._say(self._progress.refusal)
            return False
        if self.done >= self._allowed:
            self._say(f"not restarted: all {self._allowed} restarts are used up")
            return False
        self.done += 1
        self._say(f"restart {self.done} of {self._allowed}, {resumption(newest)}: {failure.summary}")
        return True

    def plan(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan of the next attempt: the same, its number where torch's programs look for it."""
        counts = {
            "TORCHELASTIC_RESTART_COUNT": str(self.done),
            "TORCHELASTIC_MAX_RESTARTS": str(self._allowed),
        }

        def counted(specs: tuple[ProcessSpec, ...]) -> tuple[ProcessSpec, ...]:
            return tuple(spec.replace(env={**spec.env, **counts}) for spec in specs)

        return plan.replace(processes=counted(plan.processes), later=counted(plan.later))
