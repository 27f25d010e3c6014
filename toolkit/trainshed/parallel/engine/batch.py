"""What can be said about a step's inputs without looking at the model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from ..record.trace import Meta
from ..tree import leaves

# Values of a tensor that are compared, at least: other batches differ nearly everywhere.
_SAMPLED = 2**14

# (args, kwargs) of the step function for one microbatch.
Microbatch = tuple[tuple[Any, ...], dict[str, Any]]


def digest(microbatches: list[Microbatch]) -> int:
    """A number that changes with the tensors' values and order, below 2**62; of long tensors with a part of the values."""
    found = [torch.zeros((), dtype=torch.float64)]
    for leaf in leaves(microbatches):
        if isinstance(leaf, torch.Tensor) and leaf.numel() and not leaf.is_meta:
            plain = torch.view_as_real(leaf.detach()) if leaf.is_complex() else leaf.detach()
            plain = plain.reshape(-1)[:: max(1, leaf.numel() // _SAMPLED)].to(torch.float64).nan_to_num(nan=0.5)
            weights = torch.linspace(1.0, 2.0, plain.numel(), dtype=torch.float64, device=plain.device)
            found.append((plain @ weights).cpu())
    return int.from_bytes(hashlib.sha256(repr(torch.stack(found).tolist()).encode()).digest()[:8], "big") >> 2


def facts(microbatch: Microbatch) -> Any:
    """What a recorded forward may depend on: shapes and types of tensors, switches. Numbers change from step to step; a
    forward that goes another way because of one is noticed when it is replayed."""
    found: list[Any] = []
    for leaf in leaves(microbatch):
        if isinstance(leaf, torch.Tensor):
            found.append(Meta.of(leaf))
        elif isinstance(leaf, (str, bool, type(None))):
            found.append(leaf)
        else:
            found.append(type(leaf))
    return tuple(found)
