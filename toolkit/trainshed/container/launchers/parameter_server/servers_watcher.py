"""Ends the workers, parameter servers and evaluators of a job when its chief is done.

    chief ended well  -> host 0 ends its own, and writes to the other hosts that they may
    a stop, a failure -> they serve on while the chief saves what they hold; host 0 leaves when it has ended
    host 0 is lost    -> nobody needs them

One that fails before that is a failure of the job, unless the chief ends well within the second in which failures settle:
then it has only lost the chief. One that ends with 0 is none: a script may have agreed on its end with the chief's, and the
chief may have a model to write.
"""

from __future__ import annotations

from trainshed.contract.wire.roles import EVALUATOR

from ...supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...roster.roster import Roster
    from ...supervisor.watcher import Process, Supervised

KILL_AFTER = 10.0  # seconds from SIGTERM to SIGKILL
STOP_MARGIN = 20.0  # seconds beyond the job's grace after which a stop ends them, whatever is known of the chief
SAY_AFTER = 2.0  # seconds after which the chief was not about to end as well
_DONE = {"type": "chief done"}


class ServersWatcher(Watcher):
    """This host's part.

    Args:
        hosts: how many the job has; the chief is on the first.
        grace: seconds from a stop signal to SIGKILL; the same time have evaluators for the chief's last checkpoint.
    """

    def __init__(self, hosts: int, grace: float, roster: Roster) -> None:
        self.hosts = hosts
        self.grace = grace
        self.roster = roster
        self.done = False  # whether the chief is done, or nobody will ever know
        self.done_at = 0.0
        self.stopped_at: float | None = None
        self._asked: dict[int, float] = {}  # when each was asked to end, by PID
        self._failed = False  # whether a process of this host has failed for good
        self._ended: dict[int, float] = {}  # when those ended that have ended well before the chief, by PID
        self._told: set[int] = set()  # PIDs of those of which the user has heard that

    def pause(self) -> float:
        """Half a second while somebody has to end, or is to be told of."""
        soon = self.done or self._failed or self.stopped_at is not None or len(self._told) < len(self._ended)
        return 0.5 if soon else FOREVER

    def busy(self) -> bool:
        """Until it is known how the chief ends: a failure before may be due to its end."""
        return not self.done and self.stopped_at is None

    def failed(self, why: str) -> None:
        """A process of this host has failed: all are to stop, and the next turn finds them asked."""
        self._failed = True

    def turn(self, run: Supervised) -> None:
        """Looks after the chief; ends the others when they are not needed any more."""
        now = run.now()
        if run.stopping and self.stopped_at is None:
            self.stopped_at = now
        if not self.done:
            self._say_ended(run, now)
            self.done = self._chief_done(run, now)
            self.done_at = now
        if not self.done:
            return
        for process in run.ranks:
            if process.spec.helper and process.alive:
                self._end(process, run, now)
            elif process.spec.helper and not run.stopping and not _evaluates(process):
                run.dismiss(process)

    def _chief_done(self, run: Supervised, now: float) -> bool:
        if self.stopped_at is not None and now - self.stopped_at > self.grace + STOP_MARGIN:
            return True
        if self.roster.rank > 0:
            written = any(letter == _DONE for _, letter in self.roster.letters())
            return written or 0 in self.roster.absent()
        chief = [process for process in run.ranks if not process.spec.helper]
        if any(process.alive for process in chief):
            return False
        ended_well = all(process.returncode == 0 for process in chief)
        if not ended_well and not run.stopping:
            return False  # somebody else's failure may be the reason, and about to be known
        for host in range(1, self.hosts):
            self.roster.post(host, _DONE)
        return True

    def _end(self, process: Process, run: Supervised, now: float) -> None:
        """Asks a process to end, and kills it when it does not."""
        if _evaluates(process) and self.stopped_at is None and now - self.done_at < self.grace:
            return
        asked = self._asked.get(process.pid)
        if asked is None:
            self._asked[process.pid] = now
            run.dismiss(process)
            run.end_helper(process)
        elif now - asked > KILL_AFTER:
            run.kill_helper(process)

    def _say_ended(self, run: Supervised, now: float) -> None:
        for process in run.ranks:
            if not process.spec.helper or process.returncode != 0 or process.pid in self._told:
                continue
            if now - self._ended.setdefault(process.pid, now) > SAY_AFTER:
                self._told.add(process.pid)
                if not run.stopping:
                    run.say(f"{process.spec.helper} has ended, and the chief is not done yet")


def _evaluates(process: Process) -> bool:
    """Whether it is an evaluator, which needs the chief's files and not the chief."""
    return process.spec.helper.startswith(EVALUATOR)
