"""The values that pass between the ranks that divide a sequence, and back in the backward.

A loss is computed on every rank from whole values, so each rank has its whole gradient. Inside of a block every gradient of
a rank is a part of a sum over ranks. Where the block's parts are joined, a rank's gradient is multiplied by the number of
ranks, so that the mean over all ranks, which is taken of every parameter after the step, is the sum of what was computed
inside of blocks, and the mean of what was computed outside, whichever of both a parameter has.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ...ground.grid import TensorGroup
from ..renamed import reduce_scatter
from .slices import Slices, laid_out_as

_EXCHANGE, _WELL, _FAILED = 1, 2, 3


class OthersStopped(RuntimeError):
    """Another rank does not come to the exchange that this one waits at."""


class Crossing:
    """Exchanges among the ranks of a context group.

    rank: this rank's place in the group.
    active: how many blocks run now, with this rank's part.
    guarded: whether ranks say before each exchange that they are there. Costs a message; for calls that may fail on some of
        them (`ended`).
    """

    def __init__(self, group: TensorGroup, rank: int, device: torch.device) -> None:
        self.ranks, self.rank, self.device = len(group.ranks), group.ranks.index(rank), device
        self.active = 0
        self.guarded = self._over = False
        self._held: TensorGroup | None = group

    @property
    def group(self) -> TensorGroup:
        """Of the ranks.

        Raises:
            OthersStopped: it was let go.
        """
        if self._held is None:
            raise OthersStopped("a step has failed, and the ranks do not meet any more")
        return self._held

    def let_go(self) -> None:
        """After a step that failed: no connection is kept here, so that nobody waits for this rank."""
        self._held = None

    def gathered(self, part: torch.Tensor, axis: int, slices: Slices) -> torch.Tensor:
        """The whole of a tensor of which each rank has its part. Collective."""
        mine = _padded(part.detach().movedim(axis, 0), slices.largest)
        self._meet(mine.numel())
        found = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(found, mine, group=self.group.group)
        return laid_out_as(part, slices.joined(found, 0).movedim(0, axis))

    def scattered(self, whole: torch.Tensor, axis: int, slices: Slices) -> torch.Tensor:
        """This rank's part of the sum of whole tensors. Collective."""
        first = whole.detach().movedim(axis, 0)
        parts = torch.cat([_padded(slices.of(first, 0, rank), slices.largest) for rank in range(self.ranks)])
        self._meet(parts.numel())
        mine = parts.new_empty((slices.largest, *first.shape[1:]))
        reduce_scatter(mine, parts, group=self.group.group)
        return mine[: slices.size(self.rank)].movedim(0, axis)

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of all ranks. Collective."""
        found = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._meet(found.numel())
        dist.all_reduce(found, group=self.group.group)
        return found.div_(self.ranks)

    def begin(self) -> None:
        """From now on ranks say that they are there, until `ended`."""
        self.guarded, self._over = True, False

    def ended(self, well: bool) -> bool:
        """Returns whether what has begun went well on all ranks, of which this one says how it went here. Collective."""
        try:
            return False if self._over else self._statuses(_WELL if well else _FAILED, 0) == {(_WELL, 0)}
        finally:
            self.guarded = False

    def first_of(self, words: str) -> str:
        """Returns what the first rank that has words says. Collective."""
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, words, group=self.group.group)
        return next((one for one in found if one), words)

    def _meet(self, count: int) -> None:
        if self.guarded and self._statuses(_EXCHANGE, count) != {(_EXCHANGE, count)}:
            self._over = True
            raise OthersStopped("another rank does something else")

    def _statuses(self, mine: int, count: int) -> set[tuple[int, ...]]:
        head = torch.tensor([mine, count], device=self.device)
        found = [torch.empty_like(head) for _ in range(self.ranks)]
        dist.all_gather(found, head, group=self.group.group)
        return {tuple(one.tolist()) for one in found}


def _padded(tensor: torch.Tensor, length: int) -> torch.Tensor:
    if len(tensor) == length:
        return tensor.contiguous()
    return torch.cat([tensor, tensor.new_zeros((length - len(tensor), *tensor.shape[1:]))])


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, crossing: Crossing, axis: int, slices: Slices) -> torch.Tensor:
        ctx.facts = crossing, axis, slices
        return slices.of(whole, axis, crossing.rank)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        crossing, axis, slices = ctx.facts
        return crossing.gathered(gradient, axis, slices).div_(crossing.ranks), None, None, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, crossing: Crossing, axis: int, slices: Slices) -> torch.Tensor:
        ctx.facts = crossing, axis, slices
        return crossing.gathered(part, axis, slices)


class _Join(_Gathered):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        crossing, axis, slices = ctx.facts
        return slices.of(gradient, axis, crossing.rank).mul_(crossing.ranks), None, None, None


class _Keys(_Gathered):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        crossing, axis, slices = ctx.facts
        return crossing.scattered(gradient, axis, slices), None, None, None


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, crossing: Crossing) -> torch.Tensor:
        ctx.crossing = crossing
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.crossing.mean(gradient), None


def cut(whole: torch.Tensor, crossing: Crossing, axis: int, slices: Slices) -> torch.Tensor:
    """This rank's part of what enters a block. Its gradient is gathered."""
    found: torch.Tensor = _Cut.apply(whole, crossing, axis, slices)
    return found


def join(part: torch.Tensor, crossing: Crossing, axis: int, slices: Slices) -> torch.Tensor:
    """The whole of what leaves a block. Collective."""
    found: torch.Tensor = _Join.apply(part, crossing, axis, slices)
    return found


def shared(tensor: torch.Tensor, crossing: Crossing) -> torch.Tensor:
    """Returns what enters a block whole; its gradient is summed over ranks."""
    found: torch.Tensor = _Shared.apply(tensor, crossing)
    return found


def all_keys(part: torch.Tensor, crossing: Crossing, axis: int, slices: Slices) -> torch.Tensor:
    """Returns what all queries of a block read; a rank's gradient of it is one of all queries. Collective."""
    found: torch.Tensor = _Keys.apply(part, crossing, axis, slices)
    return found
