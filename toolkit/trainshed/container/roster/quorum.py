"""Which part of an elastic job goes on when its hosts cannot reach each other: never two of them.

A *view* is the set of hosts that make up the job, as host numbers. The leader tells every host each new view; the old one
counts until all hosts of the new one have taken it. A part of the job goes on if it is in the right by every view that one
of its hosts may still have:

    the leader's part   holds at least half of the view's living hosts
    any other part      holds more than half of them, and then makes a new view under a new leader

Two parts cannot both do that. Only a leader whose process has certainly ended (`ElasticMember.fell`) is not among the
living; silence may be the network's.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Set

View = frozenset[int]


def in_the_right(views: Iterable[View], there: Set[int], dead: Set[int], leader: int | None) -> bool:
    """Returns whether a part of the job may go on by itself.

    Args:
        views: every view that a host of this part may have.
        there: the hosts of this part.
        dead: hosts whose processes have certainly ended.
        leader: the leader that these views know, if it is in this part; None where they have lost it.
    """
    for view in views:
        living = view - dead
        here = len(living & there)
        if 2 * here < len(living) or (2 * here == len(living) and leader not in living):
            return False
    return True
