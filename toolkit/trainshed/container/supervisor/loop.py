"""One loop that watches the processes of a plan from start to end.

Signal handlers only enqueue: a signal leaves one byte in a pipe, the loop does the work. The loop sleeps in `poll` on the
ranks' pipes, on that signal pipe, on what watchers name and, while output waits, on the console; it wakes for nothing
else but deadlines. `stopping.Phase` lists the phases of a run.
"""

from __future__ import annotations

import os
import select

from trainshed.machine.processes import become_subreaper, descendants, kill
from trainshed.machine.signals import PASSED_SIGNALS, Interrupted, SignalPipe, name_of, signal

from .launch_plan import LaunchPlan, Outcome, StartError
from .rank import send
from .spawn import make_room
from .stopping import Phase
from .supervised import SupervisedRun
from .watcher import FOREVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainshed.machine.signals import Stops

    from .rank import Rank
    from .watcher import Watcher

LEFTOVER_PAUSE = 0.05  # seconds between two looks for processes left behind: no signal tells us of orphans of orphans


def run(
    plan: LaunchPlan,
    *,
    say: Callable[[str], None] = lambda _: None,
    started: Callable[[], None] = lambda: None,
    watchers: Sequence[Watcher] = (),
    spared: tuple[int, ...] = (),
    stops: Stops | None = None,
) -> Outcome:
    """Runs the plan's processes to their end and returns how they ended; nothing of them is left afterwards.

    When one fails, the others are stopped. A stop signal is passed on; what has not ended when the grace is over is killed.

    Args:
        say: prints a message for the user.
        started: called once when all processes have been started.
        watchers: what takes part in the run beside its processes; each has its turn in this order.
        spared: children of this process that do not belong to the plan, and live on.
        stops: who noted this process's stop signals up to now; nothing is started if one has come.

    Raises:
        StartError: a process could not be started; those already running were stopped.
        Interrupted: a stop signal had come before the start.
        Exception: a watcher's reason to abandon the run.
    """
    become_subreaper()
    signals = SignalPipe()
    try:
        if stops is not None and stops.number:
            raise Interrupted(stops.number, "before the script was started")
        make_room(len(plan.processes))
        return _Loop(SupervisedRun(plan, say, watchers), signals, spared).to_the_end(started)
    except BaseException:  # nothing of a run that breaks off is left, either
        kill(_left(watchers, spared))
        raise
    finally:
        for watcher in watchers:
            watcher.run_over()
        signals.close()


def _left(watchers: Sequence[Watcher], spared: tuple[int, ...]) -> list[int]:
    """PIDs of processes that belong to the run: neither spared nor a watcher's own."""
    own = {*spared, *(pid for watcher in watchers for pid in watcher.own_processes())}
    return [pid for pid in descendants() if pid not in own]


class _Loop:
    """Polls, and dispatches what happens to one handler each."""

    def __init__(self, run: SupervisedRun, signals: SignalPipe, spared: tuple[int, ...]) -> None:
        self.run = run
        self.state = run.state
        self.watchers = run.watchers
        self.signals = signals
        self.spared = spared

    def to_the_end(self, started: Callable[[], None]) -> Outcome:
        """Starts the processes, loops until all have ended, and closes the output."""
        try:
            for spec in self.run.plan.processes:
                self.run.start(spec)
        except StartError as error:
            self.run.error = error
            self.run.ask_to_stop(signal.SIGTERM, self.state.failure_grace)
        else:
            started()
        while self._step():
            pass
        self.run.output.finish(self.run.now())
        if self.run.error is not None:
            raise self.run.error
        return self.run.outcome()

    def _step(self) -> bool:
        """One turn of the loop; False when the run is over."""
        if self.run.working():
            if self.state.due(self.run.now()):
                self._handle_deadline()
            self._wait(FOREVER)
            return True
        left = _left(self.watchers, self.spared)
        if not left:
            self._handle_child()  # the last of them may have ended just now
            self.state.finish()
            return False
        self._handle_leftovers(left)
        self._wait(LEFTOVER_PAUSE)
        return True

    def _wait(self, longest: float) -> None:
        """Sleeps until something happens, at most `longest` seconds, then handles all of it."""
        now = self.run.now()
        wanted = {self.signals.fd: select.POLLIN, **self.run.output.descriptors(now)}
        pauses = [longest, self.run.output.pause(now), self.state.pause(now)]
        for watcher in self.watchers:
            wanted.update(watcher.descriptors())
            pauses.append(watcher.pause())
        poll = select.poll()
        for fd, events in wanted.items():
            poll.register(fd, events)
        # Rounded up, or the last millisecond before a deadline would be spent spinning.
        ready = dict(poll.poll(int(min(pauses) * 1000) + 1))
        self.run.output.handle(ready, self.run.now())
        if self.signals.fd in ready:
            for number in self.signals.take():
                self._handle_signal(number)
        for watcher in self.watchers:
            watcher.turn(self.run)

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._handle_child()
        elif number in PASSED_SIGNALS:
            self._handle_passed(number)
        else:
            self._handle_stop(number)

    # --- one handler for each thing that happens ---

    def _handle_stop(self, number: int) -> None:
        """A stop signal."""
        state, first = self.state, not self.state.received
        if not self.run.working():  # the script has ended; only what it left behind is awaited
            state.hurry(self.run.now())
            self.signals.hand_on(number)  # what comes after this run must not begin
            return
        if first:
            for watcher in self.watchers:
                watcher.signalled(number, state.grace)
        elif number == signal.SIGINT:  # somebody at a terminal who means it
            state.hurry(self.run.now())
        # Asked to stop for another host already, the ranks must not get a second signal.
        if not first or not state.asked:
            self.run.ask_to_stop(number, state.grace)
        if first:
            state.received = number
            state.received_at = self.run.now()
            name = name_of(number)
            for watcher in self.watchers:
                watcher.interrupted(f"stopped by {name}", number)
            self.run.say(f"{name} received: passed on to the script, which has {state.grace:g} s to end")

    def _handle_passed(self, number: int) -> None:
        """SIGUSR1 or SIGUSR2: goes only to ranks that have a handler, since the default is to die."""
        for watcher in self.watchers:
            watcher.signalled(number, self.state.grace)
        self.run.pass_on(number)

    def _handle_child(self) -> None:
        """SIGCHLD: reaps every ended child, ranks and orphans that became ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = next((rank for rank in self.run.ranks if rank.pid == pid and rank.alive), None)
            if rank is not None:
                self._handle_end(rank, os.waitstatus_to_exitcode(status))
            else:
                self.run.orphans[pid] = os.waitstatus_to_exitcode(status)

    def _handle_end(self, rank: Rank, returncode: int) -> None:
        """A rank or a helper has ended."""
        now = self.run.now()
        rank.end(returncode, now, stopped=self.run.stopping)
        self.run.output.take_last(rank, now)
        if returncode == 0 or not rank.counts or self.state.phase is not Phase.RUNNING:
            return
        why = f"{rank.name} ended with {returncode}"
        if any([watcher.replaces(self.run, rank) for watcher in self.watchers]):
            return
        if self.run.working():
            self.state.settle(now, why)
        else:
            self.run.tell_failed(why)

    def _handle_deadline(self) -> None:
        """The end of a phase while processes live."""
        state = self.state
        if state.phase is Phase.RUNNING:
            state.timed_out = True
            self.run.say(f"the time limit of {self.run.plan.max_seconds:g} s is over: stopping")
            self.run.ask_to_stop(signal.SIGTERM, state.grace)
        elif state.phase is Phase.SETTLING:
            self.run.tell_failed(state.failure)
            self.run.ask_to_stop(signal.SIGTERM, state.failure_grace)
        else:
            self.run.kill()

    def _handle_leftovers(self, left: list[int]) -> None:
        """Asks what the script left running to end, and kills it when its time is over."""
        state = self.state
        if state.phase is not Phase.LEFTOVERS:
            died_of_signal = any(state.received and rank.returncode == -state.received for rank in self.run.ranks)
            state.leave_behind(self.run.now(), died_of_signal)
        for pid in left:
            if pid not in self.run.left_behind:
                self.run.left_behind.add(pid)
                number = state.signal or signal.SIGTERM
                if pid not in self.run.asked and not self.run.gets_it_anyway(pid, number, left):
                    send(pid, number, group=False)
        if state.deadline is None or state.due(self.run.now()):
            state.kill()
            kill(left)
