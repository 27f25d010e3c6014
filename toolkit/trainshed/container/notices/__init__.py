"""Notices of interruption: collected from signals and platforms, handed to the ranks as `contract.wire.notice` says.

One object a job, a watcher of the supervisor's loop. A run without notices pays next to nothing: only the platform that
the machine's firmware names is polled, by threads that start after the ranks; the rest is loaded at the first notice.

Threads: all of `Notices` belongs to the supervisor's thread but `_announce`. The polling threads (`polling`) call that
alone: it appends to a list and writes one byte to a pipe. The supervisor's thread wakes from the byte, empties the list
in `turn`, and is the only one that writes the notice file, prints, or signals ranks.
"""

from __future__ import annotations

import os
import select
import time

from trainshed.base.record import Record
from trainshed.machine.signals import name_of, signal

from ..supervisor.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.wire.notice import Acknowledgement, Notice

    from ..supervisor.launch_plan import Outcome, ProcessResult
    from ..supervisor.watcher import Supervised


class Interruption(Record):
    """The job was stopped from outside: it has neither finished nor failed.

    reason, source: why, for the user, and who said so (`ec2`, `slurm`, `SIGTERM` ...).
    exit_code: the exit status that asks the platform to run the job again.
    step, checkpoint: what the ranks say they have saved; step None where none of them said anything.
    announced: whether a platform had announced it.
    elsewhere: whether only ranks of other hosts were stopped: those of this host had ended by themselves.
    """

    reason: str
    source: str
    exit_code: int
    step: int | None = None
    checkpoint: str = ""
    announced: bool = False
    elsewhere: bool = False

    @property
    def plain_stop(self) -> bool:
        """Tells whether there was only a stop signal, so that nothing says that the job is to be resumed."""
        return self.step is None and not self.announced

    def line(self) -> str:
        """The last line of the log."""
        if self.elsewhere:
            return f"Reporting training STOPPED: {self.reason}; the script on this host had ended before"
        if self.plain_stop:
            return "Reporting training STOPPED: the script ended in time after the stop signal"
        done = f" after step {self.step}" if self.step is not None else ""
        saved = f"; saved in {self.checkpoint}" if self.checkpoint else ""
        return f"Reporting training INTERRUPTED{done}: {self.reason}{saved}"


class Notices(Watcher):
    """Collects notices, writes the notice file, and says afterwards whether the job was interrupted.

    path: the notice file, which the ranks watch.
    fd: readable when a platform has announced something; -1 while none is polled.
    told: whether a rank was sent SIGTERM because of an announcement.
    """

    def __init__(
        self, path: str, environ: Mapping[str, str], say: Callable[[str], None], *, watch: bool = True, exit_code: int = 0
    ) -> None:
        """
        Args:
            say: prints a message for the user.
            watch: whether platforms are polled.
            exit_code: the exit status of an interrupted job.
        """
        self.path = path
        self.fd = -1
        self.told = False
        self._environ = environ
        self._say = say
        self._watch = watch
        self._exit_code = exit_code
        self._write_fd = -1
        self._announced: list[tuple[str, str, bool, float | None]] = []  # source, reason, stop, deadline
        self._last: Notice | None = None

    def started(self) -> None:
        """Starts to poll the platforms that this machine belongs to; later calls, after restarts, do nothing."""
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
        """Called by the polling threads, and only by them."""
        self._announced.append((source, reason, stop, deadline))
        try:
            os.write(self._write_fd, b"!")
        except OSError:
            pass

    def descriptors(self) -> dict[int, int]:
        """The end of the pipe that the polling threads write to."""
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

    def ask_to_save(self, reason: str) -> None:
        """Asks the ranks to save a checkpoint and to go on."""
        self._post("rules", reason, False, None)

    def signalled(self, number: int, grace: float) -> None:
        """Posts a notice for a stop signal, and for SIGUSR2, Slurm's warning of the job's time limit."""
        now = time.time()
        if number == signal.SIGUSR1:  # asks for a hang report; the job goes on
            return
        if number != signal.SIGUSR2:
            name = name_of(number)
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
        """Writes a notice unless a more urgent one is there.

        Returns:
            Whether it is the first one that says stop.
        """
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
        if not source.startswith("SIG"):  # for a signal the supervisor prints a message itself
            self._say(f"notice: {reason}")
        try:
            write_notice(self.path, notice)
        except OSError as error:
            self._say(f"the notice cannot be written, so the ranks do not see it: {self.path}: {error.strerror}")
        return news

    def interruption(self, outcome: Outcome, ranks_here: int) -> Interruption | None:
        """How the run was interrupted, None if it was not.

        A script that exits with 0 after a notice, or whose ranks say that they stopped because of one, was interrupted.
        torchrun's agent fails after every stop signal; if all of its ranks have answered, its exit status is ignored.
        So is that of a rank that has answered and meets the stop signal while its interpreter shuts down.

        Args:
            ranks_here: how many ranks this host has.
        """
        if self._last is None and not os.path.isdir(os.path.dirname(self.path)):
            return None
        from trainshed.contract.wire.notice import read_answers

        answers = read_answers(self.path)
        agent_only = len(outcome.results) == 1 and ranks_here == len(answers) and outcome.results[0].spec.rank is None
        failed = [result for result in outcome.failed if not _stopped_after(result, answers)]
        if failed and not (agent_only and not outcome.killed):
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
        """Takes no more announcements."""
        descriptors = (self.fd, self._write_fd)
        self.fd = -1
        self._write_fd = -1  # before it is closed: polling threads go on, and its number may be reused
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)


def _stopped_after(result: ProcessResult, answers: list[Acknowledgement]) -> bool:
    """Whether a rank died of a stop signal after it had stopped by itself: its checkpoint was saved by then."""
    by_signal = result.stopped and -result.returncode in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return by_signal and any(answer.rank == result.spec.rank for answer in answers)
