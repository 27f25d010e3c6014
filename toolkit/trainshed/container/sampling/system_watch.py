"""Takes part in a run to have this host sampled: starts a small process for it, and ends it with the run.

A process of its own, since reading a machine's state may wait for its driver or its disk, while the ranks' output must not.
Forked, not started: it shares `train`'s memory and needs no start of Python.
"""

from __future__ import annotations

import os
import select
import time

from trainshed.base.record import Record
from trainshed.machine.processes import close_all_but, descendants, die_with_parent, rename
from trainshed.machine.signals import signal
from trainshed.machine.streams import read_block

from ..supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

    from ..supervisor.watcher import Supervised

INTERVAL = 0.5  # seconds from sample to sample, as the platform's default is
END_SECONDS = 1.0  # for the process to end


class SamplingPlan(Record):
    """How a host is sampled.

    folder: the profiler's, where the files go.
    host, number: this host's name, and its number from 1.
    interval: seconds from sample to sample. bounded: whether they may come less often where they cost too much.
    memory_limit: bytes that this host may use. gpus: whether it has some.
    """

    folder: str
    host: str
    number: int
    interval: float
    bounded: bool
    memory_limit: int
    gpus: bool


def sampling_plan(job: TrainingJob, cluster: Cluster) -> SamplingPlan | None:
    """As the job's setting says, else profilerconfig.json, else by default; None where nothing is to be sampled."""
    asked, profiler = job.settings.system_metrics, job.profiler
    if asked == "off" or (asked == "auto" and profiler is not None and not profiler.enabled):
        return None
    seconds = float(asked) if asked != "auto" else profiler.interval if profiler is not None else 0.0
    host, number = cluster.current_host, cluster.current_host.removeprefix("algo-")
    return SamplingPlan(
        folder=job.profiler_folder,
        host=host,
        number=int(number) if number != host and number.isdecimal() else cluster.rank + 1,
        interval=seconds or INTERVAL,
        bounded=not seconds,
        memory_limit=cluster.hardware.memory_bytes,
        gpus=cluster.hardware.gpus > 0,
    )


class SystemWatch(Watcher):
    """The sampler of one run.

    Args:
        plan: None for no sampling.
        say: prints a message for the user.
    """

    def __init__(self, plan: SamplingPlan | None, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._pid = self._control = self._words = -1
        self._said = b""

    def pause(self) -> float:
        return FOREVER if self._plan is None or self._pid > 0 else 0.0

    def descriptors(self) -> dict[int, int]:
        return {self._words: select.POLLIN} if self._words >= 0 else {}

    def turn(self, run: Supervised) -> None:
        if self._pid > 0:
            if self._words >= 0 and self._listen():
                self._say("warning: this machine is not sampled any more: the sampler's process is gone")
        elif self._plan is not None:
            if run.stopping:
                self._plan = None
                return
            named = [rank for rank in run.ranks if rank.spec.runs_script]
            self._start(self._plan, {rank.pid: _name(rank.spec.rank) for rank in named})

    def own_processes(self) -> tuple[int, ...]:
        return (self._pid, *descendants(self._pid)) if self._pid > 0 else ()  # nvidia-smi

    def run_over(self) -> None:
        """Ends the process; one that hangs, in a driver or on a disk, is left to the kernel's SIGKILL."""
        if self._pid <= 0:
            return
        os.close(self._control)
        if self._words >= 0:
            ended = self._end_by(time.monotonic() + END_SECONDS)
            if not ended:
                _kill(self._pid)
                ended = self._end_by(time.monotonic() + END_SECONDS)
            if self._words >= 0:
                os.close(self._words)
            if ended:
                _reap(self._pid)
        self._plan, self._pid, self._words = None, -1, -1

    # --- the process ---

    def _start(self, plan: SamplingPlan, names: Mapping[int, str]) -> None:
        parent = os.getpid()
        pipes: list[int] = []
        # Until the child has handlers of its own, a signal for its group would count twice: both share `train`'s.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            self._pid = os.fork()
            if self._pid == 0:
                _sample(plan, pipes[0], pipes[3], parent, names)
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            self._plan = None
            self._say(f"warning: this machine is not sampled: {error.strerror}")
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        control, self._control, self._words, words = pipes
        os.close(control)
        os.close(words)
        os.set_blocking(self._words, False)

    def _listen(self) -> bool:
        """Says what the process has to say; whether it has ended."""
        while block := read_block(self._words):
            *lines, self._said = (self._said + block).split(b"\n")
            for line in lines:
                self._say(f"warning: {line.decode('utf-8', 'replace')}")
        if block is not None:
            os.close(self._words)
            self._words = -1
        return block is not None

    def _end_by(self, deadline: float) -> bool:
        """Whether the process ends until then."""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._words], [], [], left)[0] and self._listen():
                return True
        return False


def _sample(plan: SamplingPlan, control: int, words: int, parent: int, names: Mapping[int, str]) -> None:
    """In the child: samples until `train` ends or wants no more. Never returns."""
    try:
        os.setsid()  # what is sent to the group of `train` is not for the sampler
        die_with_parent(signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        close_all_but(control, words)
        rename("train-sampler")
        import gc

        gc.freeze()  # what `train` has made stays in memory that both share
        os.nice(5)  # the ranks come first
        from .sampler import sample

        sample(
            control,
            lambda text: _tell(words, text),
            folder=plan.folder,
            host=plan.host,
            number=plan.number,
            interval=plan.interval,
            bounded=plan.bounded,
            root=parent,
            names=names,
            memory_limit=plan.memory_limit,
            gpus=plan.gpus,
        )
    except BaseException as error:
        _tell(words, f"this machine is not sampled any more: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _name(rank: int | None) -> str:
    return "script" if rank is None else f"rank{rank}"


def _tell(words: int, text: str) -> None:
    try:
        os.write(words, text.replace("\n", " ").encode() + b"\n")
    except OSError:  # `train` is gone
        pass


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # the supervisor's loop was faster
        pass
