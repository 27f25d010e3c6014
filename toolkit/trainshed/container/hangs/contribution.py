"""This host's part of a hang report while it is being made: the stacks, and what flight recorders have written."""

from __future__ import annotations

import time

from ..launchers.flight_recorder import ask_for_dump
from .hang_report import part_of
from .recorder import DUMP_SECONDS, dump_file, summary, written_since

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..supervisor.watcher import Supervised
    from .hang_report import HostReport
    from .sample import Sample


class Contribution:
    """A part in the making.

    number: of host 0's request, 0 for a report of this host alone.
    samples: one for each rank, None until all have been looked at.
    """

    def __init__(self, number: int, run: Supervised) -> None:
        """Asks the flight recorders of all ranks to write down their collectives."""
        self.number = number
        self.samples: list[Sample] | None = None
        self._asked = time.time()  # seconds since the epoch, as the files' times
        self._dumps = {
            rank.spec.rank: dump_file(rank.spec.env, rank.spec.rank)
            for rank in run.ranks
            if rank.alive and rank.spec.rank is not None and ask_for_dump(rank.spec.env, rank.spec.rank)
        }

    def ready(self) -> bool:
        """Returns whether all ranks were looked at, and the flight recorders have written or had the time to."""
        if self.samples is None:
            return False
        if time.time() - self._asked > DUMP_SECONDS:
            return True
        # A file that is still being written cannot be read yet.
        return all(written_since(path, self._asked) and summary(path) for path in self._dumps.values() if path)

    def part(self, host: str, still: bool, gave_up: frozenset[int | None] = frozenset()) -> HostReport:
        """The part.

        Args:
            still: whether this host has said that its ranks stand still.
            gave_up: ranks in which a collective has timed out.
        """
        samples = self.samples or []
        moved = not still and any(sample.reading is not None for sample in samples)
        collectives = {rank: summary(path) for rank, path in self._dumps.items() if written_since(path, self._asked)}
        return part_of(host, samples, moved, len(self._dumps), collectives, gave_up)
