"""Refuses to save replicas that have drifted apart.

Ranks share the work of writing what all of them hold, so that each tensor of a checkpoint comes from some rank. Where the
ranks' parameters are not the same (a model without DistributedDataParallel, other seeds, steps of their own), that would be
a mixture of models that never existed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import torch

from .errors import CheckpointError
from .state import ModelState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .ranks import Ranks

PARAMETERS, VALUES = 8, 16  # that are compared; drift reaches all of a model within a few steps
LARGEST = 1 << 20  # elements of a tensor that would have to be copied to be read
# Part of the largest value. Ranks with the same gradients stay together to some 1e-6; other gradients part them at once.
TOLERANCE = 1e-3


def check_replicas(ranks: Ranks, states: Sequence[Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Compares some values of some parameters that several ranks hold. Collective.

    Args:
        tensors: what is to be saved, by name.

    Raises:
        CheckpointError: they differ, on all ranks alike.
    """
    if ranks.world_size == 1:
        return
    different = first_difference(ranks.gather(sample(states, tensors)))
    if different:
        name, one, other = different
        raise CheckpointError(
            f"{name} is not the same on ranks {one} and {other}: the checkpoint would be a mixture of their models. Wrap "
            "the model in DistributedDataParallel, or make the ranks' models equal before this step"
        )


def sample(states: Iterable[Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Some values of some of this rank's whole parameters, by name; the same ones on every rank."""
    names = [
        name
        for state in states
        if isinstance(state, ModelState)
        for parameter, value in state.model.named_parameters()
        if _readable(value) and (name := state.key(parameter)) in tensors
    ]
    chosen = sorted(names, key=lambda name: (crc32(name.encode()), name))[:PARAMETERS]
    if not chosen:
        return {}
    parts = []
    for name in chosen:
        flat = tensors[name].reshape(-1)
        places = torch.linspace(0, flat.numel() - 1, min(VALUES, flat.numel()), dtype=torch.float64).long()
        parts.append(flat[places.to(flat.device)].float())
    values = torch.cat([part.to(parts[0].device) for part in parts]).tolist()  # one copy from the GPU
    found = {}
    for name, part in zip(chosen, parts, strict=True):
        found[name], values = values[: part.numel()], values[part.numel() :]
    return found


def first_difference(samples: Sequence[Mapping[str, Sequence[float]]]) -> tuple[str, int, int] | None:
    """The first parameter that is not the same on all ranks that hold it, and two ranks where it differs."""
    first: dict[str, tuple[int, Sequence[float]]] = {}
    for rank, own in enumerate(samples):
        for name, values in own.items():
            holder, theirs = first.setdefault(name, (rank, values))
            if not _alike(values, theirs):
                return name, holder, rank
    return None


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    if [math.isfinite(value) for value in one] != [math.isfinite(value) for value in other]:
        return False
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if math.isfinite(a)]
    scale = max((abs(value) for pair in pairs for value in pair), default=0.0)
    return all(abs(a - b) <= TOLERANCE * scale for a, b in pairs)


def _readable(value: torch.Tensor) -> bool:
    plain = not hasattr(value, "device_mesh") and value.is_floating_point() and value.numel() > 0
    return plain and not value.is_meta and (value.is_contiguous() or value.numel() <= LARGEST)
