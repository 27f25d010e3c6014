"""Sums over hosts in a fraction of the bytes: numbers of eight or four bits, each block of them with a scale of its own.

A sum goes as in a ring's two halves: every host gets its share of what all others have, adds that up in float32, and gives
the sum to all. Both times numbers are rounded to multiples of a 127th, or a 7th, of the largest of their block. What a
host's rounding has lost is added to what it gives next (error feedback: "Error Feedback Fixes SignSGD", Karimireddy et al.,
2019).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLOCK = 256  # numbers that share a scale
_SCALE = 4  # bytes of it, a float32, after its block's numbers
BITS = (8, 4)


class FewBits:
    """One host's part in sums of vectors of one size.

    Args:
        group: of one rank a host; those ranks alone make one of these.
        size: of the vectors, float32.
        bits: of a number, one of `BITS`.

    lost: what rounding has kept back so far, float32 [size].
    sent: bytes that this host has given to others.
    """

    def __init__(self, group: Any, size: int, device: torch.device, bits: int) -> None:
        self._group, self._size, self._bits = group, size, bits
        self._hosts, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self._share = -(-size // (self._hosts * BLOCK)) * BLOCK  # numbers of each host's share, the last ones padded
        self.lost = torch.zeros(size, device=device)
        self.sent = 0

    def sum(self, flat: torch.Tensor) -> torch.Tensor:
        """The sum over all hosts, the same bits on each. Collective. All numbers must be finite."""
        whole = flat.new_zeros(self._hosts * self._share)
        whole[: self._size] = flat + self.lost
        given = packed(whole, self._bits)
        kept = whole.sub_(unpacked(given, self._bits))
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self._group)
        own = unpacked(taken, self._bits).view(self._hosts, self._share).sum(0)
        told = packed(own, self._bits)
        # The rounding of the sum is made up for by the host that has made it.
        start = self._rank * self._share
        kept[start : start + self._share] += own - unpacked(told, self._bits)
        self.lost = kept[: self._size]
        lines = [torch.empty_like(told) for _ in range(self._hosts)]
        dist.all_gather(lines, told, group=self._group)
        self.sent += (self._hosts - 1) * (given.numel() // self._hosts + told.numel())
        return unpacked(torch.cat(lines), self._bits)[: self._size]


def packed(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes: for each block its numbers as multiples of a scale, of four bits two in a byte, and the scale.

    Args:
        numbers: float32 [n], n a multiple of `BLOCK`, finite.
    """
    blocks = numbers.view(-1, BLOCK)
    most = 2 ** (bits - 1) - 1
    scale = blocks.abs().amax(1, keepdim=True) / most
    # A block of zeros, or of numbers so small that a scale of them is none, is one of zeros.
    small = blocks.div(scale.clamp(min=torch.finfo(torch.float32).tiny)).round_().clamp_(-most, most).to(torch.int8)
    held = small.view(torch.uint8)
    if bits == 4:
        above = (small + 8).view(torch.uint8)  # 1 to 15
        held = above[:, : BLOCK // 2] * 16 + above[:, BLOCK // 2 :]
    return torch.cat([held, scale.view(torch.uint8)], 1).view(-1)


def unpacked(lines: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of `packed`, up to half a scale."""
    size = BLOCK * bits // 8
    blocks = lines.view(-1, size + _SCALE)
    scale, held = blocks[:, size:].contiguous().view(torch.float32), blocks[:, :size].contiguous()
    small = held.view(torch.int8) if bits == 8 else torch.cat([held // 16, held % 16], 1).to(torch.int8) - 8
    return (small.float() * scale).view(-1)
