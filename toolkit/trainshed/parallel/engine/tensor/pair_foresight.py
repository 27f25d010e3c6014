"""Which Linears would make pairs among so many ranks, tried by one process that has none of them: for plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from .kinds import Kind
from .pairs import Choice, Pairs, Seen, look_for
from .part import Region


class _Ranks:
    """In place of the mesh of a tensor group, of which a trial asks no more than this.

    Args:
        count: how many ranks there are; number: which of them this one is.
    """

    def __init__(self, count: int, number: int) -> None:
        self._count, self._number = count, number

    def size(self) -> int:
        """How many ranks there are."""
        return self._count

    def get_local_rank(self) -> int:
        """Which of them this is."""
        return self._number


def pairs_among(
    ranks: int, kinds: Mapping[str, Kind], kept: Collection[str], run: Callable[[Pairs], None], *, counts: bool
) -> Choice:
    """The pairs that ranks would choose, by what the first and the last of them would see: the others' parts are as long as
    the first one's, or the last one's, or between them.

    Args:
        kinds: modules that may be divided, by name.
        kept: of those the names that stay whole.
        run: runs the model once, each of these modules by `Pairs.call`; an error of it means that there are no pairs, as it
            does in a job.
        counts: whether its tensors have no values: then their shapes alone are compared.
    """
    sizes = {name: (kind.inputs, kind.features) for name, kind in kinds.items()}

    def trial(avoided: frozenset[str]) -> list[Seen] | None:
        meshes: list[Any] = [_Ranks(ranks, number) for number in (0, ranks - 1)]
        regions = [Region(mesh, lambda: False, _meets) for mesh in meshes]
        seen = [_seen(Pairs(region, kinds, kept, avoided, counts=counts), run) for region in regions]
        ran = [one for one in seen if one is not None]
        return ran if len(ran) == len(seen) else None

    return look_for(trial, sizes) or Choice()


def _seen(trial: Pairs, run: Callable[[Pairs], None]) -> Seen | None:
    try:
        with trial.watching():
            run(trial)
    except Exception:
        return None
    return trial.seen


def _meets(_name: str, _value: torch.Tensor | float) -> None:
    """What parts meet is the same on the only rank that there is."""
