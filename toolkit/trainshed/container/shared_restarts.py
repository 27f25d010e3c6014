"""Restart in place on several hosts: all of them start their ranks again together, or none does.

Each host reports to the first one when nothing of its ranks is left (`roster.rounds`); the first host decides, by the rules
of a job on one host, and all do what it says. A job that has lost a host, or that is to stop, is not started again.
"""

from __future__ import annotations

import os

from trainshed.base.errors import some

from .ports import PORT_TAKEN
from .restarts import Again, Budget
from .roster import report_of
from .roster.restart_barrier import Decision
from .supervisor.progress import newest_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.machine.signals import Stops

    from .restarts import Ended
    from .roster.restart_barrier import Rest
    from .roster.roster import Roster


class SharedRestarts:
    """This host's part in the restarts of its job.

    Args:
        allowed: the most restarts.
        checkpoints: the folders of the job's checkpoints, and of their copies in memory, on this host.
        host: this host's name.
        stops: this process's stop signals.
        say: takes a line for the user.
        candidates: the ports that the job may use next, the present one first; the same on all hosts.
        free: those of them that are free on this host.
    """

    def __init__(
        self,
        allowed: int,
        checkpoints: tuple[str, ...],
        roster: Roster,
        host: str,
        stops: Stops,
        say: Callable[[str], None],
        candidates: Callable[[], tuple[int, ...]],
        free: Callable[[], tuple[int, ...]],
    ) -> None:
        self._checkpoints = checkpoints
        self._roster = roster
        self._host = host
        self._stops = stops
        self._say = say
        self._candidates = candidates
        self._free = free
        self._newest = newest_step(*checkpoints)
        self._budget = Budget(allowed, self._newest)  # of the first host alone

    def after(self, ended: Ended) -> Again | None:
        """The next attempt after this one, None where it was the last."""
        before, self._newest = self._newest, newest_step(*self._checkpoints)
        reason = ended.interruption.reason if ended.interruption is not None else ""
        report = report_of(self._roster, ended.outcome, ended.failure, reason, self._host).replace(
            again=ended.may_go_on, newest=self._newest, progressed=self._newest > before, ports=self._free()
        )
        decision = self._roster.rest(report, self._decide, self._stops)
        if decision.line:
            self._say(decision.line)
        if not decision.again or decision.failure is None:
            return None
        return Again(decision.failure, decision.done, decision.port)

    def _decide(self, rest: Rest) -> Decision:
        """What all hosts do next; on the first host."""
        if rest.failure is None:
            return Decision()
        if rest.obstacle:
            return Decision(line=f"not restarted: {rest.obstacle}")
        newest = max(report.newest for report in rest.reports.values())
        progressed = any(report.progressed for report in rest.reports.values())
        if refusal := self._budget.refusal(newest, progressed):
            return Decision(line=refusal)
        line = self._budget.granted(newest, rest.failure)
        port, said = self._port(rest)
        in_memory = any(map(os.path.isdir, self._checkpoints[1:]))  # then ranks agree on a step that all have
        notes = [note for note in (said, "" if in_memory else _apart(rest)) if note]
        return Decision(again=True, failure=rest.failure, done=self._budget.done, port=port, line="; ".join([line, *notes]))

    def _port(self, rest: Rest) -> tuple[int, str]:
        """The job's port from now on, 0 if it stays; and what the user is told of it."""
        candidates = self._candidates()
        free = [port for port in candidates if all(port in report.ports for report in rest.reports.values())]
        if not candidates or candidates[0] in free:
            return 0, ""
        where = some([host for host, report in rest.reports.items() if candidates[0] not in report.ports], 8)
        if not free:
            return 0, f"port {candidates[0]} is taken on {where}, and so are others"
        return free[0], PORT_TAKEN.format(old=candidates[0], where=where, new=free[0])


def _apart(rest: Rest) -> str:
    """That hosts have different checkpoints: a script that reads its own host's would train apart from the others."""
    steps = {host: report.newest for host, report in rest.reports.items()}
    if len(set(steps.values())) == 1:
        return ""
    told = [f"{host} {f'step {step}' if step >= 0 else 'none'}" for host, step in steps.items()]
    return f"the hosts have different newest checkpoints ({some(told, 4)}): share their folder if the script does not"
