"""Which Linears would make pairs among so many ranks, tried by one process that has none of them: for plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .kinds import Kind
from .pairs import Attempt, PairChoice, Pairs, look_for
from .sequences import Along, look_along
from .sharded_tensor import TensorRegion


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
    ranks: int, kinds: Mapping[str, Kind], kept: Collection[str], run: Callable[[Attempt], None], *, counts: bool
) -> PairChoice:
    """The pairs that ranks would choose, and what stays in parts along the tokens, by what the first and the last of them
    would see: the others' parts are as long as the first one's, or the last one's, or between them.

    Args:
        kinds: modules that may be divided, by name.
        kept: of those the names that stay whole.
        run: runs the model once, each of these modules by `Attempt.call`; an error of it means that there are none, as it
            does in a job.
        counts: whether its tensors have no values: then their shapes alone are compared.
    """
    sizes = {name: (kind.inputs, kind.features) for name, kind in kinds.items()}

    def trial(attempt: type[Any], told: Any) -> list[Any] | None:
        meshes: list[Any] = [_Ranks(ranks, number) for number in (0, ranks - 1)]
        tried = [attempt(TensorRegion(mesh, lambda: False, _meets), kinds, kept, told, counts=counts) for mesh in meshes]
        return [one.seen for one in tried] if all(_ran(one, run) for one in tried) else None

    choice = look_for(lambda avoided: trial(Pairs, avoided), sizes) or PairChoice()
    return look_along(choice, lambda pairs: trial(Along, pairs))


def kept_among(
    ranks: int,
    kinds: Mapping[str, Kind],
    kept: Collection[str],
    run: Callable[[Attempt], None],
    choice: PairChoice,
    root: nn.Module,
) -> float:
    """Returns what a rank keeps for the backward, as a part of what one with the whole model keeps; 1 if that is not seen.

    Args:
        ranks, kinds, kept, run: as for `pairs_among`, which has found this choice.
        root: whose parameters do not count.
    """
    mesh: Any = _Ranks(ranks, 0)
    attempt = _Kept(TensorRegion(mesh, lambda: False, _meets), kinds, kept, choice, root)
    return attempt.part() if _ran(attempt, run) else 1.0


class _Kept(Along):
    """Counts what is saved for the backward, each storage once: of parts what a rank has of them."""

    def __init__(
        self, region: TensorRegion, kinds: Mapping[str, Kind], kept: Collection[str], choice: PairChoice, root: nn.Module
    ) -> None:
        super().__init__(region, kinds, kept, (choice, ()), counts=True)
        self._gives = set(choice.along)
        self._parameters = {id(one.untyped_storage()) for one in root.parameters()}
        self._seen: dict[int, tuple[Any, float]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context a forward runs."""
        with super().watching(), torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage, share = tensor.untyped_storage(), 1.0 if self.region.trial is None else self.region.trial.share
        if share and id(storage) not in self._parameters:
            _, before = self._seen.get(id(storage), (storage, 0.0))
            self._seen[id(storage)] = storage, max(before, share)
        return tensor

    def part(self) -> float:
        """Of what is saved, by a rank."""
        every = sum(storage.nbytes() for storage, _ in self._seen.values())
        return sum(storage.nbytes() * share for storage, share in self._seen.values()) / every if every else 1.0


def _ran(attempt: Attempt, run: Callable[[Attempt], None]) -> bool:
    try:
        with attempt.watching():
            run(attempt)
    except Exception:
        return False
    return True


def _meets(_name: str, _value: torch.Tensor | float) -> None:
    """What parts meet is the same on the only rank that there is."""
