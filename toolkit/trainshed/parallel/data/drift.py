"""Drift of step times: notices that they have become slower or faster for good, and seldom asks for more.

Pure: the times come from outside. Looks are some seconds apart; what is seen in one must be seen in the next one, too. Every
closer look makes the next one wait twice as long, until all has been quiet for a while: what comes and goes is not followed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

SLOWER, FASTER = 1.25, 0.8  # of what was achieved
FEWEST = 20  # steps whose median is compared
BETWEEN_LOOKS = 10.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 3600.0  # seconds after a decision without a closer look
_QUIET = 4  # pauses without a closer look, after which the next pause is the first again
_MOST_STEPS = 100_000  # between looks


class Steadiness:
    """The times of a training's steps when they were last looked at closely, and since."""

    def __init__(self) -> None:
        self.reference = 0.0  # seconds of a step
        self._pause = 0.0
        self._until = -math.inf
        self._suspected = ""

    def begin(self, reference: float, now: float) -> None:
        """Steps take so long from now on, as all was decided.

        Args:
            reference: seconds of a step.
            now: of a clock, in seconds.
        """
        self.reference, self._suspected = reference, ""
        quiet = now > self._until + _QUIET * self._pause
        self._pause = _FIRST_PAUSE if quiet else min(_LONGEST_PAUSE, 2 * self._pause)
        self._until = now + self._pause

    def changed(self, periods: Sequence[float], now: float) -> str:
        """`slower` or `faster` where a closer look is due, else "".

        Args:
            periods: seconds of the steps since the last look.
        """
        if len(periods) < FEWEST or not self.reference:
            return ""
        ratio = statistics.median(periods) / self.reference
        seen = "slower" if ratio > SLOWER else "faster" if ratio < FASTER else ""
        twice = bool(seen) and seen == self._suspected
        self._suspected = seen
        return seen if twice and now >= self._until else ""

    def steps_to_look(self) -> int:
        """Until the next look."""
        return int(max(FEWEST + 1, min(_MOST_STEPS, BETWEEN_LOOKS / max(self.reference, 1e-6))))
