"""Which ranks of a process group share a host."""

from __future__ import annotations

import os
import socket
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HostLayout:
    """The ranks of a group by host.

    hosts: for each host the ranks on it (numbers within the group, ascending), in the order of their first ranks.
    """

    hosts: tuple[tuple[int, ...], ...]

    @property
    def world(self) -> int:
        """Ranks of all hosts."""
        return sum(len(ranks) for ranks in self.hosts)

    @property
    def even(self) -> bool:
        """Tells whether all hosts have equally many ranks."""
        return len({len(ranks) for ranks in self.hosts}) == 1

    @property
    def shared(self) -> bool:
        """Tells whether a host has several ranks."""
        return any(len(ranks) > 1 for ranks in self.hosts)

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The ranks on this rank's host, itself included."""
        return next(ranks for ranks in self.hosts if rank in ranks)

    def across(self, rank: int) -> tuple[int, ...]:
        """The ranks that have this rank's place on their hosts, one of each; only for an even layout."""
        place = self.neighbours(rank).index(rank)
        return tuple(ranks[place] for ranks in self.hosts)

    def text(self) -> str:
        """For a person: `2 hosts of 4 ranks`."""
        counts = sorted({len(ranks) for ranks in self.hosts})
        each = f"{counts[0]} rank{'s' * (counts[0] != 1)}" if self.even else f"{counts[0]} to {counts[-1]} ranks"
        return f"{len(self.hosts)} host{'s' * (len(self.hosts) != 1)} of {each}"


def layout_of(names: Sequence[Hashable]) -> HostLayout:
    """The layout of a group.

    Args:
        names: for each rank of the group what its host is called, or its number.
    """
    found: dict[Hashable, list[int]] = {}
    for rank, name in enumerate(names):
        found.setdefault(name, []).append(rank)
    return HostLayout(tuple(tuple(ranks) for ranks in found.values()))


def found_layout(hosts: Sequence[int] | None, group: Any = None) -> HostLayout:
    """The layout of a process group. Collective, unless `hosts` says it.

    Args:
        hosts: for each rank of the group the number of its host; None: by `GROUP_RANK` (torchrun sets it), else by the names
            of hosts.
        group: the default group if it is None.

    Raises:
        ValueError: `hosts` has not one number for each rank.
    """
    import torch.distributed as dist

    world = dist.get_world_size(group)
    if hosts is not None and len(hosts) != world:
        raise ValueError(f"hosts has {len(hosts)} numbers for {world} ranks")
    names: list[Any] = list(hosts) if hosts is not None else [None] * world
    if hosts is None:
        dist.all_gather_object(names, os.environ.get("GROUP_RANK") or socket.gethostname(), group=group)
    return layout_of(names)
