"""Starts one lost rank again while the others live on, where all are inside of `trainshed.resumable`.

A watcher of the supervisor's loop, for jobs whose ranks all run on this host. When a rank fails

1. each other one is told (`contract/wire/in_place`), with the port at which the ranks meet from now on;
2. the lost one is started as a rank of the job's next life;
3. when the others are in that life, too, it counts as a restart.

Where that does not come to its end, the run has failed with the lost rank, as it would have without all of this.
"""

from __future__ import annotations

import os
import time

from trainshed.contract.wire.in_place import FAILED, LIFE, Word, fifo_of, line_of, open_fifo
from trainshed.contract.wire.variables import IN_PLACE

from .supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .restarts import Again
    from .supervisor.launch_plan import LaunchPlan, ProcessSpec
    from .supervisor.watcher import Process, Start, Supervised

    Decide = Callable[[Process], tuple[Again, LaunchPlan] | None]

BACK_SECONDS = 60.0  # until the others have come back from their functions; then all ranks start again
_LOOK = 0.02  # seconds between two looks for them


class _Replacement:
    """One that has begun. until: when the others have to be back; counted: whether they are."""

    def __init__(self, lost: Process, instead: Process, others: list[Process], again: Again, until: float) -> None:
        self.lost, self.instead, self.others, self.again = lost, instead, others, again
        self.until = until
        self.counted = False


class Replacements(Watcher):
    """Those of one attempt.

    Args:
        plan: the attempt's.
        decide: the next life and its plan, None where the job's restarts allow none.
        counted: is told of each that has come about, with the rank's name.
        start: starts a rank.
    """

    def __init__(self, plan: LaunchPlan, decide: Decide, counted: Callable[[Again, str], None], start: Start) -> None:
        self._specs = {spec.rank: spec for spec in plan.processes}
        self._folder = plan.processes[0].env[IN_PLACE]
        self._decide, self._counted, self._start = decide, counted, start
        self._replacement: _Replacement | None = None
        self._forget()

    def pause(self) -> float:
        return _LOOK if self._replacement is not None else FOREVER

    def replaces(self, run: Supervised, lost: Process) -> bool:
        if self._replacement is not None:
            self._give_up(run, f"rank {lost.spec.rank} was lost meanwhile")
            return False
        others = [rank for rank in run.ranks if rank is not lost]
        fifo = self._fifo(lost.spec.rank)
        if not (os.path.exists(fifo) or os.path.exists(f"{fifo}{FAILED}")) or len(others) + 1 != len(self._specs):
            return False  # it was not inside of its function
        if away := [rank for rank in others if not (rank.alive and self._is_in(rank.spec.rank))]:
            run.say(
                f"rank {lost.spec.rank} is not replaced in place: rank {away[0].spec.rank} is not inside of its function"
            )
            return False
        decided = self._decide(lost)
        if decided is None:
            return False
        again, plan = decided
        specs, before = {spec.rank: spec for spec in plan.processes}, self._specs
        try:
            for rank in others:
                self._tell(rank.spec.rank, before[rank.spec.rank], specs[rank.spec.rank])
        except (OSError, ValueError) as error:
            run.say(f"rank {lost.spec.rank} is not replaced in place: {error}")
            return False
        self._specs = specs
        instead = run.replace(lost, specs[lost.spec.rank], self._start)
        if instead is not None:
            self._replacement = _Replacement(lost, instead, others, again, time.monotonic() + BACK_SECONDS)
        return True

    def turn(self, run: Supervised) -> None:
        one = self._replacement
        if one is None:
            return
        late = [rank for rank in one.others if not self._is_in(rank.spec.rank)]
        if run.stopping:
            self._replacement = None
        elif late and not one.counted:
            if time.monotonic() > one.until:
                self._give_up(run, f"rank {late[0].spec.rank} has not left its function within {BACK_SECONDS:g} s")
        else:
            if not one.counted:
                one.counted = True
                self._counted(one.again, f"rank {one.lost.spec.rank}")
            if self._is_in(one.instead.spec.rank):
                self._replacement = None

    def _give_up(self, run: Supervised, why: str) -> None:
        one, self._replacement = self._replacement, None
        assert one is not None
        run.say(f"rank {one.lost.spec.rank} is not replaced in place: {why}; all ranks start again")
        run.give_up(one.lost, one.instead, why)

    def _tell(self, rank: int | None, before: ProcessSpec, after: ProcessSpec) -> None:
        """Raises OSError, ValueError."""
        line = line_of(Word({name: value for name, value in after.env.items() if before.env.get(name) != value}))
        fd = open_fifo(fifo_of(self._folder, rank, before.env[LIFE]))
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def _fifo(self, rank: int | None) -> str:
        return fifo_of(self._folder, rank, self._specs[rank].env[LIFE])

    def _is_in(self, rank: int | None) -> bool:
        """Whether a rank is inside of its function, in the present life."""
        try:
            os.close(open_fifo(self._fifo(rank)))
        except OSError:
            return False
        return True

    def _forget(self) -> None:
        """Removes what an earlier attempt has left: its lives may have had the same numbers."""
        try:
            for name in os.listdir(self._folder):
                os.unlink(f"{self._folder}/{name}")
        except OSError:  # none has made the folder
            pass
