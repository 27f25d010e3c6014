"""Ways to average a message over all ranks. Each adds the same numbers as an all-reduce, in another order.

`hierarchical` sums inside each host first, so that every rank sends between hosts only its share of what its host has:
2 (N-1)/N of the message for each of N hosts, where an all-reduce of n ranks sends 2 (n-1)/n over the same link (the bound
is that of Patarasuk and Yuan, 2009). `direct` sends every rank's share to the one that sums it: two steps in all, for
small messages. `bf16` is hierarchical, and rounds to 16 bits what passes between hosts; it is summed in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..ground.exchanges import meeting_store
from ..ground.torch_private import gather_into
from .host_layout import HostLayout
from .stage_threads import StageThreads

_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Message:
    """A part of a bucket on its way: `buffer` is replaced by the average over all ranks.

    shard: this rank's share of what its host has, in the memory of `buffer` where that is all of it.
    wire: the shard as it passes between hosts, where that is in fewer bits.
    """

    buffer: torch.Tensor
    shard: torch.Tensor | None = None
    wire: torch.Tensor | None = None


class Peers:
    """Some ranks, which only one thread of each may use at a time.

    A group of gloo's own, which torch's registry does not know: its members alone make it, letting go of it closes it.

    Args:
        store: of the process group, with a prefix that no one else uses.
        ranks: who belongs to it; numbers within that process group.
    """

    def __init__(self, store: Any, ranks: Sequence[int], rank: int, timeout: timedelta) -> None:
        self.size = len(ranks)
        self._group: Any = dist.ProcessGroupGloo(store, ranks.index(rank), len(ranks), timeout) if self.size > 1 else None

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sums a tensor over the ranks, in place."""
        if self._group is not None:
            self._group.allreduce([tensor]).wait()

    def sum_shares(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's share of the sum; the shares of all ranks are `tensor`, with zeros at its end if they don't divide.

        Numbers of 16 bits are summed in 32.
        """
        whole = padded(tensor, self.size)
        if self._group is None:
            return whole.clone()
        parts = torch.empty_like(whole)
        self._group.alltoall_base(parts, whole, [], []).wait()
        rows = parts.view(self.size, -1)
        return rows.sum(0, dtype=torch.float32) if tensor.dtype in _HALVES else rows.sum(0)

    def gather(self, tensor: torch.Tensor, share: torch.Tensor) -> None:
        """Puts the ranks' shares together in `tensor`; all ranks then have the same."""
        if self._group is None:
            tensor.copy_(share[: tensor.numel()])
            return
        even = tensor.numel() == share.numel() * self.size
        whole = tensor if even else tensor.new_empty(share.numel() * self.size)
        gather_into(self._group, whole, share)
        if not even:
            tensor.copy_(whole[: tensor.numel()])


def padded(tensor: torch.Tensor, parts: int) -> torch.Tensor:
    """A flat tensor with zeros at its end so that it has equal parts; itself where it has them."""
    missing = -tensor.numel() % parts
    return torch.cat([tensor, tensor.new_zeros(missing)]) if missing else tensor


class Algorithms:
    """The ways that a layout has, each with its own threads and groups, which are made when it is first used.

    Args:
        layout: of the process group.
        rank: this one, within the group.
        store: of the group; a prefix is put before all keys.
        timeout: after which a call fails that waits for another rank.
    """

    def __init__(self, layout: HostLayout, rank: int, store: Any, timeout: timedelta) -> None:
        self._layout, self._rank, self._store, self._timeout = layout, rank, store, timeout
        self._made: dict[str, StageThreads[Message]] = {}

    def names(self, bf16: bool) -> list[str]:
        """Ways that this layout has, besides DDP's own."""
        names = ["direct"]
        if self._layout.even and self._layout.shared:
            names.append("hierarchical")
        return [*names, "bf16"] if bf16 else names

    def make(self, names: Iterable[str]) -> None:
        """Makes the groups of some ways. Collective."""
        for name in names:
            self._made[name] = StageThreads(self._stages(name))

    def average(self, name: str, buffer: torch.Tensor, done: Callable[[BaseException | None], None]) -> None:
        """Begins to replace a flat tensor by its average over all ranks, which `make` was called for.

        Args:
            done: called from another thread when that is over, with the error if it has failed.
        """
        self._made[name].give(Message(buffer), done)

    def close(self) -> None:
        """Ends the threads; their groups go with them."""
        for threads in self._made.values():
            threads.close()
        self._made = {}

    def _peers(self, name: str, ranks: Sequence[int]) -> Peers:
        key = f"{name}/{'.'.join(map(str, ranks))}"
        return Peers(dist.PrefixStore(key, self._store), ranks, self._rank, self._timeout)

    def _stages(self, name: str) -> list[Callable[[Message], None]]:
        layout, rank = self._layout, self._rank
        everyone = range(layout.world)
        if name == "direct":
            return [_directly(self._peers(name, everyone), layout.world)]
        split = layout.even and layout.shared
        ranks = layout.across(rank) if split else everyone
        # Each stage has a group of its own: calls of two threads in one would meet in another order on another rank.
        first: Callable[[Message], None] = _whole(layout.world)
        last: Callable[[Message], None] = _back
        if split:
            first = _inside(self._peers(f"{name}/in", layout.neighbours(rank)), layout.world)
            last = _outside(self._peers(f"{name}/out", layout.neighbours(rank)))
        if name != "bf16":
            return [first, _between(self._peers(f"{name}/between", ranks)), last]
        between = _swapped if len(ranks) == 2 else _in_two_steps
        return [_both(first, _rounded), *between(lambda step: self._peers(f"{name}/{step}", ranks), last)]


def _directly(peers: Peers, world: int) -> Callable[[Message], None]:
    def work(message: Message) -> None:
        share = peers.sum_shares(message.buffer).div_(world)
        peers.gather(message.buffer, share.to(message.buffer.dtype))

    return work


def _inside(peers: Peers, world: int) -> Callable[[Message], None]:
    def work(message: Message) -> None:
        # Divided before it is sent on: a sum of half-precision numbers over all ranks could overflow.
        message.shard = peers.sum_shares(message.buffer).div_(world).to(message.buffer.dtype)

    return work


def _whole(world: int) -> Callable[[Message], None]:
    def work(message: Message) -> None:
        message.shard = message.buffer.div_(world)

    return work


def _between(peers: Peers) -> Callable[[Message], None]:
    def work(message: Message) -> None:
        assert message.shard is not None
        peers.all_reduce(message.shard)

    return work


def _rounded(message: Message) -> None:
    assert message.shard is not None
    message.wire = message.shard if message.shard.dtype in _HALVES else message.shard.to(torch.bfloat16)


def _swapped(peers: Callable[[str], Peers], last: Callable[[Message], None]) -> list[Callable[[Message], None]]:
    """Between two hosts: each gives the other all it has, and both add the same two; as many bytes as in two steps."""
    other = peers("swap")

    def swap(message: Message) -> None:
        assert message.wire is not None
        both = message.wire.new_empty(2 * message.wire.numel())
        other.gather(both, message.wire)
        message.wire = both

    def add(message: Message) -> None:
        assert message.wire is not None and message.shard is not None
        message.shard.copy_(message.wire.view(2, -1).sum(0, dtype=torch.float32))
        last(message)

    return [swap, add]


def _in_two_steps(peers: Callable[[str], Peers], last: Callable[[Message], None]) -> list[Callable[[Message], None]]:
    """Between several hosts: each sums its share, in 32 bits, while the sums of the message before go around."""
    summing, spreading = peers("sum"), peers("spread")

    def add(message: Message) -> None:
        assert message.wire is not None
        sums = summing.sum_shares(message.wire)
        message.wire = sums.to(message.wire.dtype)  # also a rank's own is rounded: all go on with the same numbers

    def spread(message: Message) -> None:
        assert message.wire is not None and message.shard is not None
        whole = message.wire.new_empty(message.shard.numel())
        spreading.gather(whole, message.wire)
        message.wire = whole

    def end(message: Message) -> None:
        assert message.wire is not None and message.shard is not None
        message.shard.copy_(message.wire)
        last(message)

    return [add, spread, end]


def _both(one: Callable[[Message], None], other: Callable[[Message], None]) -> Callable[[Message], None]:
    def work(message: Message) -> None:
        one(message)
        other(message)

    return work


def _outside(peers: Peers) -> Callable[[Message], None]:
    def work(message: Message) -> None:
        assert message.shard is not None
        peers.gather(message.buffer, message.shard)

    return work


def _back(message: Message) -> None:
    """The shard is the buffer itself."""


def store_of(prefix: str) -> Any:
    """The store of the default process group, with a prefix."""
    return dist.PrefixStore(prefix, meeting_store())
