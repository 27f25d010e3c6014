"""How the ranks of a training loop agree at a step boundary on notices: whether to save, whether to stop.

A notice may reach one rank earlier than another, or only some of them. So no rank acts on what it has seen itself: after a
step all ranks compare, with one small all-reduce, and all act on the highest of what anybody has seen. Ranks of a fast
loop compare only every few steps; which ones is itself agreed on.

Checkpointer and Guard share this. It belongs to the loop's thread, and `agree` and `answer` are collective.
"""

from __future__ import annotations

import math
import os
import time

from trainshed.base.record import Record
from trainshed.contract.wire.notice import Acknowledgement, Notice, write_answer
from trainshed.contract.wire.variables import NOTICE_FILE

from .interrupt import Interrupts
from .readers import keep_readers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .ranks import Ranks

CHECK_SECONDS = 0.25  # the usual least time between two comparisons of several ranks


class Agreed(Record):
    """A decision that holds for all ranks after a step.

    stop: a notice wants the training to end here.
    save: a notice wants a checkpoint, and the training to go on.
    seconds_left: until the earliest deadline of a notice; infinite where there is none.
    highest: the highest of each value that the ranks have given to `agree`.
    """

    stop: bool
    save: bool
    seconds_left: float
    highest: tuple[float, ...]


class Agreement:
    """Notices of one training loop; all ranks construct it together.

    Args:
        say: prints a line for the user, on the first rank.
        check_seconds: how often, at most, several ranks compare.
    """

    def __init__(self, ranks: Ranks, say: Callable[[str], None], check_seconds: float = CHECK_SECONDS) -> None:
        self._ranks = ranks
        self._say = say
        self._check_seconds = check_seconds
        self._interrupts = Interrupts()
        keep_readers()
        self._notice: Notice | None = None  # the most urgent one
        self._save_wanted = False
        self._next_check = 0

    def due(self, step: int) -> bool:
        """Returns whether the ranks compare after this step; the answer is the same on all of them."""
        return step >= self._next_check

    def agree(self, step: int, step_seconds: float, values: Sequence[float]) -> Agreed:
        """Looks for notices and compares with the other ranks. Collective.

        Args:
            step_seconds: the usual length of a step on this rank.
            values: what else the caller wants to know the highest of, over all ranks; equally many on each.
        """
        self._look()
        notice = self._notice
        left = notice.seconds_left(time.time()) if notice else None
        stop, save, less, seconds, *highest = self._ranks.highest(
            [
                notice is not None and notice.stop,
                self._save_wanted,
                -math.inf if left is None else -left,
                step_seconds,
                *values,
            ]
        )
        self._next_check = step + 1
        if self._ranks.world_size > 1 and seconds > 0:
            self._next_check = step + max(1, int(self._check_seconds / seconds))
        return Agreed(stop=bool(stop), save=bool(save), seconds_left=-less, highest=tuple(highest))

    def saving(self) -> None:
        """The checkpoint that a notice wanted is being made."""
        self._save_wanted = False

    def answer(self, step: int, saved: str, checkpoint: str) -> None:
        """Tells the user and the supervisor that training stops after `step`. Collective.

        Args:
            saved: what became of the last checkpoint, for the user: `saved as ...`.
            checkpoint: its path, "" where none was made.
        """
        reasons = self._ranks.gather(self._notice.reason if self._notice else "")
        reason = next((text for text in reasons if text), "interrupted")
        self._say(f"stopping after step {step}: {reason}; {saved if checkpoint else 'not saved'}")
        path = os.environ.get(NOTICE_FILE, "")
        if path:
            answer = Acknowledgement(rank=self._ranks.rank, step=step, checkpoint=checkpoint, reason=reason)
            try:
                write_answer(path, answer)
            except OSError as error:
                self._say(f"the answer to the supervisor could not be written: {error.strerror}")

    def close(self) -> None:
        """SIGTERM ends the process again."""
        self._interrupts.close()

    def _look(self) -> None:
        """Takes all notices that have come to this rank."""
        notice = self._interrupts.look()
        while notice is not None:
            self._say(f"notice: {notice.reason}")
            self._save_wanted = self._save_wanted or not notice.stop
            if notice.stop or self._notice is None:
                self._notice = notice
            notice = self._interrupts.look()
