"""Watchers, which take part in a run beside its processes: their base class, and what a watcher may ask of the run.

Watchers are equal: the loop polls the descriptors of all of them, gives each a turn after every poll, and tells each of
what happens. The roster watches the other hosts, notices the platform, the hang watch the ranks' progress, and MPI's
watcher brings ranks that Open MPI asks for.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from .launch_plan import ProcessResult, ProcessSpec

    Start = Callable[[ProcessSpec], tuple[int, int, int]]  # starts a process; see `spawn.spawn`

    class Process(Protocol):
        """A started process, as a watcher sees it."""

        spec: ProcessSpec
        pid: int
        returncode: int | None  # None while it lives

        @property
        def alive(self) -> bool:
            """Tells whether it has not ended."""

        def result(self) -> ProcessResult:
            """How it ended."""

    class Supervised(Protocol):
        """The run, as a watcher sees it."""

        @property
        def ranks(self) -> Sequence[Process]:
            """Every process that was started, including helpers and those that have ended."""

        @property
        def stopping(self) -> bool:
            """Tells whether the ranks have been asked to stop, or would be if there were any."""

        def now(self) -> float:
            """Seconds since the start."""

        def silent(self) -> float:
            """Seconds since any rank last printed anything."""

        def say(self, message: str) -> None:
            """Prints a message between two lines of the script."""

        def start_process(self, spec: ProcessSpec, start: Start = ...) -> Process | None:
            """Starts one more process, by `spawn` if nothing else is said; None where that fails, which ends the run."""

        def abandon(self, error: BaseException) -> None:
            """Stops all processes; the run ends by raising `error`. Only the first call counts."""

        def replace(self, lost: Process, spec: ProcessSpec, start: Start) -> Process | None:
            """Starts a process instead of a rank that has failed, whose end does not count from now on; None as above."""

        def give_up(self, lost: Process, instead: Process, why: str) -> None:
            """Takes that back: the run has failed with the lost rank."""

        def dismiss(self, helper: Process) -> None:
            """Ignores how a helper ends, or has just ended, and what it prints from now on: it has done its work."""

        def end_helper(self, helper: Process) -> None:
            """Sends a helper SIGTERM as a rank would get it."""

        def kill_helper(self, helper: Process) -> None:
            """Kills a helper and its process group."""

        def warn_ranks(self, why: str) -> bool:
            """Sends SIGTERM to the ranks that handle it, and `interrupted` to all watchers if there is such a rank.

            The others run on: the platform's own signal is still to come.

            Returns:
                Whether there is such a rank.
            """

        def stop_for_others(self, why: str, interrupted: bool, lost: bool) -> None:
            """Stops the ranks because of something that happened on another host; only the first call counts.

            Args:
                why: for the user, e.g. "algo-2: rank 3 exited with 1".
                interrupted: whether it was a stop signal or a notice, so that the ranks get the job's whole grace.
                lost: whether a host has vanished, so that there is nothing to wait for.
            """


FOREVER = 3600.0  # seconds; the pause of a watcher that waits for nothing but its descriptors


class Watcher:
    """Part of a run. Every method does nothing here; a watcher overrides those that it needs."""

    def descriptors(self) -> dict[int, int]:
        """Descriptors to poll, and the events of `select.poll` to poll each for."""
        return {}

    def pause(self) -> float:
        """Seconds after which the watcher needs a turn even if nothing happens."""
        return FOREVER

    def turn(self, run: Supervised) -> None:
        """Called after every poll."""

    def busy(self) -> bool:
        """Returns whether more processes may come, so that the run is not over when none is alive."""
        return False

    def own_processes(self) -> tuple[int, ...]:
        """PIDs of processes that it has started for itself: they are none of the run's, and live on when it is over."""
        return ()

    def replaces(self, run: Supervised, lost: Process) -> bool:
        """Called when a rank has failed while all others run: whether it has been started again, and the run goes on."""
        return False

    def run_over(self) -> None:
        """The run is over, however it ended. Called once a run."""

    # --- what happens in the run ---

    def printed(self, rank: Process, lines: bytes) -> None:
        """A process has printed whole lines, in which the job's secrets are masked. Called for each block: be quick."""

    def signalled(self, number: int, grace: float) -> None:
        """`train` was sent a signal that it passes on to the ranks; called before it does.

        Args:
            number: the first stop signal, or any SIGUSR1 or SIGUSR2.
            grace: seconds that the ranks get to end after a stop signal.
        """

    def interrupted(self, why: str, number: int) -> None:
        """This host's ranks stop because of stop signal `number`, or of a notice (then SIGTERM)."""

    def interrupted_elsewhere(self, why: str, grace: float) -> None:
        """This host's ranks stop because another host was interrupted; they get `grace` seconds."""

    def failed(self, why: str) -> None:
        """A rank of this host has failed, or the run is abandoned: all ranks of the job are to stop."""
