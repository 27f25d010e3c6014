"""Which ranks hold up the others just now, from the paces that all of them tell. Pure: no clock, no files.

A rank is behind when nearly all of its last blocks took longer, by what counts of a step, than nearly all of the others',
and the others wait about as long. So one block of many, whatever it holds, makes no rank slow: an evaluation or a
checkpoint of one rank, batches of unequal lengths, a machine that is busy for a moment.
"""

from __future__ import annotations

import statistics

from trainshed.base.record import Record

from .pace import KEPT, own_part
from .steps import PHASES, phase_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .pace import Pace

BEHIND = 0.2  # of a step: what a rank needs more than the others, from which on it is named
LEVEL = 0.1  # the same, up to which it keeps up again
ROUNDS = 2  # in a row with the same answer; every rank has ended one more block in each
MOST_EPISODES = 200  # of a run that are remembered
_REASONS = {  # NVML's clock event reasons (nvml.h) that hold a GPU's clock down without anybody having asked for it
    0x4: "its power cap",
    0x8: "a slowdown of the hardware",
    0x20: "its temperature",
    0x40: "its temperature",
    0x80: "its power supply",
}


class Around(Record):
    """The facts about a host while its ranks train.

    stolen: the part of its CPU time that other machines on the same hardware take, from 0 to 1.
    throttled: by number of a GPU what holds its clock down, NVML's bits.
    """

    stolen: float = 0.0
    throttled: dict[int, int] = {}  # noqa: RUF012


class Change(Record):
    """A rank that falls behind, or keeps up again.

    behind: which of both. step: how many steps it has made. text: for people.
    """

    rank: int
    host: str
    behind: bool
    step: int
    text: str


class Episode(Record):
    """For how long a rank was behind.

    phase: what it takes longer for, by names of `steps.PHASES`. begin, end: steps of the job; end 0 while it goes on.
    """

    rank: int
    host: str
    phase: str
    begin: int
    end: int = 0


class Lagging:
    """The ranks of one job.

    episodes: who was behind when, in the order of their beginnings.
    """

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._judged: dict[int, tuple[int, int]] = {}  # by rank: process and blocks when its last round was made
        self._rounds: dict[int, int] = {}  # by rank: how often in a row it was not what it is said to be
        self._behind: dict[int, int] = {}  # ranks that were named: their place in `episodes`, -1 for none

    def take(self, paces: Iterable[Pace], around: Mapping[str, Around]) -> list[Change]:
        """Returns what has changed. Nothing is judged before every rank has ended a block since the last time.

        Args:
            paces: the latest of all ranks.
            around: by host.
        """
        ranks = {pace.rank: pace for pace in paces}
        world = {pace.world for pace in ranks.values()}
        if len(world) != 1 or len(ranks) < 2 or len(ranks) != world.pop():
            return []
        now = {rank: (pace.pid, pace.blocks) for rank, pace in ranks.items()}
        if {rank: pid for rank, (pid, _) in now.items()} != {rank: pid for rank, (pid, _) in self._judged.items()}:
            self._judged, self._rounds, self._behind = now, {}, {}  # other processes: an attempt begins
            return []
        if any(now[rank][1] <= blocks for rank, (_, blocks) in self._judged.items()):
            return []
        self._judged = now
        if min(len(pace.own) for pace in ranks.values()) < KEPT:
            return []
        return [change for pace in ranks.values() if (change := self._judge(pace, ranks, around)) is not None]

    def _judge(self, pace: Pace, ranks: Mapping[int, Pace], around: Mapping[str, Around]) -> Change | None:
        others = [one for one in ranks.values() if one.rank != pace.rank]
        named = pace.rank in self._behind
        differs = _keeps_up(pace, others) if named else _is_behind(pace, others)
        self._rounds[pace.rank] = rounds = self._rounds.get(pace.rank, 0) + 1 if differs else 0
        if rounds < ROUNDS:
            return None
        self._rounds[pace.rank] = 0
        who = f"rank {pace.rank} on {pace.host}"
        if named:
            place = self._behind.pop(pace.rank)
            if place >= 0:
                self.episodes[place] = self.episodes[place].replace(end=pace.step)
            return Change(
                pace.rank, pace.host, False, pace.step, f"{who} keeps up with the others again, at step {pace.step}"
            )
        phase, text = _finding(pace, others, around.get(pace.host, Around()))
        self._behind[pace.rank] = len(self.episodes) if len(self.episodes) < MOST_EPISODES else -1
        if self._behind[pace.rank] >= 0:
            self.episodes.append(Episode(pace.rank, pace.host, phase, pace.step))
        return Change(pace.rank, pace.host, True, pace.step, f"{who} {text}")


def _is_behind(pace: Pace, others: list[Pace]) -> bool:
    """Nearly all of its blocks are longer than nearly all of the others', who wait for it."""
    least = sorted(pace.own)[1]
    most = statistics.median(sorted(one.own)[-2] for one in others)
    gain = least - most
    # Where ranks do not wait for each other at all, none holds up the others.
    waited = statistics.median(one.phases["communication"] for one in others)
    return gain >= BEHIND * pace.length and waited >= gain / 3


def _keeps_up(pace: Pace, others: list[Pace]) -> bool:
    own = statistics.median(pace.own)
    return own - statistics.median(statistics.median(one.own) for one in others) <= LEVEL * pace.length


def _finding(pace: Pace, others: list[Pace], around: Around) -> tuple[str, str]:
    """The phase in which the difference lies, and all that is known of it."""
    own, usual = (own_part(one, sum(one.values())) for one in (pace.phases, _median(others)))
    gain = max(own - usual, 0.0)
    excess = {
        name: pace.phases[name] - _median(others)[name] for name in PHASES if name not in ("communication", "checkpoint")
    }
    phase = max(excess, key=lambda name: excess[name])
    text = (
        f"holds up the others, at step {pace.step}: it needs {_time(own)} for a step, "
        f"they {_time(usual)} and then wait for it; the difference is in its {phase_in_words(phase)}"
    )
    because = [*_of_cpu(pace, others, gain), *_of_machine(pace, around)]
    return phase, "; ".join([text, *because])


def _of_cpu(pace: Pace, others: list[Pace], gain: float) -> list[str]:
    if pace.queued is not None:
        queued = statistics.median(one.queued or 0.0 for one in others)
        if pace.queued - queued >= gain / 2:
            return [
                f"for {_time(pace.queued)} of a step it has no CPU: other processes have it, or its CPU limit is reached"
            ]
    if pace.cpu is None:
        return []
    used, usual = pace.cpu, statistics.median(one.cpu or 0.0 for one in others)
    if used - usual >= gain / 2:
        return [f"it computes more: {_time(used)} of CPU time a step, they {_time(usual)}"]
    if used - usual <= gain / 4:
        return ["it computes no more than they do: it sleeps, or waits for something outside of the job"]
    return []


def _of_machine(pace: Pace, around: Around) -> list[str]:
    found = []
    if around.stolen >= 0.1:
        found.append(f"{100 * around.stolen:.0f} % of its host's CPU time goes to other machines (steal)")
    bits = around.throttled.get(pace.local, 0)
    reasons = dict.fromkeys(words for bit, words in _REASONS.items() if bits & bit)
    if reasons:
        found.append(f"its GPU's clock is held down by {' and '.join(reasons)}")
    return found


def _median(paces: list[Pace]) -> dict[str, float]:
    return {name: statistics.median(one.phases[name] for one in paces) for name in PHASES}


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
