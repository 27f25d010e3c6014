"""What the supervisor's loop may watch beside its own ranks, and what such a watcher may ask of it.

The roster watches the other hosts; a launcher's runtime brings the ranks where they start on another program's word.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from .launch_plan import ProcessSpec

    class Process(Protocol):
        """A started process, as a watcher or a runtime sees it."""

        spec: ProcessSpec
        pid: int
        returncode: int | None  # None while it lives

        @property
        def alive(self) -> bool:
            """Whether it has not ended."""

    class Supervised(Protocol):
        """The run, as a watcher sees it."""

        sent: int  # the signal that all ranks were last asked to stop with, 0 for none

        @property
        def ranks(self) -> Sequence[Process]:
            """Every process that was started, also those that have ended, helpers included."""

        @property
        def stopping(self) -> bool:
            """Whether the ranks have been asked to stop."""

        def now(self) -> float:
            """Seconds since the start."""

        def silent(self) -> float:
            """Seconds since any rank last printed anything."""

        def say(self, message: str) -> None:
            """Tells the user something, between two lines of the script."""

        def start_process(self, spec: ProcessSpec) -> Process | None:
            """Starts one more process; None where that fails, which ends the run."""

        def abandon(self, error: Exception) -> None:
            """Stops all; the run ends by raising `error`. Only the first call counts."""

        def dismiss(self, helper: Process) -> None:
            """A helper has done its work: however it ends, and whatever it says from now on, is no matter."""

        def kill_helper(self, helper: Process) -> None:
            """Ends a helper at once."""

        def stop_for_others(self, why: str, interrupted: bool, lost: bool) -> None:
            """Ends the ranks because of something that happened elsewhere; only the first call counts.

            Args:
                why: for the user, e.g. "algo-2: rank 3 exited with 1".
                interrupted: a stop signal on another host, so that the ranks get the job's whole grace.
                lost: a host has vanished, so that there is nothing to wait for.
            """

    class Watcher(Protocol):
        """Something with descriptors and deadlines of its own."""

        def descriptors(self) -> dict[int, int]:
            """Descriptors to poll, and for what."""

        def pause(self) -> float:
            """Seconds until it must have a turn."""

        def turn(self, supervised: Supervised | None) -> None:
            """Called after every poll."""

        def failing(self, why: str) -> None:
            """A rank of this host has failed."""

        def interrupted(self, why: str) -> None:
            """This host was sent a stop signal."""

        def asked(self) -> None:
            """This host was sent SIGUSR1: somebody wants to know where the ranks are."""

    class Runtime(Protocol):
        """A launcher's own part in the run."""

        def descriptors(self) -> dict[int, int]:
            """Descriptors to poll, and for what."""

        def pause(self) -> float:
            """Seconds until it must have a turn."""

        def turn(self, supervised: Supervised) -> None:
            """Called after every poll."""

        def busy(self) -> bool:
            """Whether more processes may come, so that the run is not over although none is alive."""

        def close(self) -> None:
            """The run is over, for good or ill."""
