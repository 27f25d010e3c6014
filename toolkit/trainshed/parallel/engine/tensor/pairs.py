"""Which Linears make pairs: what one gives stays in parts (`part`) until another takes it, and nothing is gathered between.
And of which a function takes the results so that needs a few numbers of each rank: a loss over a vocabulary.

That is seen in a trial, where nothing is divided yet: each Linear gives its whole result with this rank's part beside it,
the model's own code runs on both, and they are compared after each function. A result that some function needed whole, or
that something still holds after the forward, is gathered as those of other Linears are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...ground.exchanges import length_of
from ...ground.torch_private import parameters_in
from .kinds import Kind
from .sharded_tensor import Part, TensorRegion, Trial, whole_of

# Trials in which pairs are looked for, at most: a result that has to be whole may hide pairs behind it.
_TRIALS = 4
# Values that a loss sends for each row, about, in place of a gather of all features: three numbers are summed.
_SENT_BY_A_LOSS = 6


@dataclass
class Seen:
    """The observations of one rank.

    bad: modules whose results have to be whole, or that are no Linears of a pair -> why.
    closing: a module that was given parts along the last axis -> the modules that these come from.
    joint: modules of whose results a function took a few numbers of each rank.
    """

    bad: dict[str, str] = field(default_factory=dict)
    closing: dict[str, frozenset[str]] = field(default_factory=dict)
    joint: frozenset[str] = frozenset()


class Attempt:
    """Forwards in a trial.

    Args:
        counts: whether the model's tensors have no values.

    seen: what it shows.
    """

    seen: Any

    def __init__(self, region: TensorRegion, *, counts: bool) -> None:
        self.region, self._counts = region, counts

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context forwards run."""
        trial = self.region.trial = Trial(counts=self._counts)
        try:
            with self.region.running():
                yield
            gc.collect()
            for part in list(self.region.alive.values()):
                trial.spoil(part.sources, "something keeps it")
                trial.kept |= part.sources
        finally:
            self.region.trial = None
            self.region.alive.clear()
        self._ended(trial)

    def _ended(self, trial: Trial) -> None:
        """Notes what the trial shows."""
        raise NotImplementedError

    def call(self, name: str, kind: Kind, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a module that may be divided: its own result, in parts if that may do."""
        raise NotImplementedError


class Pairs(Attempt):
    """The trial.

    Args:
        kinds: the modules that may be divided.
        kept: names of those that stay whole.
        avoided: of those whose results have to be whole.
        counts: whether the model's tensors have no values.
    """

    def __init__(
        self,
        region: TensorRegion,
        kinds: Mapping[str, Kind],
        kept: Container[str],
        avoided: Container[str],
        *,
        counts: bool = False,
    ) -> None:
        super().__init__(region, counts=counts)
        self.seen, self._avoided = Seen(), avoided
        owners: dict[int, int] = {}
        for kind in kinds.values():
            for parameter in parameters_in(kind.module).values():
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        self._opens = {
            name
            for name, kind in kinds.items()
            if kind.opening is not None and name not in kept and length_of(kind.features, region.ranks, region.ranks - 1)
        }
        # One that takes parts has others of the weight's places than one that gives them.
        self._closes = {
            name
            for name in self._opens
            if all(owners[id(one)] == 1 for one in parameters_in(kinds[name].module).values() if one is not None)
        }
        self._plain: set[str] = set()

    def _ended(self, trial: Trial) -> None:
        self.seen.bad.update(trial.bad)
        self.seen.joint |= trial.joint
        for name in self._plain & set(self.seen.closing):
            self.seen.bad[name] = "is also given whole tensors"

    def call(self, name: str, kind: Kind, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As said there."""
        given = (*args, *kwargs.values())
        x = given[0] if len(given) == 1 else None
        if name not in self._opens or not isinstance(x, torch.Tensor):
            return native(*map(whole_of, args), **{key: whole_of(one) for key, one in kwargs.items()})
        if name in self._closes and isinstance(x, Part) and x.whole is None and x.twin is not None and x.along_features:
            self.seen.closing[name] = self.seen.closing.get(name, frozenset()) | x.sources
            return native(x.twin)
        self._plain.add(name)
        found = native(whole_of(x))
        if name in self._avoided:
            return found
        own = self.region.cut(found.detach(), -1).clone()
        return Part.made_by(name, self.region, own, kind.features, twin=found)


@dataclass(frozen=True)
class PairChoice:
    """Of all ranks.

    opening: modules whose results stay in parts.
    closing: those that take them.
    joint: those whose results stay in parts up to a loss.
    whole: those whose results have to be whole.
    hidden: whether one took what has to be whole: another trial may show more.
    along: those whose results are in parts along the tokens (`sequences`).
    taking: those that take them so.
    """

    opening: frozenset[str] = frozenset()
    closing: frozenset[str] = frozenset()
    joint: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    hidden: bool = False
    along: frozenset[str] = frozenset()
    taking: frozenset[str] = frozenset()


def look_for(
    trial: Callable[[frozenset[str]], Sequence[Seen] | None], sizes: Mapping[str, tuple[int, int]]
) -> PairChoice | None:
    """The pairs that trials show; None if one did not run.

    Args:
        trial: what the ranks see where the results of these modules have to be whole; None if it did not run.
        sizes: as for `choose`.
    """
    choice, avoided = PairChoice(), frozenset[str]()
    for _ in range(_TRIALS):
        seen = trial(avoided)
        if seen is None:
            return None
        choice = choose(seen, sizes)
        if not choice.hidden:
            break
        avoided |= choice.whole
    return choice


def choose(everyone: Iterable[Seen], sizes: Mapping[str, tuple[int, int]]) -> PairChoice:
    """Which modules make pairs, of what all ranks have seen.

    Args:
        sizes: how many inputs and features a module has.
    """
    all_seen = list(everyone)
    bad = {name for seen in all_seen for name in seen.bad}
    taken = {name for seen in all_seen for name in seen.closing}
    none: frozenset[str] = frozenset()
    closing = {name: none.union(*(seen.closing.get(name, none) for seen in all_seen)) for name in taken}
    bad |= {name for name in taken if any(name not in seen.closing for seen in all_seen)}
    joint = frozenset.intersection(*(seen.joint for seen in all_seen))
    hidden = any(sources & bad for sources in closing.values())
    while True:
        dropped = [name for name, sources in closing.items() if name in bad or sources & bad]
        if not dropped:
            dropped = next((names for names in _joined(closing) if not _pays(names, closing, sizes)), [])
            hidden |= bool(dropped)  # one that takes no parts may give some
        if not dropped:
            opening = none.union(*closing.values())
            pays = {name for name in joint - bad if sizes[name][1] > _SENT_BY_A_LOSS}
            return PairChoice(opening, frozenset(closing), frozenset(pays), frozenset(bad), hidden)
        for name in dropped:  # it takes whole tensors, so what it took in parts has to be whole
            bad |= closing.pop(name)


def _joined(closing: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Those that take results of the same modules, together."""
    found: list[tuple[list[str], set[str]]] = []
    for name, sources in closing.items():
        near = [one for one in found if one[1] & sources]
        found = [one for one in found if one not in near]
        found.append(
            ([name, *(other for names, _ in near for other in names)], set(sources).union(*(one[1] for one in near)))
        )
    return [names for names, _ in found]


def _pays(names: list[str], closing: Mapping[str, frozenset[str]], sizes: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a pair sends less: a sum, which is twice a gather, of what comes out, in place of a gather of that and of what
    goes in, and the sum of the gradients of what goes in."""
    opening = {source for name in names for source in closing[name]}
    comes_out = sum(sizes[name][1] for name in names)
    return comes_out < sum(sizes[name][1] for name in opening) + 2 * max(sizes[name][0] for name in names)
