"""Which ranks share a host, and how fast the ranks of a group talk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .costs import Link


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job, which have their ranks in order.

    ranks: on each host; 0 where nobody has told, and all ranks talk as those of several hosts do.
    inside, between: how ranks of one host talk, and ranks of several.
    crowd: how many times longer work takes where all ranks of a host work than where one does.
    """

    ranks: int = 0
    inside: Link = field(default_factory=Link)
    between: Link = field(default_factory=Link)
    crowd: float = 1.0

    def spans(self, groups: Iterable[Sequence[int]]) -> bool:
        """Returns whether one of these groups of ranks has several hosts."""
        return bool(self.ranks) and any(len({rank // self.ranks for rank in group}) > 1 for group in groups)

    def link(self, groups: Iterable[Sequence[int]]) -> Link:
        """The slowest link in these groups of ranks."""
        return self.inside if self.ranks and not self.spans(groups) else self.between


def link_of(gbits: float, latency: float = 0.0, *, sums_all: bool = True) -> Link:
    """A link of so many Gbit/s, with a latency in seconds; 0 for that of gloo within a host.

    Args:
        sums_all: see `Link`.
    """
    return Link(latency or Link.latency, gbits * 1e9 / 8, sums_all)
