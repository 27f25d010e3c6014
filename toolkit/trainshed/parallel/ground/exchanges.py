"""Exchanges between the ranks of a tensor group, and what goes back in the backward.

A tensor is whole, and each rank has its whole gradient; or in parts, and a rank has the gradient of its own places; or each
rank computes a part of the result with it, and its gradient is the sum of what the ranks find.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


def meeting_store() -> dist.Store:
    """The store that all ranks have met at.

    Raises:
        ValueError: they have not, or have gone apart.
    """
    if dist.group.WORLD is None:
        raise ValueError("there is no process group")
    store: dist.Store = dist.group.WORLD.get_group_store()
    return store


def summed(part: torch.Tensor, mesh: DeviceMesh, how: str = "sum") -> torch.Tensor:
    """The sum of what all ranks have found, or `how` else it is joined, on each of them."""
    return _Summed.apply(part, mesh, how)


def entering(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The input as it is; each rank finds a part of its gradient, which is summed."""
    return _Entering.apply(x, mesh)


class _Summed(torch.autograd.Function):
    """The gradient of a sum enters on each rank: DTensor's own would not be summed where that has a gradient again."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, mesh: DeviceMesh, how: str) -> torch.Tensor:
        ctx.mesh = mesh
        found = DTensor.from_local(part, mesh, [Partial(how)], run_check=False).redistribute(placements=[Replicate()])
        return found.to_local()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return _Entering.apply(gradient, ctx.mesh), None, None


class _Entering(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.mesh = mesh
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _Summed.apply(gradient, ctx.mesh, "sum"), None


def gathered(part: torch.Tensor, mesh: DeviceMesh, size: int, axis: int = -1) -> torch.Tensor:
    """The parts of all ranks, side by side along an axis where there are `size` places."""
    axis %= part.ndim
    shape = torch.Size((*part.shape[:axis], size, *part.shape[axis + 1 :]))
    stride = torch.empty(shape, device="meta").stride()
    parts = DTensor.from_local(part.contiguous(), mesh, [Shard(axis)], run_check=False, shape=shape, stride=stride)
    return parts.redistribute(placements=[Replicate()]).to_local()


def length_of(features: int, ranks: int, rank: int) -> int:
    """How many parts a rank has: as `torch.chunk` cuts, which DTensor does as well."""
    longest = -(-features // ranks)
    return max(0, min(longest, features - rank * longest))


def start_of(features: int, ranks: int, rank: int) -> int:
    """The number of a rank's first part."""
    return min(features, rank * -(-features // ranks))


def scattered(term: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    """This rank's places along an axis of the sum of what all ranks have found. Collective."""
    return _Scattered.apply(term, mesh, axis % term.ndim)


def collected(part: torch.Tensor, mesh: DeviceMesh, size: int, axis: int) -> torch.Tensor:
    """As `gathered`, for a rank that computes a part of the result with it: gradients are summed, and a rank gets those of
    its own places. Collective."""
    return _Collected.apply(part, mesh, size, axis % part.ndim)


def exchanged(part: torch.Tensor, mesh: DeviceMesh, size: int, axis: int, to: int) -> torch.Tensor:
    """Of a tensor in parts along an axis, where there are `size` places, this rank's part along another one. Collective."""
    return _Exchanged.apply(part, mesh, size, axis % part.ndim, to % part.ndim)


def part_of(whole: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    """This rank's places of a tensor that is whole; their gradients are gathered."""
    return _PartOf.apply(whole, mesh, axis % whole.ndim)


def summed_later(parameter: torch.Tensor, mesh: DeviceMesh, is_later: Callable[[], bool]) -> torch.Tensor:
    """As `entering`, for a parameter of whose gradients the mean over all ranks is taken after the step: it is multiplied so
    that this mean is the sum, and nothing is sent now.

    Args:
        is_later: tells in the backward whether its gradient has such a mean taken; else it is summed at once.
    """
    return _Later.apply(parameter, mesh, is_later)


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, term: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
        ctx.facts = mesh, term.shape[axis], axis
        return _sum_in_parts(term, mesh, axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        mesh, size, axis = ctx.facts
        return _Collected.apply(gradient, mesh, size, axis), None, None


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, mesh: DeviceMesh, size: int, axis: int) -> torch.Tensor:
        ctx.facts = mesh, axis
        return gathered(part, mesh, size, axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        mesh, axis = ctx.facts
        return _Scattered.apply(gradient, mesh, axis), None, None, None


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, mesh: DeviceMesh, size: int, axis: int, to: int) -> torch.Tensor:
        ctx.facts = mesh, part.shape[to], to, axis
        ranks, rank = mesh.size(), mesh.get_local_rank()
        sizes = [length_of(part.shape[to], ranks, other) for other in range(ranks)]
        shapes = [list(part.shape) for _ in range(ranks)]
        for other, shape in enumerate(shapes):
            shape[to], shape[axis] = sizes[rank], length_of(size, ranks, other)
        given = [one.reshape(-1) for one in part.split(sizes, to)]
        found = part.new_empty(sum(map(prod, shapes)))
        counts = list(map(prod, shapes)), [one.numel() for one in given]
        dist.all_to_all_single(found, torch.cat(given), *counts, group=mesh.get_group())
        return torch.cat([one.view(shape) for one, shape in zip(found.split(counts[0]), shapes, strict=True)], axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:  # type: ignore[override]
        return _Exchanged.apply(gradient, *ctx.facts), None, None, None, None


class _PartOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
        ctx.facts = mesh, whole.shape[axis], axis
        ranks, rank, size = mesh.size(), mesh.get_local_rank(), whole.shape[axis]
        return whole.narrow(axis, start_of(size, ranks, rank), length_of(size, ranks, rank))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return gathered(gradient, *ctx.facts), None, None


class _Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, mesh: DeviceMesh, is_later: Callable[[], bool]) -> torch.Tensor:
        ctx.facts = mesh, is_later
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        mesh, is_later = ctx.facts
        return gradient * mesh.size() if is_later() else _Summed.apply(gradient, mesh, "sum"), None, None


def _sum_in_parts(term: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    if mesh.device_type != "cpu":
        terms = DTensor.from_local(term, mesh, [Partial()], run_check=False)
        return terms.redistribute(placements=[Shard(axis)]).to_local().clone(memory_format=torch.contiguous_format)
    # gloo sums all of it on all ranks, and sends twice as much.
    ranks, rows = mesh.size(), term.movedim(axis, 0).contiguous()
    sizes = [length_of(len(rows), ranks, rank) for rank in range(ranks)]
    own = sizes[mesh.get_local_rank()]
    found = rows.new_empty((ranks, own, *rows.shape[1:]))
    dist.all_to_all_single(found.flatten(0, 1), rows, [own] * ranks, sizes, group=mesh.get_group())
    total = found.sum(0)
    return total if axis == 0 else total.movedim(0, axis).contiguous()
