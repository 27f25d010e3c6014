"""Means of gradients: over all ranks of parameters that are whole, over those with the same part of parameters that are not.

Ranks of a tensor group have the same gradient of a whole parameter but for the last bits, where a device adds in no fixed
order. That would move their parameters apart over many steps, so they take the mean as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from ...ground.grid import Grid
from ...ground.halves import gradient_type, no_gradient
from ...ground.shards import local, tensor_axis
from .part_shards import PartShards


class Means:
    """Gradients of one step.

    Args:
        bucket_bytes: bytes of gradients that are summed at once.
        shards: of the parameters, which have the means of replicas after the backward.
    """

    def __init__(
        self,
        grid: Grid,
        parameters: Mapping[str, nn.Parameter],
        bucket_bytes: int,
        shards: PartShards | None,
    ) -> None:
        self._grid, self._bytes, self._shards = grid, bucket_bytes, shards
        self._trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
        self._before = [parameter.grad for parameter in self._trained]
        for parameter in self._trained:
            parameter.grad = None

    def finish(self) -> None:
        """After the backward: all means taken, gradients of earlier steps added. Collective."""
        tensor = self._grid.tensor
        parts = [p for p in self._trained if tensor_axis(p) is not None]
        wholes = [p for p in self._trained if tensor_axis(p) is None]
        ways = []
        if self._shards is None:
            ways.append((wholes, self._grid.replica_group, len(self._grid.replica_ranks)))
            if tensor is not None:
                ways.append((parts, tensor.twin_group, len(tensor.twins)))
        elif tensor is not None:  # shards have the means of those that hold the same
            ways.append((wholes, tensor.group, len(tensor.ranks)))
        somewhere = self._used_somewhere()
        for parameters, members, count in ways:
            reached = [p for p in parameters if somewhere[id(p)]]
            for parameter in reached:  # another rank's experts were chosen, or another replica's
                if parameter.grad is None:
                    parameter.grad = no_gradient(parameter)
            if count > 1:
                for bucket in self._buckets(reached):
                    _mean(bucket, members, count)
        self.put_back()

    def _used_somewhere(self) -> dict[int, bool]:
        """Whether some rank has a gradient, by `id` of the parameter. Collective."""
        if self._shards is not None:
            found = self._shards.used(self._trained)
            for parameter, used in zip(self._trained, found, strict=True):
                if not used:  # the zeros of the sum go
                    parameter.grad = None
        else:
            counts = torch.tensor([float(p.grad is not None) for p in self._trained], device=self._grid.device)
            if len(counts):
                dist.all_reduce(counts, group=self._grid.replica_group)
            found = [bool(number) for number in counts.tolist()]
        return {id(p): one for p, one in zip(self._trained, found, strict=True)}

    def put_back(self) -> None:
        """Adds the gradients of earlier steps; that is all that is to be done after a step that does not train."""
        for parameter, before in zip(self._trained, self._before, strict=True):
            if before is not None:
                parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)

    def _buckets(self, parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        found: list[list[nn.Parameter]] = []
        size = 0
        for parameter in parameters:
            added = local(parameter).numel() * parameter.element_size()
            fits = found and size + added <= self._bytes and gradient_type(found[-1][0]) == gradient_type(parameter)
            if not fits:
                found.append([])
                size = 0
            found[-1].append(parameter)
            size += added
        return found


def _mean(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, count: int) -> None:
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    gradients = [one.to_dense() if one.layout is not torch.strided else one for one in gradients]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    flat.div_(count)
    with torch.no_grad():
        for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
