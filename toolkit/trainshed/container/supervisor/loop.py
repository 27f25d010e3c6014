"""One loop that watches the processes of a plan from start to end.

Handlers only enqueue: a signal leaves one byte in a pipe, the loop does the work. The loop sleeps in `poll` on the
ranks' pipes, on that signal pipe and, while output waits, on the console; it wakes for nothing else but deadlines.
"""

from __future__ import annotations

import os
import select
import signal
import time

from trainshed.contract.wire.secret_names import hidden_bytes
from trainshed.machine.processes import become_subreaper, catches, descendants
from trainshed.machine.streams import CONSOLE_BYTES, Console, LogFile, Stream, Terminal, same_file

from .launch_plan import LaunchPlan, Outcome, ProcessResult, ProcessSpec, StartError
from .spawn import PIPE_BYTES, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .watcher import Process, Watcher

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # only to programs that have a handler: their default is to die
FAILURE_SETTLES = 1.0  # seconds until the others are asked to stop: the first one to end may only have lost its peer
FAILURE_GRACE = 15.0  # seconds that the other ranks get to end once one has failed
LOST_GRACE = 4.0  # the same when a host has vanished: whatever they wait for will not come
LEFTOVER_GRACE = 5.0  # seconds that processes get which a finished script has left running
BATCH_SECONDS = 0.002  # unbuffered scripts write word by word: after a small read the next one waits this long
BATCH_BYTES = 1 << 15  # what counts as a small read
CONSOLE_GRACE = 10.0  # seconds to wait at the end for a console that does not take our lines
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Rank:
    """A started process, its streams, and what is known of its end."""

    def __init__(self, spec: ProcessSpec, out: Console, err: Console) -> None:
        self.spec = spec
        self.log = LogFile(spec.log)
        self.pid, out_fd, err_fd = spawn(spec)
        hidden = hidden_bytes(spec.env)
        self.out = Stream(out_fd, out, self.log, spec.label, masked=not spec.log, hidden=hidden)
        self.err = Stream(err_fd, err, self.log, spec.label, masked=not spec.log, hidden=hidden)
        self.returncode: int | None = None
        self.ended = 0.0
        self.stopped = False
        self.dismissed = False

    @property
    def alive(self) -> bool:
        return self.returncode is None

    @property
    def counts(self) -> bool:
        """Whether its end is part of the outcome: a helper's only where it failed the ranks."""
        return not self.spec.helper or (self.returncode != 0 and not self.stopped and not self.dismissed)

    def result(self) -> ProcessResult:
        """What the report needs to know."""
        assert self.returncode is not None
        errors, output = self.err.last_bytes(), self.out.last_bytes()
        return ProcessResult(
            spec=self.spec,
            returncode=self.returncode,
            ended=self.ended,
            tail=errors if errors.strip() else output,
            output_tail=output,
            traceback_at=self.err.traceback_at,
            stopped=self.stopped,
        )


class SignalPipe:
    """Signals as bytes in a pipe, from construction to `close`."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        watched = (*STOP_SIGNALS, *PASSED_SIGNALS, signal.SIGCHLD)
        self._old = {number: signal.signal(number, _note) for number in watched}

    def take(self) -> list[int]:
        """The signals that came since the last call, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Puts the earlier handlers back."""
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self.fd)
        os.close(self._write)


def _note(_signal: int, _frame: object) -> None:
    """The byte in the pipe is all there is to do."""


def run(
    plan: LaunchPlan,
    *,
    say: Callable[[str], None] = lambda _: None,
    started: Callable[[], None] = lambda: None,
    watchers: Sequence[Watcher] = (),
    spared: tuple[int, ...] = (),
) -> Outcome:
    """Runs the plan's processes to their end and returns how they ended; nothing of them is left afterwards.

    When one fails, the others are stopped. A stop signal is passed on; what has not ended when the grace is over is killed.

    Args:
        say: takes one line for the user.
        started: called once when all processes have been started.
        watchers: what takes part in the run beside its processes; each has its turn in this order.
        spared: children of this process that do not belong to the plan, and live on.

    Raises:
        StartError: a process could not be started; those already running were stopped.
        Exception: a watcher's reason to abandon the run.
    """
    become_subreaper()
    signals = SignalPipe()
    try:
        return _Run(plan, signals, say, watchers, spared).to_the_end(started)
    finally:
        for watcher in watchers:
            watcher.run_over()
        signals.close()


class _Run:
    """The state of one run."""

    def __init__(
        self,
        plan: LaunchPlan,
        signals: SignalPipe,
        say: Callable[[str], None],
        watchers: Sequence[Watcher],
        spared: tuple[int, ...],
    ) -> None:
        self.plan = plan
        self.signals = signals
        self.watchers = watchers
        self.spared = spared
        self._say = say
        self.unsaid: list[str] = []
        self.start = time.monotonic()
        self.terminals = [Terminal(fd) for fd in (1, 2) if os.isatty(fd)]
        self.out = Console(1)
        self.err = self.out if same_file(1, 2) else Console(2)  # two writers would tear each other's lines
        self.ranks: list[Rank] = []
        self.by_pid: dict[int, Rank] = {}
        self.deadline: float | None = None
        self.settled: float | None = None  # when the others have to stop because one has failed
        self.stop_signal = 0
        self.stop_at = 0.0
        self.stopped_by = ""
        self.failing = ""  # what the other hosts are told once `settled` is over
        self.sent = 0  # the signal that everyone was last asked to stop with
        self.killed = 0
        self.left_behind: set[int] = set()
        self.batch_until = 0.0
        self.timed_out = False
        self.error: Exception | None = None

    def now(self) -> float:
        return time.monotonic() - self.start

    def silent(self) -> float:
        """Seconds since any rank last printed anything."""
        return self.now() - max((stream.heard for rank in self.ranks for stream in (rank.out, rank.err)), default=0.0)

    def say(self, message: str) -> None:
        """Tells the user something, between two lines of the script, or later while nobody reads: never waits."""
        self.unsaid.append(message)
        self.speak()

    def speak(self) -> None:
        """Says what can be said now."""
        self.err.flush(False)
        while self.unsaid and not self.err.size and (self.err.closed or self.err.takes()):
            self._say(self.unsaid.pop(0))

    def to_the_end(self, started: Callable[[], None]) -> Outcome:
        try:
            for spec in self.plan.processes:
                rank = Rank(spec, self.out, self.err)
                self.ranks.append(rank)
                self.by_pid[rank.pid] = rank
        except StartError:
            self.ask_to_stop(signal.SIGTERM, FAILURE_GRACE)
            self.watch()
            self.finish_output()
            raise
        started()
        self.watch()
        self.finish_output()
        if self.error is not None:
            raise self.error
        ended = [rank for rank in self.ranks if rank.counts]
        ended.sort(key=lambda rank: -1 if rank.spec.rank is None else rank.spec.rank)
        return Outcome(
            results=tuple(rank.result() for rank in ended),
            stop_signal=self.stop_signal,
            stop_at=self.stop_at,
            stopped_by=self.stopped_by,
            killed=self.killed,
            left_behind=len(self.left_behind),
            seconds=self.now(),
            timed_out=self.timed_out,
            log_problem=next((rank.log.problem for rank in self.ranks if rank.log.problem), ""),
        )

    def watch(self) -> None:
        """Until no rank lives and nothing that they started is left."""
        while self.step():
            pass

    def step(self) -> bool:
        """One turn of the loop; False when all is over."""
        alive = any(rank.alive for rank in self.ranks) or any(watcher.busy() for watcher in self.watchers)
        if not alive:
            left = [pid for pid in descendants() if pid not in self.spared]
            if not left:
                return False
            self.end_leftovers(left)
        elif self.deadline is not None and self.now() >= self.deadline:
            self.kill()
        elif self.settled is not None and self.now() >= self.settled:
            self.settled = None
            for watcher in self.watchers:
                watcher.failed(self.failing)
            self.ask_to_stop(signal.SIGTERM, min(FAILURE_GRACE, self.plan.grace_seconds))
        elif self.plan.max_seconds and not self.timed_out and self.now() >= self.plan.max_seconds:
            self.timed_out = True
            self.say(f"the time limit of {self.plan.max_seconds:g} s is over: stopping")
            self.ask_to_stop(signal.SIGTERM, self.plan.grace_seconds)
        # While nothing but leftovers is awaited, orphans of orphans appear without any signal to us: look again soon.
        self.wait(None if alive else 0.05)
        return True

    def wait(self, longest: float | None) -> None:
        """Sleeps until something happens, then handles all of it."""
        poll = select.poll()
        poll.register(self.signals.fd, select.POLLIN)
        consoles = [console for console in {self.out, self.err} if console.size and not console.closed]
        for console in consoles:
            poll.register(console.fd, select.POLLOUT)
        streams: dict[int, Stream] = {}
        batching = self.batch_until - self.now()
        if batching > 0:
            longest = batching if longest is None else min(longest, batching)
        elif self.out.size + self.err.size < CONSOLE_BYTES:
            streams = {s.fd: s for rank in self.ranks for s in (rank.out, rank.err) if s.open}
            for fd in streams:
                poll.register(fd, _READABLE)
        limit = self.plan.max_seconds if self.plan.max_seconds and not self.timed_out else None
        for moment in (self.deadline, self.settled, limit):
            if moment is None:
                continue
            left = max(0.0, moment - self.now())
            longest = left if longest is None else min(longest, left)
        for watcher in self.watchers:
            for fd, events in watcher.descriptors().items():
                poll.register(fd, events)
            pause = watcher.pause()
            longest = pause if longest is None else min(longest, pause)
        # Rounded up, or the last millisecond before a deadline would be spent spinning.
        ready = dict(poll.poll(None if longest is None else int(longest * 1000) + 1))
        now = self.now()
        taken = sum(stream.read(now) for fd, stream in streams.items() if fd in ready)
        if 0 < taken < BATCH_BYTES:
            self.batch_until = now + BATCH_SECONDS
        for console in consoles:
            if ready.get(console.fd):
                console.flush(bool(ready[console.fd] & select.POLLOUT))
        for console in {self.out, self.err}.difference(consoles):
            console.flush(False)
        if self.unsaid:
            self.speak()
        if self.signals.fd in ready:
            for number in self.signals.take():
                self.handle(number)
        for watcher in self.watchers:
            watcher.turn(self)

    def handle(self, number: int) -> None:
        """One signal that was sent to us."""
        if number == signal.SIGCHLD:
            self.reap()
        elif number in PASSED_SIGNALS:
            for watcher in self.watchers:
                watcher.signalled(number, self.plan.grace_seconds)
            for rank in self.ranks:
                if rank.alive and not rank.spec.helper and catches(rank.pid, number):
                    _send(rank.pid, number, group=False)
        elif number in STOP_SIGNALS and not any(rank.alive for rank in self.ranks):
            self.deadline = self.now()  # the script has ended as it has; only what it left behind is awaited
        elif number in STOP_SIGNALS:
            if not self.stop_signal:
                for watcher in self.watchers:
                    watcher.signalled(number, self.plan.grace_seconds)
            if self.stop_signal and number == signal.SIGINT:  # somebody at a terminal who means it
                self.deadline = self.now()
            # Asked already on behalf of another host, the ranks' handlers must not be hit a second time.
            if self.stop_signal or not self.sent:
                self.ask_to_stop(number, self.plan.grace_seconds)
            if self.stop_signal:
                return
            self.stop_signal, self.stop_at = number, self.now()
            name = signal.Signals(number).name
            for watcher in self.watchers:
                watcher.interrupted(f"stopped by {name}")
            self.say(f"{name} received: passed on to the script, which has {self.plan.grace_seconds:g} s to end")

    def reap(self) -> None:
        """Collects every ended child: ranks, and orphans that became ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self.by_pid.pop(pid, None)
            if rank is not None:
                self.rank_ended(rank, os.waitstatus_to_exitcode(status))

    def rank_ended(self, rank: Rank, returncode: int) -> None:
        rank.returncode, rank.ended = returncode, self.now()
        rank.stopped = bool(self.sent)
        now = self.now()
        for stream in (rank.out, rank.err):
            left = PIPE_BYTES  # what it printed before it ended; a grandchild may hold the pipe open and write on and on
            while left > 0 and (taken := stream.read(now)):
                left -= taken
                self.flush()
        if not rank.counts:
            return
        if returncode != 0 and not self.sent and self.settled is None:
            who = rank.spec.helper or (f"rank {rank.spec.rank}" if rank.spec.label else "its script")
            why = f"{who} ended with {returncode}"
            if any(other.alive for other in self.ranks):
                self.settled, self.failing = self.now() + FAILURE_SETTLES, why
            else:
                for watcher in self.watchers:
                    watcher.failed(why)

    def stop_for_others(self, why: str, interrupted: bool, lost: bool) -> None:
        """Ends the ranks because of something that happened on another host."""
        if self.stopped_by:
            return
        self.stopped_by = why
        if interrupted:
            for watcher in self.watchers:
                watcher.interrupted_elsewhere(why, self.plan.grace_seconds)
        # Asked once already, they are on their way out, where a second signal would kill them: Python takes its handlers
        # down before it ends.
        if not self.sent and any(rank.alive and not rank.spec.helper for rank in self.ranks):
            self.say(f"stopping: {why}")
            limit = self.plan.grace_seconds if interrupted else LOST_GRACE if lost else FAILURE_GRACE
            self.ask_to_stop(signal.SIGTERM, min(limit, self.plan.grace_seconds))

    def ask_to_stop(self, number: int, grace: float) -> None:
        """Sends a stop signal to every living rank; the first call starts the clock."""
        if self.deadline is None:
            self.deadline = self.now() + grace
        self.sent, self.settled = number, None
        for rank in self.ranks:
            if rank.alive and not rank.spec.helper:
                _send(rank.pid, number, rank.spec.signal_group)

    def kill(self) -> None:
        """The grace is over."""
        self.deadline = None
        for rank in self.ranks:
            if rank.alive and not rank.spec.helper:
                self.killed += 1
                self.say(f"{rank.spec.label or 'the script'} did not end in time and is killed")
                _send(rank.pid, signal.SIGKILL, group=True)

    # --- what a watcher may ask for ---

    @property
    def stopping(self) -> bool:
        """Whether the ranks have been asked to stop, or would be if there were any."""
        return bool(self.sent or self.stopped_by)

    def start_process(self, spec: ProcessSpec) -> Rank | None:
        """Starts one more process; None where that fails, which ends the run."""
        try:
            rank = Rank(spec, self.out, self.err)
        except StartError as error:
            self.abandon(error)
            return None
        self.ranks.append(rank)
        self.by_pid[rank.pid] = rank
        return rank

    def abandon(self, error: Exception) -> None:
        """Stops all; the run ends by raising `error`."""
        if self.error is None:
            self.error = error
            if not self.sent:
                for watcher in self.watchers:
                    watcher.failed(str(error))
            self.ask_to_stop(signal.SIGTERM, min(FAILURE_GRACE, self.plan.grace_seconds))

    def warn_ranks(self, why: str) -> bool:
        """Sends SIGTERM to the ranks that handle it; whether there is one."""
        warned = [rank for rank in self.ranks if rank.alive and not rank.spec.helper and catches(rank.pid, signal.SIGTERM)]
        for rank in warned:
            _send(rank.pid, signal.SIGTERM, group=False)
        if warned:
            for watcher in self.watchers:
                watcher.interrupted(why)
        return bool(warned)

    def dismiss(self, helper: Process) -> None:
        """However the helper ends, and whatever it says from now on, is no matter."""
        for rank in self.ranks:
            if rank is helper:
                rank.dismissed = True
                for stream in (rank.out, rank.err):
                    stream.console = Console(-1)

    def kill_helper(self, helper: Process) -> None:
        """Ends it at once, with all that it started."""
        _send(helper.pid, signal.SIGKILL, group=True)

    def end_leftovers(self, left: list[int]) -> None:
        """Asks what the script left running to end, and kills it when its time is over."""
        new = [pid for pid in left if pid not in self.left_behind]
        if new:
            # A script that starts another launcher dies of a stop signal at once, while what it started may be saving a
            # checkpoint: that keeps the rest of the grace. A script that ended by itself is done.
            died_of_it = self.stop_signal and any(rank.returncode == -self.stop_signal for rank in self.ranks)
            if not self.left_behind and not died_of_it:
                limit = self.now() + min(LEFTOVER_GRACE, self.plan.grace_seconds)
                self.deadline = limit if self.deadline is None else min(limit, self.deadline)
            self.left_behind.update(new)
            for pid in new:
                _send(pid, self.sent or signal.SIGTERM, group=False)
        if self.deadline is None or self.now() >= self.deadline:
            self.deadline = None
            for pid in left:
                _send(pid, signal.SIGKILL, group=False)

    def flush(self) -> None:
        for console in {self.out, self.err}:
            console.flush(False)

    def finish_output(self) -> None:
        """Passes on what is left in the pipes and closes everything."""
        for rank in self.ranks:
            for stream in (rank.out, rank.err):
                while stream.read(self.now()):
                    self.flush()
                stream.close()
            rank.log.close()
        left = CONSOLE_GRACE
        for console in {self.out, self.err}:
            console.flush(False)
            left = console.drain(max(0.1, left))
            if console.waiting:  # what we say from here on must not wait for that reader, either
                console.give_up()
        for terminal in self.terminals:
            terminal.close(self.err.closed)
        for message in self.unsaid:
            self._say(message)


def _send(pid: int, number: int, group: bool) -> None:
    try:
        if group:
            os.killpg(pid, number)  # every rank leads a group of its own
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
