"""How a run comes to its end: its phases, the deadline of each, and who asked for the stop. Nothing is sent from here."""

from __future__ import annotations

from .watcher import FOREVER

FAILURE_SETTLES = 1.0  # seconds until the others are asked to stop: the first one to end may only have lost its peer
FAILURE_GRACE = 15.0  # seconds that the other ranks get to end once one has failed
LOST_GRACE = 4.0  # the same when a host has vanished: whatever they wait for will not come
LEFTOVER_GRACE = 5.0  # seconds that processes get which a finished script has left running


class Phase:
    """The phases of a run, in the order in which phases follow each other; any may be skipped.

    RUNNING: the processes run, and none has failed. Deadline: the plan's time limit, if it has one; then they are
        asked to stop.
    SETTLING: a rank has failed, and the others may still end by themselves, one of them perhaps with the real cause.
        Deadline: `FAILURE_SETTLES` seconds after the failure; then all are asked to stop.
    STOPPING: the ranks were asked to stop, by a signal to `train`, after a failure or a time limit, or for another host.
        Further signals to `train` are passed on without moving the deadline; a second SIGINT ends it at once.
        Deadline: the end of the grace; then what lives is killed.
    KILLED: the ranks that were alive at the end of the grace were sent SIGKILL. No deadline.
    LEFTOVERS: all ranks have ended; processes that they left running were asked to end. Deadline: `LEFTOVER_GRACE`
        seconds, or the rest of the grace where a rank died of the stop signal itself; then, and whenever another one
        appears, they are killed.
    OVER: nothing is left.

    Plain texts: `enum` takes longer to load than all of this folder.
    """

    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    KILLED = "killed"
    LEFTOVERS = "leftovers"
    OVER = "over"


class Stopping:
    """The phase of a run and what it is due to.

    All moments are seconds since the start of the run.

    deadline: the end of the phase, None where it has none.
    signal: the signal that the ranks were last asked to stop with, 0 before.
    received, received_at: the first stop signal that `train` itself was sent, 0 before, and when.
    failure: why the run is settling, for the other hosts.
    elsewhere: why another host had this one stop, "" if none did.
    timed_out: whether the plan's time limit ended the run.
    """

    def __init__(self, grace: float, limit: float = 0.0) -> None:
        """
        Args:
            grace: seconds from a stop signal to SIGKILL.
            limit: the plan's time limit in seconds, 0 for none.
        """
        self.phase: str = Phase.RUNNING
        self.limit = limit
        self.deadline: float | None = limit or None
        self.grace = grace
        self.signal = 0
        self.received = 0
        self.received_at = 0.0
        self.failure = ""
        self.elsewhere = ""
        self.timed_out = False

    @property
    def asked(self) -> bool:
        """Tells whether the ranks have been asked to stop."""
        return self.signal != 0

    @property
    def failure_grace(self) -> float:
        """Seconds that the other ranks get once one has failed."""
        return min(FAILURE_GRACE, self.grace)

    def elsewhere_grace(self, interrupted: bool, lost: bool) -> float:
        """Seconds that the ranks get when another host has them stop; see `Supervised.stop_for_others`."""
        return self.grace if interrupted else min(LOST_GRACE if lost else FAILURE_GRACE, self.grace)

    def due(self, now: float) -> bool:
        """Returns whether the phase has reached its deadline."""
        return self.deadline is not None and now >= self.deadline

    def pause(self, now: float) -> float:
        """Seconds until the deadline."""
        return FOREVER if self.deadline is None else max(0.0, self.deadline - now)

    # --- transitions ---

    def settle(self, now: float, why: str) -> None:
        """RUNNING -> SETTLING: a rank has failed while others live."""
        self.phase = Phase.SETTLING
        self.deadline = now + FAILURE_SETTLES
        self.failure = why

    def unsettle(self) -> None:
        """SETTLING -> RUNNING: who failed was not needed any more."""
        if self.phase is Phase.SETTLING:
            self.phase = Phase.RUNNING
            self.deadline = self.limit or None
            self.failure = ""

    def ask(self, number: int, now: float, grace: float) -> None:
        """-> STOPPING: all ranks are asked to stop by a signal. Only the first time starts the clock."""
        self.signal = number
        if self.phase in (Phase.RUNNING, Phase.SETTLING):
            self.phase = Phase.STOPPING
            self.deadline = now + grace

    def hurry(self, now: float) -> None:
        """Ends the grace of STOPPING or LEFTOVERS now."""
        if self.deadline is not None:
            self.deadline = now

    def kill(self) -> None:
        """STOPPING -> KILLED; in LEFTOVERS, what still appears is killed at once from now on."""
        if self.phase is not Phase.LEFTOVERS:
            self.phase = Phase.KILLED
        self.deadline = None

    def leave_behind(self, now: float, died_of_signal: bool) -> None:
        """-> LEFTOVERS: all ranks have ended, but not all that they started.

        A script that starts another launcher dies of a stop signal at once, while what it started may be saving a
        checkpoint: that keeps the rest of the grace. A script that ended by itself is done.

        Args:
            died_of_signal: whether a rank died of the stop signal that `train` was sent.
        """
        deadline = now + min(LEFTOVER_GRACE, self.grace)
        if self.phase is Phase.STOPPING and self.deadline is not None:
            deadline = self.deadline if died_of_signal else min(deadline, self.deadline)
        elif died_of_signal:  # the grace is over
            deadline = now
        self.phase = Phase.LEFTOVERS
        self.deadline = deadline

    def finish(self) -> None:
        """-> OVER."""
        self.phase = Phase.OVER
        self.deadline = None
