"""Takes part in a run to find its metrics: hands what the ranks print to a process that searches it.

That process (`trainshed.metrics.searching`) starts with the first lines that could hold a metric, so a job without any has
none. Its input waits here in bounded memory while it is busy; what does not fit is not searched, which is said.
"""

from __future__ import annotations

import os
import select

from trainshed.contract.wire.metric_lines import LOGGERS, frame, head, signs_of
from trainshed.machine.isolation import isolated
from trainshed.machine.streams import read_block

from .supervisor.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from trainshed.contract.job import TrainingJob

    from .supervisor.watcher import Process, Supervised

WAITING_BYTES = 1 << 24  # of lines that wait to be searched
LAST_SECONDS = 30.0  # for what is left at the end of a run
STOPPED_SECONDS = 3.0  # the same where somebody wants the job to end


class MetricsWatch(Watcher):
    """The search for metrics in one run.

    Args:
        say: prints a message for the user.
    """

    def __init__(self, job: TrainingJob, say: Callable[[str], None]) -> None:
        self._definitions = [(one.name, one.regex) for one in job.metric_definitions]
        self._signs = (b"",) if self._definitions else signs_of(job.settings.metrics)
        self._format = "off" if job.settings.metrics == LOGGERS else job.settings.metrics
        self._folder = job.paths.scraped_metrics
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._off = False
        self._waiting: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._stopped = False
        self._said = b""  # by the process, without the lines that have been passed on

    def printed(self, rank: Process, lines: bytes) -> None:
        if self._off or not any(sign in lines for sign in self._signs):
            return
        if self._process is None and not self._start():
            return
        if self._size > WAITING_BYTES:
            self._dropped += lines.count(b"\n")
            return
        self._put(frame(rank.spec.rank, lines))
        self._write()

    def interrupted(self, why: str, number: int) -> None:
        self._stopped = True

    def interrupted_elsewhere(self, why: str, grace: float) -> None:
        self._stopped = True

    def descriptors(self) -> dict[int, int]:
        if self._process is None or self._off:
            return {}
        assert self._process.stdin is not None and self._process.stdout is not None
        wanted = {self._process.stdout.fileno(): select.POLLIN}
        if self._waiting:
            wanted[self._process.stdin.fileno()] = select.POLLOUT
        return wanted

    def turn(self, run: Supervised) -> None:
        if self._process is None or self._off:
            return
        self._write()
        if self._listen() and not self._off:
            self._lost()

    def own_processes(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process is not None else ()

    def run_over(self) -> None:
        """Waits until all has been searched, for a while."""
        if self._process is None:
            return
        import subprocess
        import time

        process = self._process
        assert process.stdin is not None and process.stdout is not None
        until = time.monotonic() + (STOPPED_SECONDS if self._stopped else LAST_SECONDS)
        while self._waiting and not self._off and time.monotonic() < until:
            select.select([process.stdout], [process.stdin], [], 0.2)
            self._write()
            self._listen()
        left = sum(block.count(b"\n") for block in self._waiting) + self._dropped
        whole = not left
        try:
            process.stdin.close()
        except OSError:  # it is gone
            pass
        os.set_blocking(process.stdout.fileno(), True)
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            whole = False
        self._listen()
        process.stdout.close()
        if not whole:
            lines = f"{left} lines" if left else "the last lines"
            self._say(f"warning: {lines} of the log were not searched for metrics: they came faster than that can be done")
        self._process, self._off = None, True

    # --- the process ---

    def _start(self) -> bool:
        import subprocess

        try:
            self._process = subprocess.Popen(
                isolated("trainshed.metrics.searching", self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # whoever interrupts `train` at a terminal does not mean this
                cwd="/",
            )
        except OSError as error:
            self._off = True
            self._say(f"warning: the log is not searched for metrics: {error.strerror}")
            return False
        assert self._process.stdin is not None and self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(pipe.fileno(), False)
        self._put(head(self._definitions, self._format))
        return True

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)

    def _write(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        fd = self._process.stdin.fileno()
        try:
            while self._waiting:
                written = os.write(fd, self._waiting[0])
                self._size -= written
                if written < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][written:]
                else:
                    del self._waiting[0]
        except BlockingIOError:
            pass
        except OSError:  # EPIPE
            self._waiting = []
            self._lost()

    def _lost(self) -> None:
        self._off = True
        self._say("warning: the search for metrics has ended: its process is gone")

    def _listen(self) -> bool:
        """Says what the process has to say; whether it has ended."""
        assert self._process is not None and self._process.stdout is not None
        while block := read_block(self._process.stdout.fileno()):
            *lines, self._said = (self._said + block).split(b"\n")
            for line in lines:
                self._say(f"warning: {line.decode('utf-8', 'replace')}")
        return block is not None
