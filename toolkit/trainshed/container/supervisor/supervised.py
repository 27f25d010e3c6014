"""A run of a plan: its processes, its phase, its output, and what may be done to it by the loop and by watchers."""

from __future__ import annotations

import time

from trainshed.machine.processes import catches
from trainshed.machine.signals import signal

from .launch_plan import LaunchPlan, Outcome, ProcessSpec, StartError
from .output import Output
from .rank import Rank, send
from .spawn import spawn
from .stopping import Phase, Stopping
from .watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .watcher import Process, Start


class SupervisedRun:
    """The state of one run. Watchers see it as `watcher.Supervised`, which says what those methods are for.

    ranks: every process that was started, in order, helpers included.
    killed: how many of them had to be killed after the grace.
    left_behind: PIDs of processes that the ranks left running.
    wrapped: what wrappers among the ranks had started when they were asked to stop: wrapper -> its children.
    asked: PIDs of those that got the stop signal with their rank: a second one could kill them while they save.
    orphans: how processes ended that are not of the plan, -n for signal n.
    error: what the run is to end with by raising, None for an outcome.
    """

    def __init__(self, plan: LaunchPlan, say: Callable[[str], None], watchers: Sequence[Watcher]) -> None:
        self.plan = plan
        self.watchers = watchers
        self.start_time = time.monotonic()
        self.output = Output(say)
        self.state = Stopping(plan.grace_seconds, plan.max_seconds)
        self.ranks: list[Rank] = []
        self.killed = 0
        self.left_behind: set[int] = set()
        self.wrapped: dict[int, list[int]] = {}
        self.asked: set[int] = set()
        self.orphans: dict[int, int] = {}
        self.error: BaseException | None = None

    # --- for the loop ---

    def start(self, spec: ProcessSpec, start: Start = spawn) -> Rank:
        """Starts a process. Raises StartError."""
        rank = Rank(spec, self.output.out, self.output.err, start)
        rank.tell([watcher for watcher in self.watchers if type(watcher).printed is not Watcher.printed])
        self.ranks.append(rank)
        self.output.add(rank)
        return rank

    def working(self) -> bool:
        """Returns whether a process of the plan lives, or more may come."""
        return any(rank.alive for rank in self.ranks) or any(watcher.busy() for watcher in self.watchers)

    def living(self) -> list[Rank]:
        """The ranks that live, without helpers."""
        return [rank for rank in self.ranks if rank.alive and not rank.spec.helper]

    def ask_to_stop(self, number: int, grace: float) -> None:
        """Sends a stop signal to every living rank; the first call starts the clock of `grace` seconds."""
        self.state.ask(number, self.now(), grace)
        from .wrappers import group_of, outlives, wrapped  # most runs are never stopped

        for rank in self.living():
            if rank.spec.signal_group:
                for wrapper, started in wrapped(rank.pid).items():
                    self.wrapped[wrapper] = [pid for pid in started if outlives(pid, number)]
                    self.asked |= {pid for pid in started if group_of(pid) == rank.pid}
            send(rank.pid, number, group=rank.spec.signal_group)

    def pass_on(self, number: int) -> bool:
        """Sends a signal to every living rank that has a handler for it; whether there is one."""
        catching = [rank for rank in self.living() if catches(rank.pid, number)]
        for rank in catching:
            send(rank.pid, number, group=False)
        return bool(catching)

    def kill(self) -> None:
        """Kills every living rank with its process group."""
        self.state.kill()
        for rank in self.living():
            self.killed += 1
            self.say(f"{rank.spec.label or 'the script'} did not end in time and is killed")
            send(rank.pid, signal.SIGKILL, group=True)

    def tell_failed(self, why: str) -> None:
        """Tells watchers that all ranks of the job are to stop."""
        for watcher in self.watchers:
            watcher.failed(why)

    def gets_it_anyway(self, pid: int, number: int, left: Sequence[int]) -> bool:
        """Returns whether a wrapper that is left, too, passes a signal on to a process, as `timeout` does."""
        return any(pid in self.wrapped.get(one, ()) and catches(one, number) for one in left)

    def outcome(self) -> Outcome:
        """How the run ended, once all of it has."""
        for rank in self.ranks:
            if self.wrapped and rank.stopped and rank.returncode is not None and rank.returncode < 0:
                from .wrappers import scripts_end

                code = scripts_end(self.wrapped, self.orphans, rank.pid, -rank.returncode)
                rank.returncode = rank.returncode if code is None else code
        ended = [rank for rank in self.ranks if rank.counts]
        ended.sort(key=lambda rank: -1 if rank.spec.rank is None else rank.spec.rank)
        return Outcome(
            results=tuple(rank.result() for rank in ended),
            stop_signal=self.state.received,
            stop_at=self.state.received_at,
            stopped_by=self.state.elsewhere,
            killed=self.killed,
            left_behind=len(self.left_behind.difference(self.asked, *self.wrapped.values())),
            seconds=self.now(),
            over=time.monotonic(),
            timed_out=self.state.timed_out,
            log_problem=next((rank.log.problem for rank in self.ranks if rank.log.problem), ""),
        )

    # --- for watchers ---

    @property
    def stopping(self) -> bool:
        return self.state.asked or bool(self.state.elsewhere)

    def now(self) -> float:
        return time.monotonic() - self.start_time

    def silent(self) -> float:
        return self.now() - self.output.last_heard()

    def say(self, message: str) -> None:
        self.output.say(message)

    def start_process(self, spec: ProcessSpec, start: Start = spawn) -> Rank | None:
        try:
            return self.start(spec, start)
        except StartError as error:
            self.abandon(error)
            return None

    def replace(self, lost: Process, spec: ProcessSpec, start: Start) -> Rank | None:
        send(lost.pid, signal.SIGKILL, group=True)  # what it has started: workers of its loaders
        self.ranks = [rank for rank in self.ranks if rank is not lost]
        return self.start_process(spec, start)

    def give_up(self, lost: Process, instead: Process, why: str) -> None:
        for rank in self.output.ranks:
            if rank is lost:
                self.ranks.append(rank)
            elif rank is instead:
                rank.dismissed = True
        if self.state.phase is Phase.RUNNING:
            self.state.settle(self.now(), why)

    def abandon(self, error: BaseException) -> None:
        if self.error is not None:
            return
        self.error = error
        if not self.stopping:
            self.tell_failed(str(error))
        self.ask_to_stop(signal.SIGTERM, self.state.failure_grace)

    def warn_ranks(self, why: str) -> bool:
        warned = self.pass_on(signal.SIGTERM)
        if warned:
            for watcher in self.watchers:
                watcher.interrupted(why, signal.SIGTERM)
        return warned

    def dismiss(self, helper: Process) -> None:
        for rank in self.ranks:
            if rank is helper:
                rank.dismiss()
        if not any(rank.counts and rank.returncode for rank in self.ranks):
            self.state.unsettle()

    def end_helper(self, helper: Process) -> None:
        send(helper.pid, signal.SIGTERM, group=helper.spec.signal_group)

    def kill_helper(self, helper: Process) -> None:
        send(helper.pid, signal.SIGKILL, group=True)

    def stop_for_others(self, why: str, interrupted: bool, lost: bool) -> None:
        if self.state.elsewhere:
            return
        self.state.elsewhere = why
        if interrupted:
            for watcher in self.watchers:
                watcher.interrupted_elsewhere(why, self.state.grace)
        # Asked once already, they are on their way out, where a second signal would kill them: Python takes its handlers
        # down before it ends.
        if not self.state.asked and self.living():
            self.say(f"stopping: {why}")
            self.ask_to_stop(signal.SIGTERM, self.state.elsewhere_grace(interrupted, lost))
