"""Which ranks hold up the others: from what all ranks are doing to one sentence, and to a few lines for the console."""

from __future__ import annotations

from trainshed.base.record import Record

from .activity import COLLECTIVE, ENDED, GAVE_UP, UNKNOWN, WAITING, WORK, Activity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_GROUPS = 7  # lines on the console
MOST_NAMED = 3  # groups of stragglers in the sentence


class Where(Record):
    """A rank (None for a program without ranks), its host, and what it is doing."""

    rank: int | None
    host: str
    activity: Activity


class HangVerdict(Record):
    """Which ranks the others wait for.

    sentence: `rank 3 on algo-2 is in data loading at train.py:41 while ranks 0, 1, 2 wait in all_reduce at train.py:60`.
    stragglers: those ranks, empty if none stands out.
    """

    sentence: str
    stragglers: tuple[Where, ...] = ()


def judge(everyone: Iterable[Where]) -> HangVerdict:
    """Names the ranks that the others wait for, or have waited for: those outside the collective that most ranks are in.

    If no rank is in a collective (on GPUs a rank waits at the line that next needs a result): those that are not where
    more than half of the ranks are. If all are in one place, or none stands out, the sentence says so.
    """
    all_ranks = sorted(everyone, key=lambda where: (-1 if where.rank is None else where.rank, where.host))
    if not all_ranks:
        return HangVerdict("no rank is running")
    groups = grouped(all_ranks)
    waiting = [group for group in groups if group[0].activity.kind in WAITING]
    if len(all_ranks) == 1:
        return HangVerdict(_clause(all_ranks, named=True))
    same = [group for group in groups if group[0].activity.kind != GAVE_UP] or groups
    if len(same) == 1 and (len(groups) == 1 or waiting == groups):
        cause = (
            ": no rank is late; the cause is the network, sizes that differ, or a rank that is one call behind"
            if waiting
            else ""
        )
        others = "all ranks" if len(groups) == 1 else "all other ranks"
        return HangVerdict(f"{others} {same[0][0].activity.words(True)}{cause}")
    most = waiting[0] if waiting else groups[0]
    late = [group for group in groups if group[0].activity.kind not in WAITING] if waiting else groups[1:]
    if any(group[0].activity.kind == GAVE_UP for group in waiting):
        # One that shows no stack then is on its way out, too, most likely, and its words are not read yet.
        late = [group for group in late if group[0].activity.kind != UNKNOWN] or late
    if not waiting and 2 * len(most) <= len(all_ranks):
        late = []
    collectives = [group for group in waiting if group[0].activity.kind == COLLECTIVE]
    if not late and len(collectives) > 1 and len(collectives[0]) > len(collectives[1]):
        late, most = collectives[1:], collectives[0]
    if not late:
        return HangVerdict("the ranks are at different places: " + _clauses(groups))
    sentence = f"{_clauses(late)} while {_clause(most, named=False)}"
    return HangVerdict(sentence, tuple(where for group in late for where in group))


def grouped(everyone: Iterable[Where]) -> list[list[Where]]:
    """Groups of ranks that do the same at the same place, the largest first."""
    groups: dict[Activity, list[Where]] = {}
    for where in everyone:
        groups.setdefault(where.activity, []).append(where)
    return sorted(groups.values(), key=len, reverse=True)


def lines(everyone: Iterable[Where]) -> list[str]:
    """One line a group, for the console."""
    groups = grouped(everyone)
    shown = [f"  {_clause(group, named=len(group) == 1)}" for group in groups[:MOST_GROUPS]]
    more = sum(len(group) for group in groups[MOST_GROUPS:])
    return [*shown, f"  and {more} rank(s) elsewhere"] if more else shown


def _clauses(groups: list[list[Where]]) -> str:
    named = ", ".join(_clause(group, named=True) for group in groups[:MOST_NAMED])
    more = sum(len(group) for group in groups[MOST_NAMED:])
    return f"{named} and {more} more elsewhere" if more else named


def _clause(group: list[Where], *, named: bool) -> str:
    """`rank 3 on algo-2 is at train.py:41`; the hosts only where asked for."""
    numbers = [where.rank for where in group if where.rank is not None]
    if numbers:
        who = f"rank{'s' * (len(group) > 1)} {ranges(numbers)}"
    else:
        who = "the script" if len(group) == 1 else f"{len(group)} scripts"
    hosts = list(dict.fromkeys(where.host for where in group))
    if named and len(hosts) <= 2:
        who += f" on {' and '.join(hosts)}"
    return f"{who} {group[0].activity.words(len(group) > 1)}"


def ranges(numbers: list[int]) -> str:
    """`0, 1, 2`, or `0-6, 9` for more than four numbers."""
    if len(numbers) <= 4:
        return ", ".join(map(str, numbers))
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] + 1 == number:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts[:8])
    return shown + (", ..." if len(parts) > 8 else "")


def hint(verdict: HangVerdict) -> str:
    """Says what the user can do about it."""
    kinds = {where.activity.kind for where in verdict.stragglers}
    if COLLECTIVE in kinds:
        return "the ranks have taken different paths through the script: all of them have to make the same calls in order"
    if ENDED in kinds:
        return "a rank has ended while others still need it: every rank has to make the same number of steps"
    if WORK in kinds:
        return "find out what that rank waits for; the report has the stacks of all threads of all ranks"
    return "the report has the stacks of all threads of all ranks"
