"""Tensors that are sharded over ranks (DTensor), and the same operations for those that are not."""

from __future__ import annotations

from typing import Any

import torch
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
