"""Sums over hosts in a fraction of the bytes: numbers of eight or four bits, each block of them with a scale of its own.

A sum goes as in a ring's two halves: every host gets its share of what all others have, adds that up in float32, and gives
the sum to all. Both times numbers are rounded to multiples of a 127th, or a 7th, of the largest of their block. What a
host's rounding has lost is added to what it gives next (error feedback: "Error Feedback Fixes SignSGD", Karimireddy et al.,
2019).
"""

from __future__ import annotations

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .host_lines import Line, Stages

BLOCK = 64  # numbers that share a scale
SCALE = 2  # bytes of it, a bfloat16, after its block's numbers
BITS = (8, 4)


def rounded_sum(line: Line, flat: torch.Tensor, lost: torch.Tensor, bits: int) -> Stages[tuple[torch.Tensor, torch.Tensor]]:
    """The sum over all hosts, the same bits on each, and what rounding keeps back on this one. All numbers must be finite.

    Args:
        flat, lost: float32 [n]; what was kept back so far is given with `flat`.
        bits: of a number, one of `BITS`.
    """
    share = -(-flat.numel() // (line.hosts * BLOCK)) * BLOCK  # numbers of each host's share, the last ones padded
    whole = flat.new_zeros(line.hosts * share)
    whole[: flat.numel()] = flat + lost
    given = packed(whole, bits)
    kept = whole.sub_(unpacked(given, bits))
    taken = yield from line.traded(given)
    own = unpacked(taken, bits).view(line.hosts, share).sum(0)
    told = packed(own, bits)
    # The rounding of the sum is made up for by the host that has made it.
    start = line.host * share
    kept[start : start + share] += own - unpacked(told, bits)
    lines = yield from line.gathered(told)
    return unpacked(torch.cat(lines), bits)[: flat.numel()], kept[: flat.numel()]


def packed(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes: for each block its numbers as multiples of a scale, of four bits two in a byte, and the scale.

    Args:
        numbers: float32 [n], n a multiple of `BLOCK`, finite.
    """
    blocks = numbers.view(-1, BLOCK)
    most = 2 ** (bits - 1) - 1
    scale = blocks.abs().amax(1, keepdim=True) / most
    # Upwards to a bfloat16, so that the largest number keeps its place.
    scale = (scale.view(torch.int32) + 0xFFFF).bitwise_and_(-0x10000).view(torch.float32)
    # A block of zeros, or of numbers so small that a scale of them is none, is one of zeros.
    small = blocks.div(scale.clamp(min=torch.finfo(torch.float32).tiny)).round_().clamp_(-most, most).to(torch.int8)
    held = small.view(torch.uint8)
    if bits == 4:
        above = (small + 8).view(torch.uint8)  # 1 to 15
        held = above[:, : BLOCK // 2] * 16 + above[:, BLOCK // 2 :]
    return torch.cat([held, scale.bfloat16().view(torch.uint8)], 1).view(-1)


def unpacked(lines: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of `packed`, up to half a scale."""
    size = BLOCK * bits // 8
    blocks = lines.view(-1, size + SCALE)
    scale, held = blocks[:, size:].contiguous().view(torch.bfloat16).float(), blocks[:, :size].contiguous()
    small = held.view(torch.int8) if bits == 8 else torch.cat([held // 16, held % 16], 1).to(torch.int8) - 8
    return (small.float() * scale).view(-1)
