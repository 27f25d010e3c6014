"""Restart in place: `train` starts a failed script again in the same container, and it resumes from its newest checkpoint.

Only failures count against the budget (`trainshed_max_restarts`). An interruption ends the job; the platform brings it
back. This module is for jobs on one host; on several they agree (`shared_restarts`), or torch's elastic agent does it
(`trainshed_engine=torchrun`). docs/restarts.md says who restarts what.
"""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.contract.outcome import Failure

    from .notices import Interruption
    from .supervisor.launch_plan import LaunchPlan, Outcome, ProcessSpec
    from .supervisor.progress import Progress


class Ended(Record):
    """How an attempt ended on this host; what `attempts.TrainingResult` says, which always has an outcome here."""

    outcome: Outcome
    failure: Failure | None = None
    interruption: Interruption | None = None

    @property
    def may_go_on(self) -> bool:
        """Tells whether the ranks ended by themselves or for a failure: time or machine were not taken from them."""
        return not (self.outcome.stop_signal or self.outcome.timed_out or self.interruption)


class Again(Record):
    """Another attempt.

    failure: after which.
    done: how many restarts that makes.
    port: the job's port from now on, 0 if it stays.
    """

    failure: Failure
    done: int
    port: int = 0


class Budget:
    """Counts the restarts of one job. allowed: the most there may be."""

    def __init__(self, allowed: int, newest: int) -> None:
        from .supervisor.progress import Progress

        self.allowed = allowed
        self.done = 0
        self._progress: Progress = Progress(newest)

    def refusal(self, newest: int, progressed: bool) -> str:
        """Counts one more failure; why the ranks must not be started again, "" if they may.

        Args:
            newest: the highest step of a checkpoint, -1 for none.
            progressed: whether it has come since the ranks were last started.
        """
        refusal = self.would_refuse(newest, progressed)
        self._progress = self._progress.after(newest, progressed)
        if not refusal:
            self.done += 1
        return refusal

    def would_refuse(self, newest: int, progressed: bool) -> str:
        """The same without counting it."""
        if refusal := self._progress.after(newest, progressed).refusal:
            return refusal
        return f"not restarted: all {self.allowed} restarts are used up" if self.done >= self.allowed else ""

    def granted(self, newest: int, failure: Failure) -> str:
        """The line for the user of a restart that has just been counted."""
        from .supervisor.progress import resumption

        return f"restart {self.done} of {self.allowed}, {resumption(newest)}: {failure.summary}"


class Restarts:
    """Decides on the restarts of a job on one host.

    Args:
        allowed: the most restarts, 0 for none.
        checkpoints: the folders of the job's checkpoints and of their copies in memory.
        say: takes a line for the user.
        free: the ports that the job may use next and that are free, the present one first.
    """

    def __init__(
        self, allowed: int, checkpoints: tuple[str, ...], say: Callable[[str], None], free: Callable[[], tuple[int, ...]]
    ) -> None:
        self._checkpoints = checkpoints
        self._say = say
        self._free = free
        self._newest = -1
        self._budget: Budget | None = None
        if allowed:  # most jobs are never restarted in place
            from .supervisor.progress import newest_step

            self._newest = newest_step(*checkpoints)
            self._budget = Budget(allowed, self._newest)

    def after(self, ended: Ended) -> Again | None:
        """The next attempt after this one, None where it was the last; says why, or why not."""
        if self._budget is None or ended.failure is None or not ended.may_go_on:
            return None
        if refusal := self._counted():
            self._say(refusal)
            return None
        self._say(self._budget.granted(self._newest, ended.failure))
        free = self._free()
        return Again(ended.failure, self._budget.done, free[0] if free else 0)

    def in_place(self, failure: Failure, port: int) -> Again | None:
        """The next life of the ranks that go on while a lost one is replaced, None where there may be none.

        Nothing is counted before `replaced`.

        Args:
            port: the job's, which the ranks that live may still hold.
        """
        from .supervisor.progress import newest_step

        newest = newest_step(*self._checkpoints)
        free = [one for one in self._free() if one != port]
        if self._budget is None or not free or self._budget.would_refuse(newest, newest > self._newest):
            return None
        return Again(failure, self._budget.done + 1, free[0])

    def replaced(self, again: Again, name: str) -> None:
        """Counts a restart in place, and says it."""
        self._counted()
        assert self._budget is not None
        self._say(f"{self._budget.granted(self._newest, again.failure)}; {name} replaced in place")

    def _counted(self) -> str:
        """Counts a failure; why the ranks must not be started again, "" if they may."""
        from .supervisor.progress import newest_step

        assert self._budget is not None
        before, self._newest = self._newest, newest_step(*self._checkpoints)
        return self._budget.refusal(self._newest, self._newest > before)


def counted(plan: LaunchPlan, done: int, allowed: int) -> LaunchPlan:
    """A plan whose ranks find the number of their attempt where torch's programs look for it."""
    counts = {"TORCHELASTIC_RESTART_COUNT": str(done), "TORCHELASTIC_MAX_RESTARTS": str(allowed)}

    def of(spec: ProcessSpec) -> ProcessSpec:
        return spec.replace(env={**spec.env, **counts})

    if plan.mpi is not None:  # its ranks have the environment of Open MPI's own processes
        plan = plan.replace(mpi=plan.mpi.replace(rank=of(plan.mpi.rank), daemon=of(plan.mpi.daemon)))
    return plan.replace(
        processes=tuple(map(of, plan.processes)),
        later=tuple(map(of, plan.later)),
        rank=of(plan.rank) if plan.rank is not None else None,
    )
