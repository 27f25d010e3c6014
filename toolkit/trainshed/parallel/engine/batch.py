"""Facts about a step's inputs that can be told without looking at the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..ground.tree import leaves
from ..tracing.trace import Meta

# Values of a tensor that are compared, at least: other batches differ nearly everywhere.
_SAMPLED = 2**14

# Schedules with several stages on each rank.
INTERLEAVED = ("interleaved1f1b", "interleavedzerobubble")
# (args, kwargs) of the step function for one microbatch.
Microbatch = tuple[tuple[Any, ...], dict[str, Any]]


# Values as the whole numbers that their bits are: with odd weights, modulo 2**64, one that differs changes the sum.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EVEN = 0x2545F4914F6CDD1C


def digest(microbatches: list[Microbatch]) -> int:
    """A number that changes with the tensors' values and order, below 2**62; of long tensors with a part of the values."""
    pieces: dict[int, torch.Tensor] = {}  # an argument that is not split is in every microbatch
    found: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}  # one kind at once: each call takes long
    kinds = []
    for leaf in leaves(microbatches):
        if isinstance(leaf, torch.Tensor) and leaf.numel() and not leaf.is_meta:
            if id(leaf) not in pieces:
                pieces[id(leaf)] = _sample(leaf.detach())
            kinds.append((leaf.device, leaf.dtype))
            found.setdefault(kinds[-1], []).append(pieces[id(leaf)])
    numbers = {kind: number for number, kind in enumerate(found)}
    facts: list[Any] = [numbers[kind] for kind in kinds]
    for parts in found.values():
        whole = torch.cat(parts)
        bits = whole.view(_BITS[whole.element_size()]).to(torch.int64)
        weights = torch.arange(len(bits), device=bits.device).mul_(_EVEN).add_(1)
        facts.append((len(bits), int(weights.mul_(bits).sum())))
    return int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:8], "big") >> 2


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat, apart = tensor.resolve_neg().reshape(-1), tensor.numel() // _SAMPLED
    return flat[::apart] if apart > 1 else flat


@dataclass(frozen=True)
class Ran:
    """A step that has run.

    results: what the step function returned for each microbatch.
    parts: rows of each microbatch, divided by their mean.
    """

    results: list[Any]
    parts: list[float]


def parts_of(microbatches: list[Microbatch], rows: Callable[[Microbatch], int | None] | None) -> list[float]:
    """Rows of each microbatch, divided by their mean, as a mean over the whole batch counts them. 1 each where nobody knows.

    Args:
        rows: tells how many a microbatch has.
    """
    found = [None if rows is None else rows(microbatch) for microbatch in microbatches]
    counts = [count for count in found if count is not None]
    if len(counts) < len(found) or len(set(counts)) == 1 or not sum(counts):
        return [1.0] * len(found)
    return [count * len(counts) / sum(counts) for count in counts]


def runs_evenly(schedule: str, ranks: int, microbatches: int) -> bool:
    """Returns whether a schedule of torch's can run so many: several stages on a rank take them in rounds of equal size."""
    if schedule not in INTERLEAVED:
        return True
    return microbatches % max(1, microbatches // ranks) == 0


def facts(microbatch: Microbatch) -> Any:
    """The facts on which a recorded forward may depend: shapes and types of tensors, switches. Numbers change each step; a
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
