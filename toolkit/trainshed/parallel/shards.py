"""Tensors that are sharded over ranks (DTensor), and the same operations for those that are not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on every rank. Collective where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(value: Any, parameter: torch.Tensor) -> Any:
    """A whole tensor sharded as a parameter of its shape is; anything else as it is. Every rank has the same `value`."""
    fits = isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.shape == parameter.shape
    if fits and isinstance(parameter, DTensor):
        on_device = value.to(parameter.device)
        return distribute_tensor(on_device, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value


def state_like(key: str, value: Any, parameter: torch.Tensor) -> Any:
    """An entry of an optimizer's state sharded as its parameter is; a count of steps is on all ranks."""
    return value if key == "step" else like(value, parameter)


def norms(tensors: Sequence[torch.Tensor], kind: float) -> list[torch.Tensor]:
    """The vector norm of each tensor, shape (), float32. Collective where they are sharded, once for all of them.

    Args:
        kind: 2.0 for the Euclidean norm, as for `torch.linalg.vector_norm`.
    """
    lengths = [torch.linalg.vector_norm(local(one.detach()), kind, dtype=torch.float32) for one in tensors if one.numel()]
    sharded = [one for one in tensors if isinstance(one, DTensor)]
    if not sharded or len(lengths) < len(tensors) or kind <= 0:
        return [whole(torch.linalg.vector_norm(one.detach(), kind, dtype=torch.float32)) for one in tensors]
    mesh = sharded[0].device_mesh
    table = torch.stack(lengths).double()
    if not math.isinf(kind):
        table = table.pow(kind)
        if mesh.get_local_rank(mesh.ndim - 1):  # what all ranks have counts once
            parts = [isinstance(one, DTensor) and one.dim() > 0 for one in tensors]
            table *= torch.tensor(parts, device=table.device)
    how = dist.ReduceOp.MAX if math.isinf(kind) else dist.ReduceOp.SUM
    dist.all_reduce(table, how, group=mesh.get_group(mesh.ndim - 1))
    return list((table if math.isinf(kind) else table.pow(1 / kind)).float())


def follow(optimizer: torch.optim.Optimizer, names: Mapping[int, str], shards: Mapping[str, nn.Parameter]) -> None:
    """Puts shards in the place of an optimizer's parameters, and of what it keeps for them.

    Args:
        names: `id` of a parameter before it was sharded -> its name.
        shards: name -> the sharded parameter.
    """
    for group in optimizer.param_groups:
        for index, old in enumerate(group["params"]):
            if id(old) in names:
                new = shards[names[id(old)]]
                group["params"][index] = new
                if old in optimizer.state:
                    state = optimizer.state.pop(old)
                    optimizer.state[new] = {key: state_like(key, value, new) for key, value in state.items()}
