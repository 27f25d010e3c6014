"""A few numbers that stand for a tensor, so that two ranks can compare tensors without sending them.

A sketch holds the products of a tensor with fixed random vectors (Johnson and Lindenstrauss, 1984). It is linear: the
sketch of a sum is the sum of the sketches. The mean square of the products of a difference estimates its squared length,
whatever the difference is; one that is not zero gives zeros with probability zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import torch

PROJECTIONS = 8
_BLOCK = 2**16  # elements that one matrix of random numbers covers
_AT_ONCE = 2**22  # elements that are float64 at a time


@dataclass(frozen=True)
class Sketch:
    """products: with `PROJECTIONS` random vectors, of the finite elements.
    length: the Euclidean norm; of a sum at most the sum of the norms of its parts: what its rounding errors depend on.
    unit: of rounding of its type; 0 for whole numbers.
    broken: elements that are not finite.
    """

    products: tuple[float, ...]
    length: float
    unit: float
    broken: int

    def plus(self, other: Sketch) -> Sketch:
        """Of the sum of both tensors."""
        return Sketch(
            tuple(a + b for a, b in zip(self.products, other.products, strict=True)),
            self.length + other.length,
            max(self.unit, other.unit),
            self.broken + other.broken,
        )

    def minus(self, other: Sketch) -> Sketch:
        """Of the difference of both tensors."""
        return self.plus(replace(other, products=tuple(-a for a in other.products)))

    def times(self, factor: float) -> Sketch:
        """Of the tensor times a positive number."""
        return replace(self, products=tuple(factor * a for a in self.products), length=factor * self.length)

    def rounded_as(self, kind: torch.dtype) -> Sketch:
        """Of a tensor whose parts were of this type before they were summed."""
        return replace(self, unit=max(self.unit, torch.finfo(kind).eps)) if self.unit else self

    def distance(self, other: Sketch) -> float:
        """About the norm of the difference of both tensors; infinite where only one of them has elements that are not
        finite."""
        if bool(self.broken) != bool(other.broken):
            return math.inf
        if self.broken:
            return 0.0  # an overflow in both: where exactly may depend on the order of a sum
        squares = sum((a - b) ** 2 for a, b in zip(self.products, other.products, strict=True))
        return math.sqrt(squares / PROJECTIONS)


NOTHING = Sketch((0.0,) * PROJECTIONS, 0.0, 0.0, 0)


def total(sketches: Iterable[Sketch]) -> Sketch:
    """Of the sum of tensors."""
    found = NOTHING
    for one in sketches:
        found = found.plus(one)
    return found


def sketch(tensor: torch.Tensor) -> Sketch:
    """The sketch of a tensor of any type and shape; of a complex one, of its real and imaginary parts."""
    unit = torch.finfo(tensor.dtype).eps if tensor.dtype.is_floating_point or tensor.dtype.is_complex else 0.0
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        plain = tensor.detach()
        plain = plain.to_dense() if plain.layout is not torch.strided else plain
        plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
        flat = plain.reshape(-1)
        products = torch.zeros(PROJECTIONS, dtype=torch.float64, device=flat.device)
        square, broken = 0.0, 0
        for start in range(0, flat.numel(), _AT_ONCE):
            part = flat[start : start + _AT_ONCE].to(torch.float64)
            bad = int((~torch.isfinite(part)).sum()) if unit else 0
            if bad:
                part, broken = part.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0), broken + bad
            square += float(part.square().sum())
            products += _products(part, start // _BLOCK)
    return Sketch(tuple(products.tolist()), math.sqrt(square), unit, broken)


def _products(part: torch.Tensor, first: int) -> torch.Tensor:
    """Shape (PROJECTIONS,), of a part of a tensor that starts at block `first`."""
    numbers = _numbers(part.device)
    blocks, rest = divmod(part.numel(), _BLOCK)
    whole = part[: blocks * _BLOCK].view(blocks, _BLOCK) @ numbers
    ends = [whole, (part[blocks * _BLOCK :] @ numbers[:rest])[None]] if rest else [whole]
    return (torch.cat(ends) * _of_blocks(first, blocks + bool(rest)).to(part.device)).sum(0)


@cache
def _numbers(device: torch.device) -> torch.Tensor:
    """Shape (_BLOCK, PROJECTIONS), of variance 1."""
    with torch.inference_mode(False):
        return _drawn(0, (_BLOCK, PROJECTIONS)).to(device)


def _of_blocks(first: int, count: int) -> torch.Tensor:
    """A factor for each block and projection, of variance 1, so that blocks that change places are told apart."""
    if first + count == 1:
        return torch.ones(1, PROJECTIONS, dtype=torch.float64)
    per_part = _AT_ONCE // _BLOCK
    return _drawn(1 + first // per_part, (per_part, PROJECTIONS))[:count]


def _drawn(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
