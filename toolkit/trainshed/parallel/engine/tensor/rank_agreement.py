"""Checks whether ranks that run a batch together have run the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import torch

from ...ground.errors import PipelineError
from ...ground.grid import Coordinates, Grid, TensorGroup
from ..object_collectives import FINDINGS, STEP, numbers, objects

# Values of an input that ranks compare, about.
_LOOKED_AT = 1024
# Part of a loss by which ranks with the same batch may differ, where a device adds in no fixed order.
_SAME = 1e-3


def apart(
    ranks: Sequence[int],
    inputs: Sequence[Sequence[tuple[str, torch.Tensor]]],
    losses: Sequence[Sequence[float]],
    kind: str = "tensor",
) -> str:
    """In which way one of the ranks of a group has run another step than the first one; empty if all ran the same.

    Args:
        inputs: `Division.inputs` of each rank.
        losses: of each rank; not-a-number where there was none.
        kind: of the group, "tensor" or "context".
    """
    found = [
        [(f"a module ({name!r}) had another input", look.tolist()) for name, look in mine]
        + [("the loss was another one", [loss, abs(loss)]) for loss in own]
        for mine, own in zip(inputs, losses, strict=True)
    ]
    for rank, other in zip(ranks, found, strict=True):
        for (what, one), (_, first) in zip(other, found[0], strict=False):
            known = math.isnan(one[0]) == math.isnan(first[0])
            if not known or abs(one[0] - first[0]) > _SAME * max(one[1], first[1]):
                return f"{what} on rank {rank} than on rank {ranks[0]} of the same {kind} group"
        if len(other) != len(found[0]):
            return f"rank {rank} ran other modules than rank {ranks[0]}"
    return ""


def refuse_apart(what: str, kind: str = "tensor") -> NoReturn:
    """Raises:
    PipelineError: with what `apart` has found.
    """
    raise PipelineError(
        f"{what}, for the same batch",
        hint="what the step function reads beside its arguments (a batch in a variable around it, a file, a generator) "
        f"must be the same on all ranks of a {kind} group: give it as an argument",
    )


def look_at(tensor: torch.Tensor) -> torch.Tensor:
    """A sum of some of the values with weights, and one of their sizes; shape (2,)."""
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // _LOOKED_AT)].to(torch.float32)
    weights = torch.arange(1, some.numel() + 1, device=some.device).sin()
    return torch.stack([weights @ some, some.abs().sum()])


def agreed_seed(group: TensorGroup, seed: int, device: torch.device) -> int:
    """That of the group's first rank, from which all draw their random numbers. Collective over the group."""
    return numbers(STEP, [seed], group.ranks, group.group, device)[0][0]


def compare_in_company(
    grid: Grid,
    kind: str,
    group_of: Callable[[Coordinates], Hashable],
    inputs: Sequence[tuple[str, torch.Tensor]],
    losses: list[float],
    more: Any = None,
) -> list[Any]:
    """After the forwards and backwards of stages: ranks of one group have had the same. Collective over all that run the
    batch.

    Args:
        kind: of the groups, "tensor" or "context".
        group_of: what ranks of one group have in common.
        inputs, losses: of this rank; see `apart`.
        more: what else a rank has to tell.

    Returns:
        `more` of each rank.

    Raises:
        PipelineError: on all of them, if something that the step function reads is not the same.
    """
    everyone = grid.company_ranks
    looks = torch.stack([look for _, look in inputs]).cpu() if inputs else ()
    mine = [name for name, _ in inputs], looks, losses, more
    found = dict(zip(everyone, objects(FINDINGS, mine, everyone, grid.company_group, grid.device), strict=True))
    groups: dict[Hashable, list[int]] = {}
    for rank in everyone:
        groups.setdefault(group_of(grid.places[rank]), []).append(rank)
    for ranks in groups.values():
        given = [list(zip(found[rank][0], found[rank][1], strict=True)) for rank in ranks]
        if what := apart(ranks, given, [found[rank][2] for rank in ranks], kind):
            refuse_apart(what, kind)
    return [told for *_, told in found.values()]
