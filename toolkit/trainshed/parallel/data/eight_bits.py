"""Sums over hosts in a quarter of the bytes: numbers of eight bits, each block of them with a scale of its own.

A sum goes as in a ring's two halves: every host gets its share of what all others have, adds that up in float32, and gives
the sum to all. Both times numbers are rounded to multiples of a 127th of the largest of their block. What a host's rounding
has lost is added to what it gives next (error feedback: "Error Feedback Fixes SignSGD", Karimireddy et al., 2019).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLOCK = 256  # numbers that share a scale
_LINE = BLOCK + 4  # bytes: the numbers, then their scale, a float32


class EightBits:
    """One host's part in sums of vectors of one size.

    Args:
        group: of one rank a host; those ranks alone make one of these.
        size: of the vectors, float32.

    lost: what rounding has kept back so far, float32 [size].
    sent: bytes that this host has given to others.
    """

    def __init__(self, group: Any, size: int, device: torch.device) -> None:
        self._group, self._size = group, size
        self._hosts, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self._share = -(-size // (self._hosts * BLOCK)) * BLOCK  # numbers of each host's share, the last ones padded
        self.lost = torch.zeros(size, device=device)
        self.sent = 0

    def sum(self, flat: torch.Tensor) -> torch.Tensor:
        """The sum over all hosts, the same bits on each. Collective. All numbers must be finite."""
        whole = flat.new_zeros(self._hosts * self._share)
        whole[: self._size] = flat + self.lost
        given = packed(whole)
        kept = whole.sub_(unpacked(given))
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self._group)
        own = unpacked(taken).view(self._hosts, self._share).sum(0)
        told = packed(own)
        # The rounding of the sum is made up for by the host that has made it.
        start = self._rank * self._share
        kept[start : start + self._share] += own - unpacked(told)
        self.lost = kept[: self._size]
        lines = [torch.empty_like(told) for _ in range(self._hosts)]
        dist.all_gather(lines, told, group=self._group)
        self.sent += (self._hosts - 1) * (given.numel() // self._hosts + told.numel())
        return unpacked(torch.cat(lines))[: self._size]


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """Bytes, [numbers / BLOCK * 260]: for each block its numbers as multiples of a scale, and the scale.

    Args:
        numbers: float32 [n], n a multiple of `BLOCK`, finite.
    """
    blocks = numbers.view(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    # A block of zeros, or of numbers so small that a scale of them is none, is one of zeros.
    small = blocks.div(scale.clamp(min=torch.finfo(torch.float32).tiny)).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat([small.view(torch.uint8), scale.view(torch.uint8)], 1).view(-1)


def unpacked(lines: torch.Tensor) -> torch.Tensor:
    """The inverse of `packed`, up to half a scale."""
    blocks = lines.view(-1, _LINE)
    scale = blocks[:, BLOCK:].contiguous().view(torch.float32)
    return (blocks[:, :BLOCK].contiguous().view(torch.int8).float() * scale).view(-1)
