"""One look at all ranks of this host: asks for their stacks without waiting, and reads the answers when they are there."""

from __future__ import annotations

import time

from trainshed.base.record import Record

from .activity import COLLECTIVE, ENDED, UNKNOWN, Activity, activity
from .movement import RankProcesses, RankUsage, describe, moved, ranks_below, read
from .stacks import WAIT, StackRequest, ask, main_thread, same_place
from .stragglers import Where

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..supervisor.watcher import Process


class Sample(Record):
    """One look at one rank.

    text: the stacks of all its processes, for the report.
    place: the same without what differs between two looks at a process that stands still.
    reading: what it had used by then; None if it has ended.
    """

    where: Where
    text: str
    place: str
    reading: RankUsage | None = None


class Look:
    """Asks all ranks for their stacks; the samples are there when `done` is true."""

    def __init__(
        self, ranks: Sequence[Process], host: str, code_folder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.host = host
        self.code_folder = code_folder
        self.clock = clock
        self.until = clock() + WAIT
        self.ended = [rank for rank in ranks if not rank.alive]
        self.asked: list[tuple[RankProcesses, RankUsage, list[StackRequest]]] = []
        for process in ranks:
            if process.alive:
                for rank in ranks_below(process.pid, process.spec.rank):
                    self.asked.append((rank, read(rank, clock()), ask(list(rank.pids))))

    def done(self) -> bool:
        """Returns whether all ranks have answered, or had the time to."""
        # A list, so that `whole` is called for all of them: each notes by that when its answer stopped growing.
        return all([asked.whole() for _, _, answers in self.asked for asked in answers]) or self.clock() > self.until

    def samples(self) -> list[Sample]:
        """One sample for each rank."""
        ended = [
            Sample(Where(rank.spec.rank, self.host, Activity(ENDED, f"exit status {rank.returncode}")), "", "")
            for rank in self.ended
        ]
        return ended + [self._sample(rank, reading, answers) for rank, reading, answers in self.asked]

    def _sample(self, rank: RankProcesses, reading: RankUsage, answers: list[StackRequest]) -> Sample:
        texts = {asked.pid: asked.text() for asked in answers}
        # A shell script has no stack; its first Python process has.
        frames = next((frames for text in texts.values() if (frames := main_thread(text))), ())
        doing = activity(frames, self.code_folder) if frames else Activity(UNKNOWN, describe(rank.pid))
        parts = []
        for pid, text in texts.items():
            name = f"process {pid}" if pid == rank.pid else f"process {pid}, started by process {rank.pid}"
            parts.append(f"{name}:\n{text.rstrip() or describe(pid)}\n")
        return Sample(
            where=Where(rank.rank, self.host, doing),
            text="\n".join(parts) or f"process {rank.pid}: {describe(rank.pid)}\n",
            place="\n".join(same_place(text) for text in texts.values()),
            reading=reading,
        )


def anything_moved(before: list[Sample], after: list[Sample]) -> bool:
    """Returns whether any rank of this host moved between two looks; `movement.moved` says what counts."""
    earlier = {(sample.where.rank, sample.reading.pids[0] if sample.reading else 0): sample for sample in before}
    for sample in after:
        old = earlier.get((sample.where.rank, sample.reading.pids[0] if sample.reading else 0))
        if old is None or old.place != sample.place:
            return True
        waiting = old.where.activity.kind == sample.where.activity.kind == COLLECTIVE
        if (
            old.reading is not None
            and sample.reading is not None
            and moved(old.reading, sample.reading, in_place=bool(sample.place), waiting=waiting)
        ):
            return True
    return False
