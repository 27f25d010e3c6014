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
    """

    ranks: int = 0
    inside: Link = field(default_factory=Link)
    between: Link = field(default_factory=Link)

    def spans(self, groups: Iterable[Sequence[int]]) -> bool:
        """Whether one of these groups of ranks has several hosts."""
        return bool(self.ranks) and any(len({rank // self.ranks for rank in group}) > 1 for group in groups)

    def link(self, groups: Iterable[Sequence[int]]) -> Link:
        """The slowest link in these groups of ranks."""
        return self.inside if self.ranks and not self.spans(groups) else self.between


def link_of(gbits: float) -> Link:
    """A link of so many Gbit/s, with the latency of gloo within a host."""
    return Link(bandwidth=gbits * 1e9 / 8)
