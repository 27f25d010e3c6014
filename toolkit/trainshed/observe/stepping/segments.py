"""From marks in a training loop to the phases of its steps. Knows nothing of torch.

A timeline is cut wherever something is known to begin or to end, and what lies between two cuts belongs to one phase. Which
one is mostly known at its end: what ends with the start of a backward is a forward with its loss, what ends with the
start of a fetch is the rest of the loop. So no hook in the model is needed: compiled and sharded models are measured as
they are.

What may happen inside of any phase (a wait for other ranks, a copy to the device, a checkpoint) is taken out of it.
"""

from __future__ import annotations

import threading
import time

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Event(Protocol):
        """A mark on a device's timeline."""

        def query(self) -> bool:
            """Returns whether the device has come to it."""

        def elapsed_time(self, end: Event) -> float:
            """Milliseconds from it to another one; both must have been reached."""


_ENCLOSING = "^"  # a cut inside of a phase, whose name its end will tell
MOST_PENDING = 64  # steps that the device has not come to; what is beyond them is taken from the host's clock


class Step(Record):
    """One step. seconds: from the end of the step before it. phases: those of `observe.steps.PHASES` but the rest."""

    seconds: float
    phases: dict[str, float]
    samples: int | None


class Segments:
    """The timeline of one thread of one process.

    Args:
        done: gets each step, in order; on a GPU some time after it.
        now: seconds on any clock.
        record: makes an event on the device's timeline, or None where that cannot be done now; None itself where the host's
            clock counts.
    """

    def __init__(
        self,
        done: Callable[[Step], None],
        now: Callable[[], float] = time.perf_counter,
        record: Callable[[], Event | None] | None = None,
    ) -> None:
        self._done, self._now, self.record = done, now, record
        self._thread = 0  # the one that trains, 0 until it is known
        self._optimizer = 0  # id of the one whose steps end a step
        self.first_work: float | None = None  # seconds of the first step itself, without what it waited for; once known
        self._met_first = False
        self._started = False  # whether a step has ended: what came before the first one is like no other step
        self._last = self._step_start = now()
        self._inside = 0.0  # seconds since the last cut that belong to something inside
        self._depth = {"backward": 0, "fetch": 0, "inside": 0}
        self._phases: dict[str, float] = {}
        self._key, self._trained = 0, 0  # the loader of the latest batch, and of the latest one that was trained with
        self._waited, self._rows, self._rows_known = 0.0, 0, True  # for batches of `_key` since it was the latest
        self._samples: int | None = 0
        self._cuts: list[tuple[str, Event, float]] = []  # of this step: phase that ended, where, seconds inside of it
        self._before: Event | None = None  # the last cut of the step before
        self._pending: list[tuple[Event, list[tuple[str, Event, float]], Step]] = []

    # --- what happens in the loop; each pair is called by the thread that does it ---

    def fetch_begins(self) -> None:
        """The loop wants a batch."""
        if self._ours():
            self._depth["fetch"] += 1
            if self._depth["fetch"] == 1:
                self._cut("")

    def fetch_ends(self, key: int, rows: int | None) -> None:
        """The loop has its batch.

        Args:
            key: tells loaders apart.
            rows: how many samples are in it, 0 for no batch, None if unknown.
        """
        if not self._ours():
            return
        self._depth["fetch"] = max(0, self._depth["fetch"] - 1)
        if self._depth["fetch"]:
            return
        if key != self._key:  # that of a validation, say
            self._waited, self._rows, self._rows_known, self._key = 0.0, 0, True, key
            self._rename("")
        self._waited += self._cut("data?")
        self._rows += rows or 0
        self._rows_known = self._rows_known and rows is not None

    def backward_begins(self) -> None:
        """All up to here was the forward; the batch that was fetched last is one to train with."""
        if self._thread == 0:
            self._thread = threading.get_ident()
        if not self._ours():
            return
        self._depth["backward"] += 1
        if self._depth["backward"] == 1:
            self._cut("forward")
            self._trained = self._key
            self._take_batch()

    def backward_ends(self, exposed: float = 0.0) -> float:
        """
        Args:
            exposed: which part of it was spent waiting for other ranks, from 0 to 1.

        Returns:
            Its seconds; 0 for one inside of another.
        """
        if not self._ours():
            return 0.0
        self._depth["backward"] = max(0, self._depth["backward"] - 1)
        if self._depth["backward"]:
            return 0.0
        seconds = self._cut("backward")
        self._move("backward", "communication", seconds * exposed)
        return seconds

    def inside_begins(self) -> float:
        """Something begins that may happen inside of any phase; returns what `inside_ends` wants to have."""
        if not self._ours():
            return -1.0
        self._depth["inside"] += 1
        return self._now() if self._depth["inside"] == 1 else -1.0

    def inside_ends(self, phase: str, began: float) -> None:
        """The part that `inside_begins` began is over; "" for a phase takes nothing out."""
        if not self._ours():
            return
        self._depth["inside"] = max(0, self._depth["inside"] - 1)
        if began >= 0 and phase:
            seconds = self._now() - began
            self._inside += seconds
            self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def exchange_begins(self) -> bool:
        """The device, and not the host, is about to wait for other ranks; for `exchange_ends`.

        In a backward this may be said by a thread of autograd's, for which the one that trains waits.
        """
        return self._cut_device(_ENCLOSING)

    def exchange_ends(self, began: bool) -> None:
        """The device need not wait any more."""
        if began:
            self._cut_device("communication")

    def _cut_device(self, phase: str) -> bool:
        if self.record is None or not (self._ours() or self._depth["backward"]):
            return False
        event = self.record()
        if event is not None:
            self._cuts.append((phase, event, 0.0))
        return event is not None

    def optimizer_begins(self) -> None:
        """Clipping and unscaling, since the backward, are the optimizer's."""
        if self._ours():
            self._cut("optimizer")

    def optimizer_ends(self, optimizer: int) -> bool:
        """A step is over if it is the optimizer whose steps count: the first that made one.

        Args:
            optimizer: its id.

        Returns:
            Whether a step is over.
        """
        if self._thread == 0:
            self._thread = threading.get_ident()
        if not self._ours():
            return False
        self._cut("optimizer")
        if self._optimizer not in (0, optimizer):
            return False
        self._optimizer = optimizer
        self._end_step()
        return True

    def restart(self, first: bool = False) -> None:
        """The next step is not to count: something of ours has taken time, or is about to.

        Args:
            first: whether it is the first one of a training that begins anew, perhaps after an error within a step.
        """
        if first:
            self._met_first, self._phases = False, {}
            self._optimizer = self._key = self._trained = 0
            self._depth = dict.fromkeys(self._depth, 0)
        self._started = False
        self._last = self._step_start = self._now()

    # --- the timeline ---

    def _ours(self) -> bool:
        return self._thread in (0, threading.get_ident())

    def _cut(self, phase: str) -> float:
        """Ends a segment; returns its seconds, without what was inside.

        Args:
            phase: "" for the rest, "data?" for a fetch that may be a validation's.
        """
        now = self._now()
        inside, self._inside = self._inside, 0.0
        seconds = max(0.0, now - self._last - inside)
        self._last = now
        if phase and phase != "data?":
            self._phases[phase] = self._phases.get(phase, 0.0) + seconds
        if self.record is not None and (event := self.record()) is not None:
            self._cuts.append((phase, event, inside))
        return seconds

    def _move(self, source: str, target: str, seconds: float) -> None:
        if seconds > 0:
            self._phases[source] -= seconds
            self._phases[target] = self._phases.get(target, 0.0) + seconds

    def _take_batch(self) -> None:
        if self._waited:
            self._phases["data"] = self._phases.get("data", 0.0) + self._waited
        if self._samples is not None and self._key:
            self._samples = self._samples + self._rows if self._rows_known else None
        self._waited, self._rows, self._rows_known = 0.0, 0, True
        self._rename("data")

    def _rename(self, phase: str) -> None:
        """Says what the fetches since the last backward were."""
        if self._cuts:
            self._cuts = [(phase if one == "data?" else one, event, inside) for one, event, inside in self._cuts]

    def _end_step(self) -> None:
        if self._key == self._trained:  # fetched ahead
            self._take_batch()
        step = Step(self._last - self._step_start, self._phases, self._samples or None)
        cuts = self._cuts
        if not self._met_first:
            self._met_first = True
            # Without a loader nobody knows where the first forward began.
            own = ("forward", "backward", "optimizer", "communication") if self._key else ("backward", "optimizer")
            self.first_work = sum(self._phases.get(name, 0.0) for name in own)
        self._step_start, self._phases, self._samples, self._cuts = self._last, {}, 0, []
        started, self._started = self._started, True
        if self.record is None or not cuts:
            if started:
                self._done(step)
            return
        before, self._before = self._before, cuts[-1][1]
        if started and before is not None:
            self._pending.append((before, cuts, step))
        self.resolve()

    def resolve(self) -> None:
        """Hands over the steps that the device has come to."""
        while self._pending:
            before, cuts, step = self._pending[0]
            reached = cuts[-1][1].query()
            if not reached and len(self._pending) <= MOST_PENDING:
                return
            del self._pending[0]
            self._done(_on_device(before, cuts, step) if reached else step)


def _on_device(before: Event, cuts: list[tuple[str, Event, float]], step: Step) -> Step:
    """The same step as the device saw it: what the host did while the device was still at work costs nothing."""
    phases = {name: seconds for name, seconds in step.phases.items() if name in ("copy", "communication", "checkpoint")}
    total, last = 0.0, before
    waited = step.phases.get("communication", 0.0)
    for phase, event, inside in _named(cuts):
        seconds = max(0.0, last.elapsed_time(event) / 1000.0)
        total, last = total + seconds, event
        if phase and phase != "data?":
            phases[phase] = phases.get(phase, 0.0) + max(0.0, seconds - inside)
    if waited:  # it was estimated as a part of the backward, or lies inside of it
        phases["backward"] = max(0.0, phases.get("backward", 0.0) - waited)
    spent = sum(phases.values())
    if spent > total > 0:  # what the host waited for inside, the device has partly worked through
        phases = {name: seconds * total / spent for name, seconds in phases.items()}
    return step.replace(seconds=total, phases=phases)


def _named(cuts: list[tuple[str, Event, float]]) -> list[tuple[str, Event, float]]:
    """The same cuts; those inside of a phase have its name."""
    found, enclosing = [], ""
    for phase, event, inside in reversed(cuts):
        if phase not in (_ENCLOSING, "communication"):
            enclosing = phase
        found.append((enclosing if phase == _ENCLOSING else phase, event, inside))
    return found[::-1]
