"""Notices of interruption: collected from signals and platforms, handed to the ranks as `contract.wire.notice` says.

One object a run, an observer of the supervisor's loop. It costs a good run nothing: platforms are looked for only where
the machine says that it is one, in threads that start after the ranks, and everything else waits for the first notice.
"""

from __future__ import annotations

import os
import select
import signal
import time

from trainshed.base.record import Record

from ..supervisor.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.wire.notice import Notice

    from ..supervisor.launch_plan import Outcome
    from ..supervisor.watcher import Supervised


class Interruption(Record):
    """The job stopped because its time was up, not because it was done and not because it failed.

    step, checkpoint: what the ranks say they have saved; step None where none of them said anything.
    announced: whether a platform had said so.
    """

    reason: str
    source: str
    exit_code: int
    step: int | None = None
    checkpoint: str = ""
    announced: bool = False

    @property
    def plain_stop(self) -> bool:
        """Whether there was a stop signal and nothing else: nobody says that the job is to be resumed."""
        return self.step is None and not self.announced

    def line(self) -> str:
        """For the user."""
        if self.plain_stop:
            return "Reporting training STOPPED: the script ended in time after the stop signal"
        done = f" after step {self.step}" if self.step is not None else ""
        saved = f"; saved in {self.checkpoint}" if self.checkpoint else ""
        return f"Reporting training INTERRUPTED{done}: {self.reason}{saved}"


class Notices(Watcher):
    """Watches, writes the notice file, and says afterwards whether the job was interrupted.

    path: the notice file (`TRAINSHED_NOTICE_FILE` of the ranks).
    fd: readable when a platform has announced something; -1 while nobody watches.
    """

    def __init__(
        self, path: str, environ: Mapping[str, str], say: Callable[[str], None], *, watch: bool = True, exit_code: int = 0
    ) -> None:
        self.path, self.fd = path, -1
        self._environ, self._say, self._watch, self._exit_code = environ, say, watch, exit_code
        self._write_fd = -1
        self._announced: list[tuple[str, str, bool, float | None]] = []
        self._last: Notice | None = None
        self.told = False  # whether the loop has sent a rank a signal because of an announcement

    def started(self) -> None:
        """The ranks run: begins to watch the platforms that are there. Once; a restart of the ranks changes nothing."""
        if not self._watch or self.fd >= 0:
            return
        from .platforms import present

        names = present(self._environ)
        if not names:
            return
        from .polling import start

        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        start(names, self._environ, self._announce)

    def _announce(self, source: str, reason: str, stop: bool, deadline: float | None) -> None:
        """Called by the watching threads."""
        self._announced.append((source, reason, stop, deadline))
        try:
            os.write(self._write_fd, b"!")
        except OSError:
            pass

    def descriptors(self) -> dict[int, int]:
        """The end of the pipe that the watching threads write to."""
        return {self.fd: select.POLLIN} if self.fd >= 0 else {}

    def turn(self, run: Supervised) -> None:
        """Posts what was announced; ranks that handle SIGTERM are sent one where it says stop."""
        if self.fd >= 0 and self.take() and run.warn_ranks(self.reason):
            self.told = True

    def take(self) -> bool:
        """Posts what was announced since the last call; whether there is news that says stop."""
        try:
            os.read(self.fd, 4096)
        except OSError:  # nothing has come
            pass
        stop = False
        while self._announced:
            source, reason, stops, deadline = self._announced.pop(0)
            stop = self._post(source, reason, stops, deadline) or stop
        return stop

    def signalled(self, number: int, grace: float) -> None:
        """Posts a notice for a stop signal, and for SIGUSR2, Slurm's warning of the job's time limit."""
        now = time.time()
        if number == signal.SIGUSR1:  # asks for a hang report; the job goes on
            return
        if number != signal.SIGUSR2:
            name = signal.Signals(number).name
            self._post(name, f"{name} received, {grace:g} s to end", True, now + grace)
        elif self._environ.get("SLURM_JOB_ID"):
            end = self._environ.get("SLURM_JOB_END_TIME", "")
            deadline = float(end) if end.isdigit() else None
            left = f", {deadline - now:.0f} s before the job's time limit" if deadline else ""
            self._post("slurm", f"SIGUSR2 received from Slurm{left}", True, deadline)

    def interrupted_elsewhere(self, why: str, grace: float) -> None:
        """Posts a notice for another host's interruption."""
        self._post("another host", why, True, time.time() + grace)

    @property
    def reason(self) -> str:
        """Why, for the other hosts; "" before any notice."""
        return self._last.reason if self._last else ""

    def _post(self, source: str, reason: str, stop: bool, deadline: float | None) -> bool:
        """Puts a notice before the ranks unless a more urgent one is there; whether it is news that says stop."""
        from trainshed.contract.wire.notice import Notice, write_notice

        last = self._last
        if (
            last is not None
            and last.stop
            and not (stop and deadline and (not last.deadline or deadline < last.deadline - 1))
        ):
            return False
        news = stop and not (last is not None and last.stop)
        self._last = notice = Notice(
            number=last.number + 1 if last else 1,
            source=source,
            reason=reason,
            stop=stop,
            received=time.time(),
            deadline=deadline,
        )
        if source not in signal.Signals.__members__:  # those the supervisor announces itself
            self._say(f"notice: {reason}")
        try:
            write_notice(self.path, notice)
        except OSError as error:
            self._say(f"the ranks cannot be told of it: {self.path}: {error.strerror}")
        return news

    def interruption(self, outcome: Outcome, ranks_here: int) -> Interruption | None:
        """How the run was interrupted, None if it was not.

        A script that exits with 0 after a notice, or whose ranks say that they stopped because of one, was interrupted.
        torchrun's agent fails after every stop signal, so there all of its ranks' answers count more than its exit status.
        """
        if self._last is None and not os.path.isdir(os.path.dirname(self.path)):
            return None
        from trainshed.contract.wire.notice import read_answers

        answers = read_answers(self.path)
        agent_only = len(outcome.results) == 1 and ranks_here == len(answers) and outcome.results[0].spec.rank is None
        if outcome.failed and not (agent_only and not outcome.killed):
            return None
        stopped = outcome.stop_signal or outcome.stopped_by or self.told
        if not answers and not (self._last and stopped):
            return None
        first = min(answers, key=lambda answer: answer.rank) if answers else None
        reason = self._last.reason if self._last else first.reason if first else ""
        return Interruption(
            reason=reason,
            source=self._last.source if self._last else "another host",
            exit_code=self._exit_code,
            step=first.step if first else None,
            checkpoint=first.checkpoint if first else "",
            announced=self.told,
        )

    def close(self) -> None:
        """Nobody is told anything any more."""
        for fd in (self.fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self._write_fd = -1
