"""Tensors that are sharded over ranks (DTensor), and the same operations for those that are not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from .errors import PipelineError
from .torch_private import accumulated_hooks, gradient_hooks

# How the names of the axes of meshes begin that are tensor groups.
TENSOR = "tensor "
# How much larger than a parameter all of its shards may be.
_PADDED = 1.25


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on every rank. Collective where it is sharded."""
    if not isinstance(tensor, DTensor):
        return tensor
    while len(cut := [axis for axis, one in enumerate(tensor.placements) if isinstance(one, Shard)]) > 1:
        placements = [Replicate() if axis == cut[-1] else one for axis, one in enumerate(tensor.placements)]
        tensor = tensor.redistribute(placements=placements)  # all at once, torch warns
    return tensor.full_tensor()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def tensor_axis(tensor: torch.Tensor) -> int | None:
    """Along which axis the ranks of a tensor group have parts of a tensor; None if each of them has the same."""
    if isinstance(tensor, DTensor):
        for name, placement in zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=False):
            if name.startswith(TENSOR) and isinstance(placement, Shard):
                return placement.dim
    return None


def shard_axis(sizes: Sequence[int], degree: int, divided: int | None = None) -> int:
    """Along which axis FSDP2 shards a parameter. The first one, unless that pads it by more than a quarter, as it has few
    places (experts, mostly); then the first other one that `degree` divides: torch cuts no other one unevenly.

    Args:
        divided: the axis along which ranks of a tensor group have parts, of other sizes perhaps.
    """
    if not sizes or degree * -(-sizes[0] // degree) <= _PADDED * sizes[0]:
        return 0
    others = [axis for axis, size in enumerate(sizes) if axis not in (0, divided) and size and size % degree == 0]
    return others[0] if others else 0


def refuse_hook(name: str, parameter: torch.Tensor, hint: str) -> None:
    """For a parameter that is sharded.

    Raises:
        PipelineError: it has a gradient hook.
    """
    if has_gradient_hook(parameter):
        raise PipelineError(f"{name!r} has a gradient hook, and is sharded: torch makes its gradient elsewhere", hint=hint)


def has_gradient_hook(parameter: Any) -> bool:
    """Returns whether something is called when a parameter gets its gradient."""
    return bool(gradient_hooks(parameter) or accumulated_hooks(parameter))


def like(value: Any, parameter: torch.Tensor) -> Any:
    """A whole tensor sharded as a parameter of its shape is; anything else as it is. Every rank has the same `value`."""
    if isinstance(value, DTensor) and isinstance(parameter, DTensor) and value.device_mesh != parameter.device_mesh:
        value = whole(value)  # of a parameter that was cut twice
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
    lengths = [_length(local(one.detach()), kind) for one in tensors]
    sharded = [one for one in tensors if isinstance(one, DTensor)]
    if not sharded or kind <= 0:
        return [whole(torch.linalg.vector_norm(one.detach(), kind, dtype=torch.float32)) for one in tensors]
    mesh = sharded[0].device_mesh
    table = torch.stack(lengths).double()
    if not math.isinf(kind):
        table = table.pow(kind)
    how = dist.ReduceOp.MAX if math.isinf(kind) else dist.ReduceOp.SUM
    for axis in range(mesh.ndim):
        cut = [isinstance(one, DTensor) and isinstance(one.placements[axis], Shard) for one in tensors]
        if any(cut):
            if mesh.get_local_rank(axis):  # what all ranks have counts once
                table *= torch.tensor(cut, device=table.device)
            dist.all_reduce(table, how, group=mesh.get_group(axis))
    return list((table if math.isinf(kind) else table.pow(1 / kind)).float())


def _length(tensor: torch.Tensor, kind: float) -> torch.Tensor:
    """The norm of what a rank has, which may be nothing."""
    if not tensor.numel():
        return torch.zeros((), device=tensor.device)
    return torch.linalg.vector_norm(tensor, kind, dtype=torch.float32)


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
