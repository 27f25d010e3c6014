"""The whole model on the first rank of a pipeline, for as long as a step is verified."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..holding import Holding


def fetch_parameters(holding: Holding) -> dict[str, torch.Tensor]:
    """Name -> value of the parameters that the first rank of a pipeline does not hold, there; nothing on the others.
    Collective over the pipeline."""
    placement = holding.placement
    found: dict[str, torch.Tensor] = {}
    if placement is None:
        return {}
    every = dict(holding.root.named_parameters())
    with torch.inference_mode(False):
        for name, ranks in placement.holders.items():
            if 0 not in ranks:
                like = every[name]
                found |= _fetch(holding, name, ranks[0], tuple(like.shape), like.dtype, every)
    return found


def fetch_buffers(holding: Holding) -> dict[str, torch.Tensor]:
    """Name -> value of the buffers that other ranks of the pipeline change, on its first rank; nothing on the others.
    Collective over the pipeline."""
    grid, owners = holding.grid, holding.buffer_homes()
    here = {name: buffer for name, buffer in holding.root.named_buffers() if not buffer.is_meta}
    mine = {name: (tuple(b.shape), b.dtype) for name, b in here.items() if owners.get(name) == grid.place.pipeline}
    facts: list[Any] = [mine] * len(grid.pipeline_ranks)
    if len(facts) == 1:
        return {}
    dist.all_gather_object(facts, mine, group=grid.pipeline_group)
    found: dict[str, torch.Tensor] = {}
    with torch.inference_mode(False):
        for owner, known in enumerate(facts):
            for name, (shape, dtype) in known.items() if owner else ():
                found |= _fetch(holding, name, owner, shape, dtype, here)
    return found


def _fetch(
    holding: Holding, name: str, owner: int, shape: tuple[int, ...], dtype: torch.dtype, there: dict[str, Any]
) -> dict[str, torch.Tensor]:
    grid = holding.grid
    first, last = grid.pipeline_ranks[0], grid.pipeline_ranks[owner]
    if grid.rank == last:
        dist.send(there[name].detach().contiguous(), first, group=grid.pipeline_group)
    if grid.rank != first:
        return {}
    value = torch.empty(shape, dtype=dtype, device=grid.device)
    dist.recv(value, last, group=grid.pipeline_group)
    return {name: value}
