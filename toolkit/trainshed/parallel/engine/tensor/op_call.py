"""Questions to the rules of `part_rules` and `part_views`, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...ground.exchanges import length_of
from ...ground.tree import leaves

_ORDINARY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True)
class OpCall:
    """A function with tensors in parts among its arguments.

    axes: `id` of a tensor that is in parts -> along which axis.
    ranks: that have parts; `rank` is this one.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    axes: Mapping[int, int]
    ranks: int
    rank: int

    def axis_of(self, leaf: Any) -> int | None:
        """Along which axis an argument is in parts; None if it is not."""
        return self.axes.get(id(leaf))

    def first(self) -> tuple[Any, int] | None:
        """The first argument and its axis, if it is the only tensor and in parts."""
        axis = self.axis_of(self.args[0]) if self.args else None
        return None if axis is None or len(self.tensors()) != 1 else (self.args[0], axis)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments."""
        return [leaf for leaf in leaves((self.args, dict(self.kwargs))) if isinstance(leaf, torch.Tensor)]

    def argument(self, position: int, name: str, otherwise: Any = None) -> Any:
        """An argument that may be given by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, otherwise)

    def length(self, size: int, rank: int | None = None) -> int:
        """How many of `size` places a rank has, this one if none is named."""
        return length_of(size, self.ranks, self.rank if rank is None else rank)

    def are_alike(self, size: int, inner: int, other: int, other_inner: int) -> bool:
        """Returns whether each rank has the same of `size` times `inner` values as of `other` times `other_inner`."""
        ranks = range(self.ranks)
        return all(self.length(size, rank) * inner == self.length(other, rank) * other_inner for rank in ranks)

    def along(self, axis: int, **others: Any) -> OpStrategy:
        """The function itself, with results that are in parts along this axis."""
        return OpStrategy(self.func, self.args, dict(self.kwargs), axis, **others)


@dataclass(frozen=True)
class OpStrategy:
    """How a function is computed in parts.

    axis: of its results, along which they are in parts.
    cuts: `id` of an ordinary tensor of which a rank takes its places -> along which axis.
    drawn: `id` of those that the rule has made, of which nothing else is kept.
    own: the arguments after the first, in numbers of this rank; None if they are those of the whole tensor.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    axis: int
    cuts: Mapping[int, int] = field(default_factory=dict)
    own: tuple[Any, ...] | None = None
    drawn: frozenset[int] = frozenset()


Rule = Callable[[OpCall], OpStrategy | None]


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Returns whether nothing but torch's own class says what is done with a tensor."""
    return type(tensor) in _ORDINARY and tensor.layout is torch.strided


def with_own(call: OpCall, tensors: list[torch.Tensor], right: int, size: int) -> dict[int, int] | None:
    """`OpStrategy.cuts` for tensors broadcast against parts of `size` places along an axis, counted from the right (-1 is
    the last); None if one does not fit."""
    cuts: dict[int, int] = {}
    for one in tensors:
        axis = call.axis_of(one)
        if axis is not None:
            if axis - one.ndim != right or one.shape[axis] != size:
                return None
        elif not is_ordinary(one):
            return None
        elif one.ndim >= -right and one.shape[right] != 1:
            if one.shape[right] != size:
                return None
            cuts[id(one)] = one.ndim + right
    return cuts
