"""Which positions of a sequence belong to which rank.

The sequence is cut into twice as many chunks as there are ranks, and rank i has chunk i from the front and chunk i from the
back: under a causal mask the last positions have most to do, and so all ranks have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def laid_out_as(like: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with its axes in memory as those of `like` lie there: in that order torch draws random numbers for it."""
    strides = like.stride()
    order = sorted(range(like.ndim), key=lambda axis: (-strides[axis], axis))
    back = sorted(range(like.ndim), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


@dataclass(frozen=True)
class Slices:
    """A sequence of `length` positions on `ranks` ranks. Chunks differ by one position at most."""

    length: int
    ranks: int

    @property
    def fits(self) -> bool:
        """Tells whether each chunk has a position."""
        return self.length >= 2 * self.ranks

    @property
    def largest(self) -> int:
        """Positions of the rank that has most."""
        return max(self.size(rank) for rank in range(self.ranks))

    def ranges(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """First position, and the one after the last, of both chunks of a rank."""
        back = 2 * self.ranks - 1 - rank
        return (self._start(rank), self._start(rank + 1)), (self._start(back), self._start(back + 1))

    def size(self, rank: int) -> int:
        """Positions of a rank."""
        return sum(stop - start for start, stop in self.ranges(rank))

    def of(self, tensor: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
        """A rank's part of a tensor that has the sequence along `axis`."""
        parts = [tensor.narrow(axis, start, stop - start) for start, stop in self.ranges(rank)]
        return laid_out_as(tensor, torch.cat(parts, axis))

    def joined(self, parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        """The whole of the parts of all ranks, which may be longer than they need be."""
        front, back = [], []
        for rank, part in enumerate(parts):
            (start, stop), (other_start, other_stop) = self.ranges(rank)
            front.append(part.narrow(axis, 0, stop - start))
            back.append(part.narrow(axis, stop - start, other_stop - other_start))
        return torch.cat([*front, *reversed(back)], axis)

    def _start(self, chunk: int) -> int:
        return chunk * self.length // (2 * self.ranks)
