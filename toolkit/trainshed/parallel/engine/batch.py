"""What can be said about a step's inputs without looking at the model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from ..record.trace import Meta
from ..tree import leaves

# (args, kwargs) of the step function for one microbatch.
Microbatch = tuple[tuple[Any, ...], dict[str, Any]]


def digest(microbatches: list[Microbatch]) -> str:
    """Changes with the values of the tensors."""
    digest = hashlib.sha256()
    for leaf in leaves(microbatches):
        if isinstance(leaf, torch.Tensor) and leaf.numel() and not leaf.is_complex():
            plain = leaf.detach().to("cpu", torch.float64).reshape(-1)
            weights = torch.linspace(1.0, 2.0, plain.numel(), dtype=torch.float64)
            digest.update(repr(float(plain.nan_to_num() @ weights)).encode())
    return digest.hexdigest()


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
