"""What the step function returned on the last stage, on all ranks of the pipeline."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

from ..record.trace import Slot
from ..tree import map_leaves


class _Described:
    """Stands for a tensor while the structure is sent."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def share(results: list[Any] | None, source: int, group: dist.ProcessGroup, device: torch.device) -> list[Any]:
    """Results of all microbatches on every rank of `group`.

    Args:
        results: one entry a microbatch on the source rank, None elsewhere.
        source: global rank of the last stage.
        device: of the returned tensors.
    """
    if dist.get_world_size(group) == 1:
        return results or []
    tensors: list[torch.Tensor] = []
    payload: list[Any] = [None]
    if results is not None:

        def describe(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return _portable(leaf)
            tensors.append(leaf.detach().contiguous())
            return _Described(leaf)

        payload = [map_leaves(describe, results)]
    dist.broadcast_object_list(payload, src=source, group=group)
    if results is None:

        def allocate(leaf: Any) -> Any:
            if isinstance(leaf, _Described):
                tensors.append(torch.empty(leaf.shape, dtype=leaf.dtype, device=device))
                return tensors[-1]
            return leaf

        results = map_leaves(allocate, payload[0])
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in same]).to(device)
        dist.broadcast(flat, src=source, group=group)
        parts = flat.split([tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            if tensor.data_ptr() != part.data_ptr():
                tensor.copy_(part.view(tensor.shape))
    return results


def _portable(leaf: Any) -> Any:
    """The value, or None if it cannot be sent (a lock, a file ...)."""
    if isinstance(leaf, (Slot, str, int, float, bool, type(None))):
        return leaf
    try:
        pickle.dumps(leaf)
    except Exception:
        return None
    return leaf
